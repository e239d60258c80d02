# SPDX-License-Identifier: Apache-2.0
"""The integers of the products of a file, and the weights that have them when a training begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx

from wia_quant.affine import INT8_NARROW, choose_qparams_per_axis
from wia_quant.qdq import Dequantized, GraphView, view_model

Floats = npt.NDArray[np.float64]
Scales = npt.NDArray[np.float32]
Levels = npt.NDArray[np.int64]

#: Operator of a product -> which of its inputs is the weight.
PRODUCTS: Final = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "MatMul": 1, "Gather": 0}


@dataclass(frozen=True)
class Integers:
    """A product of a file.

    Attributes:
        node: whose weight they are.
        levels: in ONNX' order.
        scale: [channels], or [] for all.
        bias: the reals of its levels, [channels]; None where it has none.
    """

    node: onnx.NodeProto
    levels: Levels
    scale: Scales
    bias: Floats | None


def integers_of(proto: onnx.ModelProto) -> dict[str, Integers]:
    """Name of a node -> its integers, for the products of a QDQ model whose weight is stored as them."""
    view = view_model(proto).graphs[0]
    found: dict[str, Integers] = {}
    for node in view.graph.node:
        at = PRODUCTS.get(node.op_type)
        weight = view.dequantized.get(node.input[at]) if at is not None else None
        if weight is not None and weight.levels is not None and weight.scale is not None:
            found[node.name] = Integers(node, weight.levels, weight.scale.astype(np.float32), _bias(view, node))
    return found


def _bias(view: GraphView, node: onnx.NodeProto) -> Floats | None:
    """Its own, or that of the Add behind a MatMul."""
    readers = view.consumers.get(node.output[0], ())
    if node.op_type == "MatMul" and len(readers) == 1 and readers[0].op_type == "Add":
        names = list(readers[0].input)
    else:
        names = [*node.input[2:]]
    stored = next((t for n in names if (t := view.dequantized.get(n)) is not None and t.levels is not None), None)
    return None if stored is None else _reals(stored)


def _reals(tensor: Dequantized) -> Floats:
    assert tensor.levels is not None
    assert tensor.scale is not None
    reals: Floats = tensor.levels.astype(np.float64) * tensor.scale.astype(np.float64)
    return reals.reshape(-1)


def weight_of(levels: Levels, scale: Scales, gain: Scales, before: Scales, axes: tuple[int, ...]) -> tuple[Scales, int]:
    """The weight that has ``levels`` when it is multiplied by ``gain`` and put on the grid of its largest.

    The scale of a channel in training is that of its largest weight, which has level 127; one that the file has put
    on a lower level is put back on it: a change of one weight, mostly by a step. A channel that is nothing but zeros,
    or is multiplied by 0, keeps its weights.

    Args:
        levels: of a file, in the order of ``before``.
        scale: of the file; like the others it broadcasts with ``before``.
        gain: what a BatchNorm behind the product multiplies it by; ones where there is none.
        before: the float weight that the file was made of.
        axes: those that share a scale.

    Returns:
        The weight, and how many channels had their largest put back.
    """
    levels, n_raised = _with_largest(levels * np.sign(gain).astype(np.int64), before, scale, gain, axes)
    live = (gain != 0) & (levels != 0).any(axis=axes, keepdims=True)
    safe = np.where(live, np.abs(gain), np.float32(1))
    values = (levels * scale.astype(np.float64) / safe).astype(np.float32)
    values = np.where(np.abs(levels) == INT8_NARROW.qmax, np.sign(levels) * _largest(scale, safe), values)
    return np.where(live, values, before).astype(np.float32), n_raised


def _with_largest(
    levels: Levels, before: Scales, scale: Scales, gain: Scales, axes: tuple[int, ...]
) -> tuple[Levels, int]:
    """The levels, in each channel that has a weight for it one at 127; how many channels had none.

    A scale that was raised so that a bias fits int32 has none at 127, and is left.
    """
    magnitude = np.abs(before * gain)
    spans = np.rint(magnitude.max(axis=axes, keepdims=True) / scale) == INT8_NARROW.qmax
    short = spans & (np.abs(levels).max(axis=axes, keepdims=True) < INT8_NARROW.qmax)
    largest = magnitude == magnitude.max(axis=axes, keepdims=True)
    top = INT8_NARROW.qmax * np.sign(before).astype(np.int64)
    return np.where(short & largest, top, levels), int(short.sum())


#: Neighbours of a float32 that are tried, in units in the last place.
_NEAR: Final = (0, 1, -1, 2, -2, 3, -3)


def _largest(scale: Scales, gain: Scales) -> Scales:
    """The weight at level 127 that gives the folded channel this very scale, or the nearest float32."""
    first = (INT8_NARROW.qmax * scale.astype(np.float64) / gain).astype(np.float32)
    found, done = first, np.zeros(first.shape, bool)
    for n in _NEAR:
        near = (first + np.float32(n) * np.spacing(first)).astype(np.float32)
        folded = choose_qparams_per_axis(np.abs(near * gain).reshape(-1), INT8_NARROW, 0).scale.reshape(near.shape)
        found = np.where(~done & (folded == scale), near, found)
        done |= folded == scale
    return found
