# SPDX-License-Identifier: Apache-2.0
"""Weights are symmetric: zero point 0."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from wia_quant.qdq import ModelView
from wia_quant.rules.base import Place, Rule, Severity, at
from wia_quant.rules.products import products


def find(model: ModelView) -> Iterator[Place]:
    """Signed weights of products with a zero point other than 0, unsigned ones with one off the middle.

    Constants that are added or multiplied elementwise are activations, with a zero point of their own.
    """
    middles: dict[int, int] = {TensorProto.UINT8: 128, TensorProto.UINT4: 8}
    seen: set[str] = set()
    for product in products(model):
        w = product.w
        if w.zero_point is None or w.node.input[0] in seen:
            continue
        seen.add(w.node.input[0])
        middle = middles.get(w.elem_type, 0)
        off = w.zero_point[w.zero_point != middle]
        if off.size:
            yield at(
                product.view,
                product.node,
                f"weight zero point {off.reshape(-1)[0]} ({off.size} of {w.zero_point.size} are not {middle})",
                "quantize weights symmetrically",
                tensor=w.name,
            )


RULE = Rule("weights are symmetric", Severity.ERROR, find)
