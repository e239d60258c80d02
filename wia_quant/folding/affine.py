# SPDX-License-Identifier: Apache-2.0
"""What scales and shifts the channels of a product is folded into its weight and bias.

BatchNormalization, and Mul, Div, Add, Sub with a constant, after Conv, ConvTranspose, Gemm or MatMul:
``s * (w x + b) + t = (s w) x + (s b + t)``. Computed in float64, rounded once to float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from wia_quant.graph import Graph, Model, Node, make_node

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Affine:
    """``scale * y + shift``, both [channels]."""

    scale: Vector
    shift: Vector


def fold_affine(model: Model, keep: frozenset[str]) -> int:
    """Fold one affine node into each product that has one, until none is left."""
    edits = 0
    for graph, node in list(model.nodes()):
        if node.op_type not in _PRODUCTS or not node.standard or node.name in keep:
            continue
        while _fold_next(model, graph, node, keep):
            edits += 1
            model.index()
    return edits


def _fold_next(model: Model, graph: Graph, node: Node, keep: frozenset[str]) -> bool:
    weight = model.array(node.input(1))
    if weight is None or weight.dtype != np.float32 or model.array(node.inputs[0]) is not None:
        return False
    axis, channels, rank = _PRODUCTS[node.op_type](model, node, weight.shape)
    if channels == 0:
        return False
    bias_node = _bias_add(model, node, channels) if node.op_type == "MatMul" else None
    last = bias_node or node
    after = model.only_reader(last.outputs[0])
    if after is None or after.name in keep or not after.standard or graph is not model.owners.get(after.outputs[0]):
        return False
    affine = _affine_of(model, after, last.outputs[0], rank, axis, channels)
    if affine is None or not (np.isfinite(affine.scale).all() and np.isfinite(affine.shift).all()):
        return False
    if node.op_type == "MatMul" and bias_node is None and not (affine.scale != 1.0).any():
        return False  # a MatMul's bias already is an Add behind it
    _scale_weight(model, graph, node, weight, affine.scale)
    if node.op_type == "MatMul":
        _matmul_bias(model, graph, node, bias_node, after, affine)
    else:
        bias = model.array(node.input(2)) if node.input(2) else np.zeros(channels, np.float32)
        assert bias is not None
        shifted = (bias.astype(np.float64) * affine.scale + affine.shift).astype(np.float32)
        name = model.add_constant(graph, f"{node.name}/bias", shifted)
        node.inputs[2:] = [name]
        _take_over(model, graph, node, after)
    return True


def _take_over(model: Model, graph: Graph, node: Node, after: Node) -> None:
    """``node`` makes what ``after`` made; ``after`` goes."""
    node.outputs[0] = after.outputs[0]
    graph.nodes.remove(after)
    # The product may have to move behind nothing: its inputs were ready before.


def _scale_weight(model: Model, graph: Graph, node: Node, weight: npt.NDArray[np.generic], scale: Vector) -> None:
    if not (scale != 1.0).any():
        return
    w = weight.astype(np.float64)
    if node.op_type == "Conv":
        w *= scale.reshape(-1, *[1] * (w.ndim - 1))
    elif node.op_type == "ConvTranspose":
        # [C_in, C_out/groups, ...]: channel of group g, column m is g * C_out/groups + m.
        groups = node.integer("group", 1)
        grouped = w.reshape(groups, w.shape[0] // groups, w.shape[1], *w.shape[2:])
        w = (grouped * scale.reshape(groups, 1, w.shape[1], *[1] * (w.ndim - 2))).reshape(w.shape)
    elif node.op_type == "Gemm" and node.integer("transB", 0):
        w *= scale.reshape(-1, 1)
    else:
        w *= scale
    node.inputs[1] = model.add_constant(graph, f"{node.name}/weight", w.astype(np.float32))


def _matmul_bias(model: Model, graph: Graph, node: Node, bias_node: Node | None, after: Node, affine: Affine) -> None:
    old = np.zeros(len(affine.scale))
    if bias_node is not None:
        at = 1 if bias_node.inputs[0] == node.outputs[0] else 0
        array = model.array(bias_node.inputs[at])
        assert array is not None
        old = np.broadcast_to(array.astype(np.float64).reshape(-1), affine.scale.shape)
    bias = old * affine.scale + affine.shift
    if bias_node is None and not bias.any():
        _take_over(model, graph, node, after)
        return
    name = model.add_constant(graph, f"{node.name}/bias", bias.astype(np.float32))
    if bias_node is not None:
        bias_node.inputs = [node.outputs[0], name]
        _take_over(model, graph, bias_node, after)
        return
    add = make_node("Add", [node.outputs[0], name], list(after.outputs), after.name)
    graph.nodes[graph.nodes.index(after)] = add


def _bias_add(model: Model, node: Node, channels: int) -> Node | None:
    """The Add behind a MatMul that adds one constant to each column."""
    add = model.only_reader(node.outputs[0])
    if add is None or add.op_type != "Add" or not add.standard or add.inputs[0] == add.inputs[1]:
        return None
    other = model.array(add.inputs[1] if add.inputs[0] == node.outputs[0] else add.inputs[0])
    if other is None or other.size not in (1, channels) or (other.ndim and other.shape[-1] != other.size):
        return None
    return add


def _affine_of(model: Model, node: Node, value: str, rank: int | None, axis: int, channels: int) -> Affine | None:
    if node.op_type == "BatchNormalization":
        return _batchnorm(model, node, rank, axis, channels)
    if node.op_type not in ("Mul", "Div", "Add", "Sub") or node.inputs.count(value) != 1:
        return None
    first = node.inputs[0] == value
    constant = model.array(node.inputs[1 if first else 0])
    if constant is None or constant.dtype != np.float32:
        return None
    c = per_channel(constant, rank, axis, channels)
    if c is None:
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    if node.op_type == "Mul":
        return Affine(c, zero)
    if node.op_type == "Add":
        return Affine(one, c)
    if node.op_type == "Sub":
        return Affine(one, -c) if first else Affine(-one, c)
    return Affine(1.0 / c, zero) if first and (c != 0).all() else None


def _batchnorm(model: Model, node: Node, rank: int | None, axis: int, channels: int) -> Affine | None:
    if node.integer("training_mode", 0) or (rank is None and axis != 1) or (rank is not None and axis % rank != 1):
        return None
    parameters = [model.array(name) for name in node.inputs[1:5]]
    if any(p is None or p.size != channels for p in parameters):
        return None
    gamma, beta, mean, variance = (np.asarray(p, dtype=np.float64) for p in parameters)
    scale = gamma / np.sqrt(variance + float(node.attribute("epsilon", 1e-5)))  # type: ignore[arg-type]
    return Affine(scale, beta - mean * scale)


def per_channel(constant: npt.NDArray[np.generic], rank: int | None, axis: int, channels: int) -> Vector | None:
    """``constant`` as [channels] if it only varies along ``axis`` of a tensor of ``rank``; else None.

    An ``axis`` of -1 needs no rank.
    """
    if constant.size == 1:
        if (rank is not None and constant.ndim > rank) or (rank is None and constant.ndim > 1):
            return None  # it would add dimensions
        return np.full(channels, float(constant.reshape(-1)[0].item()))
    if constant.size != channels or (rank is not None and constant.ndim > rank):
        return None
    if rank is None and axis != -1:
        return None
    from_right = 1 if axis == -1 else (rank or 0) - axis
    if from_right > constant.ndim or constant.shape[constant.ndim - from_right] != channels:
        return None
    return constant.astype(np.float64).reshape(-1)


def _conv(model: Model, node: Node, shape: tuple[int, ...]) -> tuple[int, int, int | None]:
    return 1, shape[0], len(shape)


def _conv_transpose(model: Model, node: Node, shape: tuple[int, ...]) -> tuple[int, int, int | None]:
    return 1, shape[1] * node.integer("group", 1), len(shape)


def _gemm(model: Model, node: Node, shape: tuple[int, ...]) -> tuple[int, int, int | None]:
    bias = model.array(node.input(2)) if node.input(2) else None
    usable = node.attribute("alpha", 1.0) == 1.0 and node.attribute("beta", 1.0) == 1.0
    channels = shape[0 if node.integer("transB", 0) else 1]
    if not usable or (node.input(2) and (bias is None or bias.shape != (channels,))):
        return 1, 0, 2
    return 1, channels, 2


def _matmul(model: Model, node: Node, shape: tuple[int, ...]) -> tuple[int, int, int | None]:
    rank = model.rank(node.outputs[0])
    return (-1, shape[-1], rank) if len(shape) == 2 else (-1, 0, rank)


#: op_type -> (channel axis of the output, channels (0: cannot fold), rank of the output).
_PRODUCTS: Final[MappingProxyType[str, Callable[[Model, Node, tuple[int, ...]], tuple[int, int, int | None]]]] = (
    MappingProxyType({"Conv": _conv, "ConvTranspose": _conv_transpose, "Gemm": _gemm, "MatMul": _matmul})
)

#: The operators that an affine node folds into.
FOLDS_AFFINE: Final = frozenset(_PRODUCTS)
