# SPDX-License-Identifier: Apache-2.0
"""int8 weights stay in [-127, 127]."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from wia_quant.qdq import ModelView
from wia_quant.rules.base import Place, Rule, Severity, at
from wia_quant.rules.products import products


def find(model: ModelView) -> Iterator[Place]:
    """Weights of products that use -128, whose negation does not exist on symmetric hardware."""
    seen: set[str] = set()
    for product in products(model):
        w = product.w
        if w.levels is None or w.elem_type != TensorProto.INT8 or w.node.input[0] in seen:
            continue
        seen.add(w.node.input[0])
        n = int((w.levels == -128).sum())
        if n:
            message = f"{n} of {w.levels.size} levels are -128"
            remedy = "quantize weights with the narrow range"
            yield at(product.view, product.node, message, remedy, tensor=w.name)


RULE = Rule("int8 weights are narrow, [-127, 127]", Severity.NOTE, find)
