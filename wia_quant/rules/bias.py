# SPDX-License-Identifier: Apache-2.0
"""A bias is int32 with scale = input_scale * weight_scale and zero point 0."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import TensorProto

from wia_quant.qdq import ModelView
from wia_quant.rules.base import Place, Rule, Severity, at
from wia_quant.rules.products import products

#: The product of two float32 scales, rounded to float32, may be a few units in the last place off another rounding.
_TOLERANCE = 4 * float(np.finfo(np.float32).eps)


def find(model: ModelView) -> Iterator[Place]:
    """Quantized biases of another type, scale or zero point; float biases of integer products are left to `missing`."""
    for product in products(model):
        bias = product.view.dequantized.get(product.bias_name)
        if bias is None or bias.levels is None:
            continue
        if bias.elem_type != TensorProto.INT32:
            yield at(product.view, product.node, "the bias is not int32", "store it as int32", tensor=bias.name)
            continue
        if bias.zero_point is not None and bias.zero_point.any():
            yield at(product.view, product.node, "the bias has a zero point", "make it 0", tensor=bias.name)
        x, w = product.x, product.w
        if x is None or x.scale is None or x.scale.size != 1 or w.scale is None or bias.scale is None:
            continue
        if w.scale.ndim > 1:
            continue
        wanted = x.scale.astype(np.float64).reshape(-1) * w.scale.astype(np.float64).reshape(-1)
        found = bias.scale.astype(np.float64).reshape(-1)
        if product.node.op_type == "ConvTranspose" and found.size % wanted.size == 0:
            wanted = np.tile(wanted, found.size // wanted.size)  # a scale for the same column of every group
        if found.size not in (1, wanted.size):
            message = f"the bias has {found.size} scales, the weight {wanted.size}"
            yield at(product.view, product.node, message, "one for each output channel", tensor=bias.name)
            continue
        # A scale of 0 or NaN is the rule scale-value's; compared as products, it raises no second alarm.
        off = np.abs(found - wanted) - _TOLERANCE * np.abs(wanted)
        if off.max() > 0:
            c = int(off.argmax())
            value = found.reshape(-1)[c if found.size > 1 else 0]
            yield at(
                product.view,
                product.node,
                f"bias scale[{c}] is {value:.6g}; input_scale * weight_scale is {wanted[min(c, wanted.size - 1)]:.6g}",
                "quantize the bias with the product of the two scales",
                tensor=bias.name,
            )


RULE = Rule("a bias is int32 at input_scale * weight_scale, zero point 0", Severity.ERROR, find)
