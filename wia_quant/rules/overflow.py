# SPDX-License-Identifier: Apache-2.0
"""No accumulator can leave int32, and no bias was saturated into it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as cartesian

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from wia_quant.qdq import ModelView, attribute
from wia_quant.rules.base import Place, Rule, Severity, at
from wia_quant.rules.products import Product, products

Levels = npt.NDArray[np.int64]

_ENDS = np.iinfo(np.int32)


def find(model: ModelView) -> Iterator[Place]:
    """Channels for which levels of the input exist whose sum, bias included, is no int32."""
    for product in products(model):
        if product.x is None or product.x.zero_point is None or product.w.levels is None or product.w.levels.size == 0:
            continue
        bias = product.view.dequantized.get(product.bias_name)
        levels = None if bias is None else bias.levels
        if levels is not None and levels.size and (levels.max() == _ENDS.max or levels.min() == _ENDS.min):
            message = "a bias level stands at the end of int32: it was saturated"
            yield at(product.view, product.node, message, "raise that channel's weight scale", tensor=product.bias_name)
            continue
        ends = sums(product, np.zeros(1, np.int64) if levels is None else levels.reshape(-1))
        if ends is None:
            continue
        least, most = ends
        over = np.flatnonzero((least < _ENDS.min) | (most > _ENDS.max))
        if over.size:
            c = int(over[0])
            reached = int(most[c] if most[c] > _ENDS.max else least[c])
            message = (
                f"levels of its input exist whose sum of products and bias is {reached}, no int32"
                f" (channel {c}; {over.size} of {least.size} channels)"
            )
            yield at(product.view, product.node, message, "raise that channel's weight scale", tensor=product.w.name)


def sums(product: Product, bias: Levels) -> tuple[Levels, Levels] | None:
    """The least and the largest sum of each output channel over all levels of the input: both are reached.

    With ``lo <= x - zero_point <= hi``, the largest is ``hi * sum(w > 0) + lo * sum(w < 0) + bias``. Padding gives 0,
    which lies between. None where the types are not known.
    """
    x, w = product.x, product.w
    if x is None or x.zero_point is None or w.levels is None or w.zero_point is None:
        return None
    if x.elem_type == TensorProto.UNDEFINED:
        return None
    grid = np.iinfo(helper.tensor_dtype_to_np_dtype(x.elem_type))
    zero_point = int(x.zero_point.reshape(-1)[0])
    lo, hi = int(grid.min) - zero_point, int(grid.max) - zero_point
    offset = w.zero_point
    if offset.ndim == 1 and offset.size > 1:
        if not -w.levels.ndim <= w.axis < w.levels.ndim or w.levels.shape[w.axis] != offset.size:
            return None  # the rule axis-size says so
        shape = [1] * w.levels.ndim
        shape[w.axis] = -1
        offset = offset.reshape(shape)
    elif offset.size > 1:
        return None  # blocks: no integer sum goes across them
    rows = _rows(product.node, w.levels - offset, product.axis)  # [sums for one channel, channels, products]
    plus = np.where(rows > 0, rows, 0).sum(axis=2)
    minus = np.where(rows < 0, rows, 0).sum(axis=2)
    most = (hi * plus + lo * minus).max(axis=0)
    least = (lo * plus + hi * minus).min(axis=0)
    if bias.size not in (1, least.size):
        return None  # the rule `valid` says so
    return least + bias, most + bias


def _rows(node: NodeProto, levels: Levels, axis: int | None) -> Levels:
    """The weights that meet in one sum, [sums, channels, products]; only ConvTranspose has several sums a channel."""
    if node.op_type == "MatMul":  # [..., products, channels]; a vector is one channel
        stack = levels.reshape(1, -1, 1) if levels.ndim == 1 else levels.reshape(-1, *levels.shape[-2:])
        return np.asarray(stack.transpose(0, 2, 1))
    if node.op_type != "ConvTranspose":
        rows = np.moveaxis(levels, levels.ndim - 1 if axis is None else axis, 0)
        return rows.reshape(1, rows.shape[0], -1)
    groups = attribute(node, "group", 1)
    spatial = levels.shape[2:]
    by_group = levels.reshape(groups, levels.shape[0] // groups, levels.shape[1], *spatial)
    channels = np.moveaxis(by_group, 2, 1).reshape(groups * levels.shape[1], -1, *spatial)
    found = []
    for phase in cartesian(*(range(n) for n in _integers(node, "strides", len(spatial)))):
        # An output meets only the taps of one phase of the stride: k * dilation = phase (mod stride).
        taps = channels
        for i, (p, stride, dilation) in enumerate(
            zip(
                phase, _integers(node, "strides", len(spatial)), _integers(node, "dilations", len(spatial)), strict=True
            )
        ):
            taps = taps * _within(i, spatial, p, stride, dilation)
        found.append(taps.reshape(channels.shape[0], -1))
    return np.stack(found)


def _within(i: int, spatial: tuple[int, ...], phase: int, stride: int, dilation: int) -> Levels:
    shape = [1] * (2 + len(spatial))
    shape[2 + i] = spatial[i]
    met = np.arange(spatial[i], dtype=np.int64) * dilation % stride == phase
    return np.asarray(met.astype(np.int64).reshape(shape))


def _integers(node: NodeProto, name: str, count: int) -> list[int]:
    return next((list(a.ints) for a in node.attribute if a.name == name), [1] * count)


RULE = Rule("no accumulator or bias leaves int32", Severity.ERROR, find)
