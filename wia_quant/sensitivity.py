# SPDX-License-Identifier: Apache-2.0
"""What a model's answer would gain if one layer were float: the layer's own error taken out of the quantized model.

First order: ``y' = y - (alone - float)``, with the error that the layer makes on float inputs (layers.py). One session
measures any number of layers: each correction has a switch, an input of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from wia_quant.copies import ALONE, WHOLE, combine
from wia_quant.evaluators.agreement import sqnr_db
from wia_quant.executors import make_executor
from wia_quant.stretches import Layer

Feed = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Sensitivity:
    """One layer's share in the error of the answer.

    Attributes:
        node: the layer.
        output_sqnr_db: of the model's first floating output with this layer float.
        gain_db: by how much that beats the quantized model.
    """

    node: str
    output_sqnr_db: float
    gain_db: float


def sensitivities(
    quantized: ModelProto,
    reference: ModelProto,
    nodes: Sequence[str],
    batches: Iterable[Feed],
    progress: Callable[[int, int | None, str], None] | None = None,
) -> tuple[Sensitivity, ...]:
    """The gain of each layer of ``nodes``, the largest first.

    Args:
        quantized: a QDQ model.
        reference: its float model.
        nodes: names as in ``layers.Layer.node``; those that feed nothing further are left out.
        batches: feeds of the model; a handful is enough.
        progress: called as ``progress(done, total, what)``.
    """
    layers, model = combine(quantized, reference)
    output = next((v.name for v in reference.graph.output if v.type.tensor_type.elem_type == TensorProto.FLOAT), None)
    chosen = [layer for layer in layers if layer.node in set(nodes) and layer.is_rounded]
    if output is None or not chosen:
        return ()
    _add_switches(model, chosen)
    del model.graph.output[:]
    for name in (output, WHOLE + output):
        model.graph.output.add().name = name
    run = make_executor("onnxruntime", model.SerializeToString(), 0)
    found: dict[str, list[float]] = {node: [] for node in ["", *(layer.node for layer in chosen)]}
    for done, batch in enumerate(batches, 1):
        for node in found:
            switches = {_switch(layer): np.array(layer.node == node) for layer in chosen}
            feed: dict[str, npt.NDArray[Any]] = {**batch, **switches}
            y = run.run(feed)
            found[node].append(sqnr_db(y[output].astype(np.float64), y[WHOLE + output].astype(np.float64)))
        if progress:
            progress(done, None, "measuring sensitivity")
    as_it_is = float(np.mean(found.pop("")))
    gains = [Sensitivity(node, float(np.mean(v)), float(np.mean(v)) - as_it_is) for node, v in found.items()]
    return tuple(sorted(gains, key=lambda s: -s.gain_db))


def _switch(layer: Layer) -> str:
    return f"float::{layer.result}"


def _add_switches(model: ModelProto, layers: Sequence[Layer]) -> None:
    graph = model.graph
    for layer in layers:
        whole, alone, switch = WHOLE + layer.result, ALONE + layer.result, _switch(layer)
        corrected = f"corrected::{layer.result}"
        for node in graph.node:
            for i, name in enumerate(node.input):
                if name == whole:
                    node.input[i] = corrected
        graph.input.append(helper.make_tensor_value_info(switch, TensorProto.BOOL, []))
        graph.node.extend(
            [
                helper.make_node("Sub", [alone, layer.tensor], [f"error::{layer.result}"], f"error::{layer.result}"),
                helper.make_node("Sub", [whole, f"error::{layer.result}"], [f"sound::{layer.result}"]),
                helper.make_node("Where", [switch, f"sound::{layer.result}", whole], [corrected]),
            ]
        )
    _sort(model)


def _sort(model: ModelProto) -> None:
    """Topological order, as ONNX wants it."""
    graph = model.graph
    made = {name for node in graph.node for name in node.output if name}
    known: set[str] = set()
    waiting = list(graph.node)
    ordered = []
    while waiting:
        ready = [n for n in waiting if all(not name or name not in made or name in known for name in _reads(n))]
        assert ready, "the combined graph has a cycle"
        ordered += ready
        known.update(name for n in ready for name in n.output)
        taken = {id(n) for n in ready}
        waiting = [n for n in waiting if id(n) not in taken]
    copies = [type(n).FromString(n.SerializeToString()) for n in ordered]
    del graph.node[:]
    graph.node.extend(copies)


def _reads(node: Any) -> list[str]:
    inner = [name for a in node.attribute for body in [a.g, *a.graphs] for n in body.node for name in n.input]
    return [*node.input, *inner]
