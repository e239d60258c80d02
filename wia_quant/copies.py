# SPDX-License-Identifier: Apache-2.0
"""A quantized model and its float one as a single graph, in as many copies as it takes to see each layer by itself.

The float model keeps its names; the prefixes say what the other copies read:

    whole::     the quantized model as it is
    alone::     each layer reads the float model's tensors: what it gives has its own error and no other
    moved::     as alone, and every weight is moved by a random part of a level
    typical::   each layer's float tensor with an error that rounding explains: the weights' (moved less alone), and
                that of the best grid for the tensor
    seen::      each layer reads what the layers before it give alone: how much of their errors it sees
    expected::  each layer reads what is typical of the layers before it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper, numpy_helper

from wia_quant.qdq import DEQUANTIZE, QUANTIZE, GraphView, view_model
from wia_quant.stretches import Layer, Stretches, cut, real_levels

WHOLE, ALONE, MOVED, TYPICAL, SEEN, EXPECTED = "whole::", "alone::", "moved::", "typical::", "seen::", "expected::"
_SEED: Final = 0


@dataclass(frozen=True)
class Grid:
    """What a layer's float values are like.

    Attributes:
        step: of the best grid for them; 0 where they are all zero or stay float.
        whole_step: of the grid that just clips none of them.
        lo: its first level.
        hi: its last.
        floor: the smallest value where many have it, as after Relu: some quantizers leave the Relu to the grid's end.
        ceiling: the largest value where many have it.
        dtype: of the tensor.
    """

    step: float
    whole_step: float
    lo: float
    hi: float
    floor: float
    ceiling: float
    dtype: np.dtype[np.generic]


def combine(
    quantized: ModelProto, reference: ModelProto, grids: Mapping[str, Grid] | None = None
) -> tuple[tuple[Layer, ...], ModelProto]:
    """The layers, and the graph that runs the copies; its outputs are every layer's tensor in each of them.

    Args:
        quantized: a QDQ model.
        reference: its float model.
        grids: the best grid of each layer's tensor. None: the copies that need no grid, whole and alone.

    Raises:
        EvaluationError: the two share no tensor.
    """
    view = view_model(quantized).graphs[0]
    found = cut(view, reference)
    combined = ModelProto()
    combined.CopyFrom(reference)
    combined.functions.extend(quantized.functions)
    _raise_opset(combined, quantized)
    graph = combined.graph
    inputs = {v.name: v.name for v in graph.input}
    constants = {t.name: WHOLE + t.name for t in view.graph.initializer}
    for tensor in view.graph.initializer:
        copied = graph.initializer.add()
        copied.CopyFrom(tensor)
        copied.name = constants[tensor.name]
    given = constants | inputs
    alone = given | dict(found.sources)
    graph.node.extend(_copies(view, found, WHOLE, given))
    graph.node.extend(_copies(view, found, ALONE, alone | dict(found.matched)))
    if grids is not None:
        graph.node.extend(
            _copies(view, found, MOVED, alone | dict(found.matched) | _move_weights(graph, view), rounded=False)
        )
        computing = [x for x in found.layers if x.computed not in inputs and x.tensor in grids]
        graph.node.extend(_held(graph, x, prefix, grids[x.tensor]) for x in computing for prefix in (ALONE, MOVED))
        for layer in found.layers:
            graph.node.extend(_typical(graph, layer, grids))
        for prefix, read in ((SEEN, ALONE), (EXPECTED, TYPICAL)):
            results = {name: read + name for name in found.matched}
            graph.node.extend(_copies(view, found, prefix, alone | results, rounded=False))
            graph.node.extend(_held(graph, x, prefix, grids[x.tensor]) for x in computing)
    wanted = [[x.tensor, ALONE + x.result, WHOLE + x.result] for x in found.layers]
    if grids is not None:
        wanted += [[TYPICAL + x.result] for x in found.layers if x.tensor in grids]
        wanted += [[held_name(p, x) for p in (ALONE, MOVED, SEEN, EXPECTED)] for x in computing]
        wanted += [[rounded_name(x)] for x in found.layers if x.is_rounded and x.tensor in grids]
    del graph.output[:]
    for name in dict.fromkeys(name for names in wanted for name in names):
        graph.output.add().name = name
    return found.layers, combined


def _copies(
    view: GraphView, found: Stretches, prefix: str, given: Mapping[str, str], *, rounded: bool = True
) -> Iterator[NodeProto]:
    """The nodes with their tensors renamed, those of ``given`` from elsewhere; the layers' Q and DQ if ``rounded``."""
    rounding = [view.dequantized[result] for result in found.matched if result in view.dequantized]
    ends = {name for tensor in rounding for name in (tensor.name, tensor.node.input[0])}
    # The quantizer of a layer's output reads what that copy of the layer computed.
    computed = {k: v for k, v in given.items() if k not in found.sources}
    for node in view.graph.node:
        if rounded or node.output[0] not in ends:
            yield _copy(node, prefix, computed if node.op_type == QUANTIZE else given)


def _copy(node: NodeProto, prefix: str, given: Mapping[str, str]) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    made.name = prefix + (node.name or node.output[0])
    for i, name in enumerate(node.input):
        made.input[i] = given.get(name, prefix + name) if name else ""
    for i, name in enumerate(node.output):
        made.output[i] = prefix + name if name else ""
    for a in made.attribute:
        for body in [a.g] if a.type == AttributeProto.GRAPH else a.graphs:
            _rename_captures(body, prefix, given)
    return made


def _rename_captures(body: GraphProto, prefix: str, given: Mapping[str, str]) -> None:
    own = {v.name for v in body.input} | {t.name for t in body.initializer} | {o for n in body.node for o in n.output}
    for node in body.node:
        for i, name in enumerate(node.input):
            if name and name not in own:
                node.input[i] = given.get(name, prefix + name)
    for output in body.output:
        if output.name not in own:
            output.name = given.get(output.name, prefix + output.name)


def _move_weights(graph: GraphProto, view: GraphView) -> dict[str, str]:
    """Initializers of weights moved by a random part of a level: dequantized weight -> the initializer."""
    rng, found = np.random.default_rng(_SEED), {}
    for tensor in view.dequantized.values():
        if tensor.levels is None or tensor.levels.ndim < 2 or tensor.node.op_type != DEQUANTIZE:
            continue
        moved = real_levels(tensor, tensor.levels + rng.uniform(-0.5, 0.5, tensor.levels.shape))
        if moved is not None:
            found[tensor.name] = f"{MOVED}{tensor.name}::constant"
            graph.initializer.append(numpy_helper.from_array(moved, found[tensor.name]))
    return found


def held_name(prefix: str, layer: Layer) -> str:
    """What a copy of the layer computes, before it is rounded."""
    return f"{prefix}{layer.result}::held"


def _held(graph: GraphProto, layer: Layer, prefix: str, grid: Grid) -> NodeProto:
    name = held_name(prefix, layer)
    if not np.isfinite([grid.floor, grid.ceiling]).any():
        return helper.make_node("Identity", [prefix + layer.computed], [name], name)
    for key, value in (("floor", grid.floor), ("ceiling", grid.ceiling)):
        graph.initializer.append(numpy_helper.from_array(np.array(value, grid.dtype), f"{name}::{key}"))
    return helper.make_node("Clip", [prefix + layer.computed, f"{name}::floor", f"{name}::ceiling"], [name], name)


def rounded_name(layer: Layer) -> str:
    """The moved copy of the layer's result on the best grid."""
    return f"{TYPICAL}{layer.result}::rounded"


def _typical(graph: GraphProto, layer: Layer, grids: Mapping[str, Grid]) -> Iterator[NodeProto]:
    """float + (moved on the best grid - alone)."""
    name, grid = TYPICAL + layer.result, grids.get(layer.tensor)
    if grid is None:  # integers: nothing to round
        yield helper.make_node("Identity", [layer.tensor], [name], name)
        return
    is_input = layer.computed in {v.name for v in graph.input}
    alone, moved = (layer.tensor if is_input else held_name(prefix, layer) for prefix in (ALONE, MOVED))
    if layer.is_rounded and grid.step:
        values = {"lo": grid.lo, "hi": grid.hi, "step": grid.step}
        for key, value in values.items():
            graph.initializer.append(numpy_helper.from_array(np.array(value, grid.dtype), f"{name}::{key}"))
        clipped, levels, whole = (f"{name}::{x}" for x in ("clipped", "levels", "whole"))
        rounded = rounded_name(layer)
        yield helper.make_node("Clip", [moved, f"{name}::lo", f"{name}::hi"], [clipped], clipped)
        yield helper.make_node("Div", [clipped, f"{name}::step"], [levels], levels)
        yield helper.make_node("Round", [levels], [whole], whole)
        yield helper.make_node("Mul", [whole, f"{name}::step"], [rounded], rounded)
        moved = rounded
    elif layer.is_rounded:  # nothing but zeros
        yield helper.make_node("Identity", [moved], [rounded_name(layer)], rounded_name(layer))
    yield helper.make_node("Sub", [moved, alone], [f"{name}::error"], f"{name}::error")
    yield helper.make_node("Add", [layer.tensor, f"{name}::error"], [name], name)


def _raise_opset(combined: ModelProto, quantized: ModelProto) -> None:
    """The newer of the two opsets; the float model is converted when it has the older one."""
    versions = {o.domain or "ai.onnx": o.version for o in quantized.opset_import}
    ours = next((o.version for o in combined.opset_import if o.domain in ("", "ai.onnx")), 0)
    wanted = versions.pop("ai.onnx", ours)
    if ours < wanted:
        combined.CopyFrom(onnx.version_converter.convert_version(combined, wanted))
    have = {o.domain for o in combined.opset_import}
    for domain, version in versions.items():
        if domain not in have:
            combined.opset_import.append(helper.make_opsetid(domain, version))
    combined.ir_version = max(combined.ir_version, quantized.ir_version)
