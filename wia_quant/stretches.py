# SPDX-License-Identifier: Apache-2.0
"""A quantized model cut into layers: stretches of its graph from quantized tensors to the next one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto

from wia_quant.evaluation import EvaluationError
from wia_quant.operators import OPERATORS, Kind
from wia_quant.qdq import DEQUANTIZE, QUANTIZE, Dequantized, GraphView

_PRODUCTS: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
#: Type of a grid -> its first and last level.
_ENDS: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {
        TensorProto.INT8: (-128, 127),
        TensorProto.UINT8: (0, 255),
        TensorProto.INT16: (-32768, 32767),
        TensorProto.UINT16: (0, 65535),
    }
)


@dataclass(frozen=True)
class Layer:
    """A stretch of the quantized graph from quantized tensors to the next one.

    Attributes:
        node: its product (Conv, MatMul ...), or else its last node.
        op_type: that node's operator.
        tensor: the float tensor that it should compute.
        result: the tensor of the quantized model that stands for it: after DQ, or the model's output.
        computed: the tensor of the quantized model before its output is rounded; a model's input is its own.
        reads: results of the layers that it reads.
        moves: it only moves values, so that the grid of its output is that of its inputs.
        lo: smallest real that the output grid holds; minus infinity where the result stays float.
        hi: largest real that the output grid holds.
        levels: of the output grid; 0 where the result stays float.
        symmetric: the grid has as many levels below zero as above.
    """

    node: str
    op_type: str
    tensor: str
    result: str
    computed: str
    reads: frozenset[str]
    moves: bool
    lo: float
    hi: float
    levels: int
    symmetric: bool

    @property
    def is_rounded(self) -> bool:
        """False where the result stays float."""
        return self.levels > 0


@dataclass(frozen=True)
class Stretches:
    """The layers of a graph, in its order, and where they begin and end.

    Attributes:
        layers: every one.
        matched: a layer's result that others read, dequantized or float -> the float tensor that it stands for.
        sources: tensor before a quantizer -> that float tensor, the model's inputs left out. What is quantized for one
            reader and float for another is the end of a layer for both.
    """

    layers: tuple[Layer, ...]
    matched: Mapping[str, str]
    sources: Mapping[str, str]


def cut(view: GraphView, reference: ModelProto) -> Stretches:
    """The layers of a quantized graph, as the tensors that it shares with its float model have them.

    Raises:
        EvaluationError: the two share no tensor.
    """
    floats = {name for node in reference.graph.node for name in node.output if name}
    floats |= {v.name for v in reference.graph.input}
    matched = {}
    for tensor in view.dequantized.values():
        name = next((n for n in (tensor.name, tensor.source) if n in floats), None)
        if name is not None and tensor.quantize_node is not None:
            matched[tensor.name] = name
    if not matched:
        raise EvaluationError("the quantized and the float model share no tensor name; is it the right --reference?")
    sources = {view.dequantized[result].source: name for result, name in matched.items()}
    sources = {k: v for k, v in sources.items() if k in view.producers}
    outputs = [v.name for v in view.graph.output if v.name not in matched and v.name in floats]
    matched |= {name: name for name in _forks(view, matched, sources, outputs) if name in floats}
    layers: list[Layer] = []
    for end in [*(n for node in view.graph.node for n in node.output if n in matched), *outputs]:
        layer = _layer(view, end, matched, sources)
        if layer is not None and all(layer.result != other.result for other in layers):
            layers.append(layer)
    return Stretches(tuple(layers), matched, sources)


def _forks(view: GraphView, matched: Mapping[str, str], sources: Mapping[str, str], outputs: list[str]) -> list[str]:
    """Float results of integer products that several layers would hold: a residual stream's, say."""
    holders: dict[str, set[str]] = {}
    for end in [*(view.dequantized[result].source for result in matched), *outputs]:
        for node in _inside(view, end, matched, sources)[0]:
            holders.setdefault(node.output[0], set()).add(end)
    found = []
    for name, ends in holders.items():
        readers = [r for r in view.consumers.get(name, ()) if r.output[0] in holders]
        if len(ends) > 1 and name not in sources and any(holders[r.output[0]] != ends for r in readers):
            inside, reads = _inside(view, name, matched, sources)
            if reads and any(n.op_type in _PRODUCTS for n in inside):
                found.append(name)
    return found


def _layer(view: GraphView, end: str, matched: Mapping[str, str], sources: Mapping[str, str]) -> Layer | None:
    tensor = view.dequantized.get(end)
    computed = end if tensor is None else tensor.source
    inside, reads = _inside(view, computed, matched, sources)
    lo, hi, levels = (-math.inf, math.inf, 0) if tensor is None else _grid(tensor)
    name = matched.get(end, end)
    symmetric = levels > 0 and abs(lo + hi) < 2 * (hi - lo) / levels
    if not inside:
        return Layer(name, "input", name, end, computed, reads, False, lo, hi, levels, symmetric) if levels else None
    products = [n for n in inside if n.op_type in _PRODUCTS]
    integer = [n for n in products if any(i in view.dequantized for i in n.input)]
    main = next(iter([*integer, *products, *inside]))
    moves = all(_only_moves(n) for n in inside if _is_data(view, n, reads))
    return Layer(
        main.name or main.output[0], main.op_type, name, end, computed, reads, moves, lo, hi, levels, symmetric
    )


def _only_moves(node: NodeProto) -> bool:
    return node.op_type in OPERATORS and OPERATORS[node.op_type].kind in (Kind.MOVES, Kind.CONCAT)


def _is_data(view: GraphView, node: NodeProto, reads: frozenset[str]) -> bool:
    """Whether the node reads one of the layer's inputs, straight or through others; shapes do not."""
    waiting, seen = [*node.input], set()
    while waiting:
        name = waiting.pop()
        if name in reads:
            return True
        if name not in seen and name in view.producers:
            seen.add(name)
            waiting.extend(view.producers[name].input)
    return False


def _inside(
    view: GraphView, end: str, matched: Mapping[str, str], sources: Mapping[str, str]
) -> tuple[list[NodeProto], frozenset[str]]:
    """The nodes that compute ``end``, the last one first, and the results of other layers that they read."""
    waiting, passed, reads = [end], dict[str, NodeProto](), set()
    while waiting:
        name = waiting.pop()
        if name in matched and name != end:
            reads.add(name)
            continue
        node = view.producers.get(name)
        if node is None or node.op_type in (QUANTIZE, DEQUANTIZE) or node.output[0] in passed:
            continue
        if name == end or name not in sources:
            passed[node.output[0]] = node
            waiting.extend(n for n in node.input if n)
    return list(passed.values()), frozenset(reads)


def _grid(tensor: Dequantized) -> tuple[float, float, int]:
    """Smallest and largest real that rounds onto the grid, half a level beyond its ends; and how many levels it has."""
    scale, zero_point = tensor.scale, tensor.zero_point
    if scale is None or zero_point is None or tensor.elem_type not in _ENDS:
        return -math.inf, math.inf, 0
    first, last = _ENDS[tensor.elem_type]
    s, z = float(scale.reshape(-1)[0]), int(zero_point.reshape(-1)[0])
    return (first - z - 0.5) * s, (last - z + 0.5) * s, last - first + 1


def real_levels(tensor: Dequantized, levels: npt.NDArray[Any]) -> npt.NDArray[np.float32] | None:
    """What ``levels``, which need not be whole, mean on the tensor's grid; None where that is not constant."""
    if tensor.scale is None or tensor.zero_point is None:
        return None
    scale, zero_point = (_spread(v, levels.shape, tensor.axis) for v in (tensor.scale, tensor.zero_point))
    return np.asarray((levels - zero_point) * scale, dtype=np.float32)


def _spread(values: npt.NDArray[Any], shape: tuple[int, ...], axis: int) -> npt.NDArray[Any]:
    """One value, one of each index of ``axis``, or one of each block along it, for every element."""
    if values.size == 1:
        return values.reshape(())
    if values.ndim == 1:
        return values.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])
    return np.repeat(values, -(-shape[axis] // values.shape[axis]), axis).take(range(shape[axis]), axis)
