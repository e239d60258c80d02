# SPDX-License-Identifier: Apache-2.0
"""The operators that multiply an activation by a weight, and where each keeps its output channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from onnx import NodeProto

from wia_quant.qdq import Dequantized, GraphView, ModelView, attribute


@dataclass(frozen=True)
class Product:
    """A node with a quantized constant weight.

    Attributes:
        x: the activation as the node reads it; None when it is not dequantized.
        w: the weight.
        bias_name: the bias input, empty when absent.
        axis: the weight axis of the output channels, >= 0; None when the scale cannot follow it (grouped
            ConvTranspose has its output channels on two axes).
    """

    view: GraphView
    node: NodeProto
    x: Dequantized | None
    w: Dequantized
    bias_name: str
    axis: int | None


def products(model: ModelView) -> Iterator[Product]:
    """Every Conv, ConvTranspose, Gemm and MatMul whose weight is stored as integers."""
    for view, node in model.nodes():
        if node.op_type not in _CHANNEL_AXIS or len(node.input) < 2:
            continue
        w = view.dequantized.get(node.input[1])
        if w is None or w.levels is None or w.levels.ndim < 1:
            continue
        axis = _CHANNEL_AXIS[node.op_type](node, w.levels.ndim)
        bias_name = node.input[2] if len(node.input) > 2 else ""
        yield Product(view, node, view.dequantized.get(node.input[0]), w, bias_name, axis)


def _conv_transpose_axis(node: NodeProto, rank: int) -> int | None:
    return 1 if attribute(node, "group", 1) == 1 else None


_CHANNEL_AXIS: Mapping[str, Callable[[NodeProto, int], int | None]] = {
    "Conv": lambda node, rank: 0,
    "ConvTranspose": _conv_transpose_axis,
    "Gemm": lambda node, rank: 0 if attribute(node, "transB", 0) else 1,
    "MatMul": lambda node, rank: rank - 1,
}
