# SPDX-License-Identifier: Apache-2.0
"""Per-axis weight scales lie along the output channels."""

from __future__ import annotations

from collections.abc import Iterator

from wia_quant.qdq import ModelView, attribute
from wia_quant.rules.base import Place, Rule, Severity, at
from wia_quant.rules.products import products


def find(model: ModelView) -> Iterator[Place]:
    """Conv 0; ConvTranspose 1; Gemm 0 with transB = 1, else 1; MatMul the last."""
    for product in products(model):
        w = product.w
        if not w.per_axis or w.levels is None or attribute(w.node, "block_size", 0):
            continue
        axis = w.axis % w.levels.ndim if -w.levels.ndim <= w.axis < w.levels.ndim else w.axis
        # Grouped ConvTranspose keeps output channels on axes 0 (by group) and 1; a scale along 1 is shared by groups.
        wanted = 1 if product.axis is None else product.axis
        if axis != wanted:
            yield at(
                product.view,
                product.node,
                f"weight scales lie along axis {w.axis}; its output channels are axis {wanted}",
                f"quantize the weight along axis {wanted}",
                tensor=w.name,
            )


RULE = Rule("per-axis weight scales lie along the output channels", Severity.ERROR, find)
