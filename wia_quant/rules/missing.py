# SPDX-License-Identifier: Apache-2.0
"""Where a weight is quantized, so is the activation it meets, and its bias."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import NodeProto

from wia_quant.qdq import GraphView, ModelView
from wia_quant.rules.base import Place, Rule, Severity, at
from wia_quant.rules.moved import MOVERS
from wia_quant.rules.products import products


def find(model: ModelView) -> Iterator[Place]:
    """Products that run in float although their weight is 8-bit, in a model that has 8-bit activations at all."""
    if not any(t.quantize_node is not None and not t.is_constant for _, t in model.tensors()):
        return  # a weight-only model
    for product in products(model):
        if product.x is None:
            name = product.node.input[0]
            mover = _moved(product.view, name)
            if mover is None:
                message = f"its weight is quantized, its input '{name}' is not: it runs in float"
                remedy = "quantize the input, or keep the weight float"
            else:
                message = f"its input '{name}' is quantized before {product.view.where(mover)}, not behind it"
                remedy = "put a pair of the same scale behind it too"
            yield at(product.view, product.node, message, remedy, tensor=name)
        elif product.bias_name and product.view.constant(product.bias_name) is not None:
            message = f"its bias '{product.bias_name}' is float"
            yield at(
                product.view,
                product.node,
                message,
                "store it as int32 at input_scale * weight_scale",
                tensor=product.bias_name,
            )


def _moved(view: GraphView, name: str) -> NodeProto | None:
    """The last of the movers between a DequantizeLinear and ``name``; None where anything else stands there."""
    last = node = view.producers.get(name)
    while node is not None and node.op_type in (*MOVERS, "Pad"):
        if node.input[0] in view.dequantized:
            return last
        node = view.producers.get(node.input[0])
    return None


RULE = Rule("an integer product has integers on every side", Severity.NOTE, find)
