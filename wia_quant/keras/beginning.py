# SPDX-License-Identifier: Apache-2.0
"""Integers of a file -> the weights and biases of a layer that is to train: those whose grids give these integers.

What a BatchNorm behind the layer has put into the file is taken out again: ``kernel = levels * scale / gain``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx

from wia_quant.affine import INT8_NARROW, choose_qparams_per_axis
from wia_quant.builder import flattened_rows
from wia_quant.keras.emit.products import batch_norm_of
from wia_quant.keras.steps import Step
from wia_quant.keras.values import array
from wia_quant.keras.weights import WEIGHTS, summed_axes
from wia_quant.qdq import Dequantized, GraphView, view_model

Floats = npt.NDArray[np.float64]
Scales = npt.NDArray[np.float32]

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
    levels: npt.NDArray[np.int64]
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


def begin_weight(step: Step, file: Integers, unflattened: Any) -> int:
    """Gives the layer of ``step`` the weight that the integers stand for.

    The scale of a channel in training is that of its largest weight, which has level 127; one that the file has put
    on a lower level is put back on it: a change of one weight, mostly by a step.

    Args:
        step: of a trace of the model that is to train.
        file: what to begin with.
        unflattened: the tensor before the flattening that the step's input went through; None where it did not.

    Returns:
        How many channels had their largest weight put back.
    """
    weight = WEIGHTS[step.key]
    name = weight.attribute if hasattr(step.layer, weight.attribute) else weight.legacy
    variable = getattr(step.layer, name)
    before = array(variable).astype(np.float32)
    along = [n if i in {a % before.ndim for a in weight.channels} else 1 for i, n in enumerate(before.shape)]
    axes = summed_axes(before.ndim, weight.channels)
    gain = np.ones(along, np.float32)
    if step.batch_norm is not None:
        gain = batch_norm_of(step.batch_norm).gain.reshape(along)
    scale = np.broadcast_to(file.scale.reshape(-1), (gain.size,)).reshape(along)
    levels = _in_kept_order(step, file, unflattened, before.shape) * np.sign(gain).astype(np.int64)
    levels, n_raised = _with_largest(levels, before, scale, gain, axes)
    live = (gain != 0) & (levels != 0).any(axis=axes, keepdims=True)
    safe = np.where(live, np.abs(gain), np.float32(1))
    values = (levels * scale.astype(np.float64) / safe).astype(np.float32)
    values = np.where(np.abs(levels) == INT8_NARROW.qmax, np.sign(levels) * _largest(scale, safe), values)
    variable.assign(np.where(live, values, before).astype(np.float32))
    return n_raised


def _in_kept_order(step: Step, file: Integers, unflattened: Any, shape: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """The levels as Keras keeps the weight: the inverse of what emit/products.py does."""
    if step.key == "Embedding":
        return file.levels
    if step.key.startswith("Depthwise"):
        channels = file.levels[:, 0].reshape(*shape[-2:], *shape[:-2])
        return np.moveaxis(channels, (0, 1), (-2, -1))
    if step.key != "Dense":
        return np.moveaxis(file.levels, (0, 1), (-1, -2))
    turned = any(a.name == "transB" and a.i for a in file.node.attribute)
    levels = file.levels.T if turned else file.levels
    if unflattened is None:
        return levels
    kept = np.empty_like(levels)
    kept[flattened_rows(unflattened)] = levels
    return kept


def _with_largest(
    levels: npt.NDArray[np.int64], before: Scales, scale: Scales, gain: Scales, axes: tuple[int, ...]
) -> tuple[npt.NDArray[np.int64], int]:
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
        folded = choose_qparams_per_axis(np.abs(near * gain).reshape(-1), INT8_NARROW, 0).scale.reshape(scale.shape)
        found = np.where(~done & (folded == scale), near, found)
        done |= folded == scale
    return found


def begin_bias(step: Step, bias: Floats) -> bool:
    """Gives the layer, or the BatchNorm behind it, the bias that the integers stand for.

    A BatchNorm takes it in its beta; without one the layer's own bias does, else the moving mean.

    Returns:
        Whether there was a place for it.
    """
    own, norm = step.layer.bias, step.batch_norm
    if norm is None:
        if own is not None:
            own.assign(bias.astype(np.float32))
        return own is not None
    for _ in range(_ROUNDS):
        fold = batch_norm_of(norm)
        missing = bias - fold.shift(None if own is None else array(own)).astype(np.float64)
        gain = np.where(fold.gain == 0, np.inf, fold.gain.astype(np.float64))
        for variable, change in ((norm.beta, missing), (own, missing / gain), (norm.moving_mean, -missing / gain)):
            if variable is not None:
                variable.assign((array(variable) + change).astype(np.float32))
                break
    return True


#: The second makes good what float32 lost in the first.
_ROUNDS: Final = 2
