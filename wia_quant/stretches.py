# SPDX-License-Identifier: Apache-2.0
"""A quantized model cut into layers: stretches of its graph from quantized tensors to the next one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, TensorProto

from wia_quant.evaluation import EvaluationError
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
        reads: results of the layers that it reads in integers.
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
    lo: float
    hi: float
    levels: int
    symmetric: bool

    @property
    def is_rounded(self) -> bool:
        """False for a model's output that stays float."""
        return self.levels > 0


@dataclass(frozen=True)
class Stretches:
    """The layers of a graph, in its order, and where they begin and end.

    Attributes:
        layers: every one.
        matched: dequantized activation -> the float tensor that it stands for.
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
    return Stretches(tuple(_layers(view, matched, sources, floats)), matched, sources)


def _layers(
    view: GraphView, matched: Mapping[str, str], sources: Mapping[str, str], floats: set[str]
) -> Iterator[Layer]:
    for node in view.graph.node:
        if node.op_type == DEQUANTIZE and node.output[0] in matched:
            tensor, name = view.dequantized[node.output[0]], matched[node.output[0]]
            main, reads = _inside(view, tensor.source, matched, sources)
            lo, hi, levels = _grid(tensor)
            called, op_type = (name, "input") if main is None else (main.name or main.output[0], main.op_type)
            symmetric = levels > 0 and abs(lo + hi) < 2 * (hi - lo) / levels
            yield Layer(called, op_type, name, tensor.name, tensor.source, reads, lo, hi, levels, symmetric)
    for output in view.graph.output:
        main, reads = _inside(view, output.name, matched, sources)
        if output.name not in matched and main is not None and output.name in floats:
            name = main.name or main.output[0]
            yield Layer(name, main.op_type, output.name, output.name, output.name, reads, -math.inf, math.inf, 0, False)


def _inside(
    view: GraphView, end: str, matched: Mapping[str, str], sources: Mapping[str, str]
) -> tuple[NodeProto | None, frozenset[str]]:
    """Of the nodes that compute ``end`` the product, one of integers first, or else the last; and the results read."""
    waiting, passed, reads = [end], dict[str, NodeProto](), set()
    while waiting:
        name = waiting.pop()
        node = view.producers.get(name)
        if name in matched:
            reads.add(name)
        if node is None or node.op_type in (QUANTIZE, DEQUANTIZE) or node.output[0] in passed:
            continue
        if name == end or name not in sources:
            passed[node.output[0]] = node
            waiting.extend(n for n in node.input if n)
    products = [n for n in passed.values() if n.op_type in _PRODUCTS]
    integer = [n for n in products if any(name in view.dequantized for name in n.input)]
    return next(iter([*integer, *products, *passed.values()]), None), frozenset(reads)


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
