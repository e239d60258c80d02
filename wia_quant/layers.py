# SPDX-License-Identifier: Apache-2.0
"""How far each layer of a quantized model is from its float self: by itself, and with all that came before.

Three copies of the network run as one graph: the float model; the quantized model; and the quantized layers taken one
by one, each reading the float model's tensors. The third gives a layer's own error: its weights' and its output
grid's. A wrong scale or axis shows there, in the layer that has it and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, TensorProto

from wia_quant.evaluation import EvaluationError, LayerError
from wia_quant.evaluators.agreement import SQNR_CEILING_DB
from wia_quant.executors import make_executor
from wia_quant.executors.base import Executor
from wia_quant.qdq import DEQUANTIZE, QUANTIZE, GraphView, view_model

Feed = Mapping[str, npt.NDArray[Any]]

#: Prefixes of the copies; the float model keeps its names.
ALONE, WHOLE = "alone::", "whole::"
#: Bins of a layer's histogram; they span its grid and half of that again on both sides.
N_BINS: Final = 64
_PRODUCTS: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})


@dataclass(frozen=True)
class Layer:
    """A stretch of the quantized graph from quantized tensors to the next one.

    Attributes:
        node: its product (Conv, MatMul ...), or else its last node.
        op_type: that node's operator.
        tensor: the float tensor that it should compute.
        result: the tensor of the quantized model that stands for it: after DQ, or the model's output.
        before_quantize: the tensor before Q; empty where the result stays float.
        lo: smallest real that the output grid holds.
        hi: largest real that the output grid holds.
    """

    node: str
    op_type: str
    tensor: str
    result: str
    before_quantize: str
    lo: float
    hi: float


@dataclass
class _Sums:
    """Running sums of one layer; two doubles an error, whatever the number of samples."""

    signal: float = 0.0
    alone: float = 0.0
    whole: float = 0.0
    dot: float = 0.0
    whole_squared: float = 0.0
    clipped: int = 0
    n: int = 0
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(N_BINS, np.int64))


@dataclass
class LayerProbe:
    """Measures every layer of a model, batch by batch.

    Attributes:
        layers: in the order of the graph.
    """

    layers: tuple[Layer, ...]
    _model: ModelProto
    _sums: dict[str, _Sums] = field(default_factory=dict)
    _run: Executor | None = None

    @staticmethod
    def of(quantized: ModelProto, reference: ModelProto) -> LayerProbe:
        """The probe of a QDQ model against its float model.

        Raises:
            EvaluationError: the two share no tensor, inputs included.
        """
        layers, model = combine(quantized, reference)
        return LayerProbe(layers, model)

    def observe(self, batches: Iterable[Feed], progress: Callable[[int, int | None, str], None] | None = None) -> None:
        """Runs the batches and adds up errors."""
        if self._run is None:
            self._run = make_executor("onnxruntime", self._model.SerializeToString(), 0)
        for done, batch in enumerate(batches, 1):
            found = self._run.run(batch)
            for layer in self.layers:
                self._add(layer, found[layer.tensor], found[ALONE + layer.result], found[WHOLE + layer.result])
            if progress:
                progress(done, None, "measuring layers")

    def errors(self) -> tuple[LayerError, ...]:
        """The figures over everything observed."""
        return tuple(_error(layer, self._sums[layer.result]) for layer in self.layers if layer.result in self._sums)

    def histograms(self) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Node -> (counts [64], edges [65]) of the float values, the ends taking what lies beyond them."""
        return {
            layer.node: (self._sums[layer.result].counts, _edges(layer))
            for layer in self.layers
            if layer.result in self._sums and math.isfinite(layer.lo)
        }

    def _add(self, layer: Layer, real: npt.NDArray[Any], alone: npt.NDArray[Any], whole: npt.NDArray[Any]) -> None:
        if not np.issubdtype(real.dtype, np.floating) or real.shape != alone.shape:
            return
        s = self._sums.setdefault(layer.result, _Sums())
        x, a, w = (v.astype(np.float64).reshape(-1) for v in (real, alone, whole))
        s.signal += float(x @ x)
        s.alone += float(np.square(x - a).sum())
        s.whole += float(np.square(x - w).sum())
        s.dot += float(x @ w)
        s.whole_squared += float(w @ w)
        s.clipped += int(((x < layer.lo) | (x > layer.hi)).sum())
        s.n += x.size
        if math.isfinite(layer.lo):
            edges = _edges(layer)
            s.counts += np.histogram(np.clip(x, edges[0], edges[-1]), edges)[0]


def _edges(layer: Layer) -> npt.NDArray[np.float64]:
    half = (layer.hi - layer.lo) / 2
    return np.linspace(layer.lo - half, layer.hi + half, N_BINS + 1)


def _error(layer: Layer, s: _Sums) -> LayerError:
    length = math.sqrt(s.signal * s.whole_squared)
    return LayerError(
        layer.node,
        layer.op_type,
        layer.tensor,
        _sqnr(s.signal, s.alone),
        _sqnr(s.signal, s.whole),
        s.dot / length if length else float(s.signal == s.whole_squared),
        s.clipped / s.n if s.n else 0.0,
    )


def _sqnr(signal: float, noise: float) -> float:
    if noise == 0:
        return SQNR_CEILING_DB
    if not math.isfinite(noise) or signal == 0:
        return -SQNR_CEILING_DB
    return min(SQNR_CEILING_DB, 10 * math.log10(signal / noise))


def combine(quantized: ModelProto, reference: ModelProto) -> tuple[tuple[Layer, ...], ModelProto]:
    """The layers, and the graph that runs all three copies; its outputs are the layers' tensors of each."""
    view = view_model(quantized).graphs[0]
    floats = _float_names(reference)
    matched = _matches(view, floats)
    if not matched:
        raise EvaluationError("the quantized and the float model share no tensor name; is it the right --reference?")
    layers = tuple(_layers(view, matched, floats))
    combined = ModelProto()
    combined.CopyFrom(reference)
    combined.functions.extend(quantized.functions)
    _raise_opset(combined, quantized)
    graph = combined.graph
    inputs = {v.name for v in graph.input}
    whole = {name: name for name in inputs}
    alone = dict(whole) | matched
    for prefix, given in ((WHOLE, whole), (ALONE, alone)):
        for tensor in view.graph.initializer:
            if prefix == WHOLE:
                copied = graph.initializer.add()
                copied.CopyFrom(tensor)
                copied.name = WHOLE + tensor.name
        constants = {t.name: WHOLE + t.name for t in view.graph.initializer}
        for node in view.graph.node:
            graph.node.append(_copy(node, prefix, {**constants, **given}))
    wanted = dict.fromkeys(n for layer in layers for n in (layer.tensor, ALONE + layer.result, WHOLE + layer.result))
    del graph.output[:]
    for name in wanted:
        graph.output.add().name = name
    return layers, combined


def _copy(node: NodeProto, prefix: str, given: Mapping[str, str]) -> NodeProto:
    """The node with every tensor of the copy renamed, and ``given`` tensors read from elsewhere."""
    made = NodeProto()
    made.CopyFrom(node)
    made.name = prefix + (node.name or node.output[0])
    for i, name in enumerate(node.input):
        made.input[i] = given.get(name, prefix + name) if name else ""
    for i, name in enumerate(node.output):
        made.output[i] = prefix + name if name else ""
    for a in made.attribute:
        for body in [a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs:
            _rename_captures(body, prefix, given)
    return made


def _rename_captures(body: onnx.GraphProto, prefix: str, given: Mapping[str, str]) -> None:
    own = {v.name for v in body.input} | {t.name for t in body.initializer} | {o for n in body.node for o in n.output}
    for node in body.node:
        for i, name in enumerate(node.input):
            if name and name not in own:
                node.input[i] = given.get(name, prefix + name)
    for output in body.output:
        if output.name not in own:
            output.name = given.get(output.name, prefix + output.name)


def _float_names(reference: ModelProto) -> frozenset[str]:
    made = {name for node in reference.graph.node for name in node.output if name}
    return frozenset(made | {v.name for v in reference.graph.input})


def _matches(view: GraphView, floats: frozenset[str]) -> dict[str, str]:
    """Dequantized activation -> the float tensor that it stands for."""
    found = {}
    for tensor in view.dequantized.values():
        if tensor.quantize_node is None:
            continue
        name = next((n for n in (tensor.name, tensor.source) if n in floats), None)
        if name is not None:
            found[tensor.name] = name
    return found


def _layers(view: GraphView, matched: Mapping[str, str], floats: frozenset[str]) -> Iterator[Layer]:
    for node in view.graph.node:
        if node.op_type == DEQUANTIZE and node.output[0] in matched:
            tensor = view.dequantized[node.output[0]]
            made_by = _main_node(view, tensor.source, matched)
            lo, hi = _reach(tensor.scale, tensor.zero_point, tensor.elem_type)
            name, op_type = (matched[node.output[0]], "input") if made_by is None else (made_by.name, made_by.op_type)
            yield Layer(name, op_type, matched[node.output[0]], node.output[0], tensor.source, lo, hi)
    for output in view.graph.output:
        made = _main_node(view, output.name, matched)
        if output.name not in matched and made is not None and output.name in floats:
            yield Layer(made.name, made.op_type, output.name, output.name, "", -math.inf, math.inf)


def _main_node(view: GraphView, tensor: str, matched: Mapping[str, str]) -> NodeProto | None:
    """Of the nodes between quantized tensors and ``tensor`` the product, or else the last one."""
    waiting, seen, last = [tensor], set(), None
    while waiting:
        name = waiting.pop()
        node = view.producers.get(name)
        if node is None or name in matched or node.op_type in (QUANTIZE, DEQUANTIZE) or node.name in seen:
            continue
        if node.op_type in _PRODUCTS:
            return node
        last = last or node
        seen.add(node.name)
        waiting.extend(n for n in node.input if n)
    return last


def _reach(
    scale: npt.NDArray[Any] | None, zero_point: npt.NDArray[np.int64] | None, elem_type: int
) -> tuple[float, float]:
    ends: dict[int, tuple[int, int]] = {
        TensorProto.INT8: (-128, 127),
        TensorProto.UINT8: (0, 255),
        TensorProto.INT16: (-32768, 32767),
        TensorProto.UINT16: (0, 65535),
    }
    if scale is None or zero_point is None or elem_type not in ends:
        return -math.inf, math.inf
    s, z = float(scale.reshape(-1)[0]), int(zero_point.reshape(-1)[0])
    # Half a level beyond the ends still rounds onto the grid.
    return (ends[elem_type][0] - z - 0.5) * s, (ends[elem_type][1] - z + 0.5) * s


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
            combined.opset_import.append(onnx.helper.make_opsetid(domain, version))
    combined.ir_version = max(combined.ir_version, quantized.ir_version)
