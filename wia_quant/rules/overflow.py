# SPDX-License-Identifier: Apache-2.0
"""No accumulator can leave int32, and no bias was saturated into it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from wia_quant.qdq import ModelView
from wia_quant.rules.base import Place, Rule, Severity, at
from wia_quant.rules.products import products

_LIMIT = 2**31 - 1
_WIDTH: dict[int, int] = {
    TensorProto.INT8: 255,
    TensorProto.UINT8: 255,
    TensorProto.INT16: 65535,
    TensorProto.UINT16: 65535,
}


def find(model: ModelView) -> Iterator[Place]:
    """The largest |acc| that any input can give: 255 * depth * max|w - zp| + |bias|, per tensor."""
    for product in products(model):
        levels, zero_point = product.w.levels, product.w.zero_point
        if levels is None or zero_point is None or levels.size == 0 or product.x is None:
            continue
        bias = product.view.dequantized.get(product.bias_name)
        bias_levels = None if bias is None else bias.levels
        bias_max = 0 if bias_levels is None else int(np.abs(bias_levels).max(initial=0))
        if bias_max >= _LIMIT:
            message = "a bias level stands at the end of int32: it was saturated"
            yield at(product.view, product.node, message, "raise that channel's weight scale", tensor=product.bias_name)
            continue
        largest = int(np.abs(levels).max()) + int(np.abs(zero_point).max())
        width = _WIDTH.get(product.x.elem_type, 255)
        bound = width * product.depth * largest + bias_max
        if bound > _LIMIT and _exact_bound(product.axis, levels, width) + bias_max > _LIMIT:
            message = f"an input exists whose sum of {product.depth} products leaves int32"
            yield at(product.view, product.node, message, "raise the weight scale or split the operator")


def _exact_bound(axis: int | None, levels: npt.NDArray[np.int64], width: int) -> int:
    if axis is None:
        return width * int(np.abs(levels).sum())
    channels = np.moveaxis(levels, axis, 0).reshape(levels.shape[axis], -1)
    return width * int(np.abs(channels).sum(axis=1).max())


RULE = Rule("no accumulator or bias leaves int32", Severity.ERROR, find)
