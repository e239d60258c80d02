# SPDX-License-Identifier: Apache-2.0
"""Where a weight is quantized, so is the activation it meets, and its bias."""

from __future__ import annotations

from collections.abc import Iterator

from wia_quant.qdq import ModelView
from wia_quant.rules.base import Place, Rule, Severity, at
from wia_quant.rules.products import products


def find(model: ModelView) -> Iterator[Place]:
    """Products that run in float although their weight is 8-bit, in a model that has 8-bit activations at all."""
    if not any(t.quantize_node is not None for _, t in model.tensors()):
        return  # a weight-only model
    for product in products(model):
        if product.x is None:
            message = f"its weight is quantized, its input '{product.node.input[0]}' is not: it runs in float"
            yield at(
                product.view,
                product.node,
                message,
                "quantize the input, or keep the weight float",
                tensor=product.node.input[0],
            )
        elif product.bias_name and product.view.constant(product.bias_name) is not None:
            message = f"its bias '{product.bias_name}' is float"
            yield at(
                product.view,
                product.node,
                message,
                "store it as int32 at input_scale * weight_scale",
                tensor=product.bias_name,
            )


RULE = Rule("an integer product has integers on every side", Severity.NOTE, find)
