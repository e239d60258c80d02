# SPDX-License-Identifier: Apache-2.0
"""Weights have no more scales than the target takes."""

from __future__ import annotations

from collections.abc import Iterator

from wia_quant.qdq import attribute
from wia_quant.rules.base import Place, Severity, at
from wia_quant.rules.products import products
from wia_quant.rules.target_case import TargetCase, TargetRule


def find(case: TargetCase) -> Iterator[Place]:
    """Scales by channel for a target that has one a tensor; blocks for one without 4-bit weights."""
    target = case.target
    for product in products(case.model):
        scale = product.w.scale
        if scale is None or scale.size == 1:
            continue
        if attribute(product.w.node, "block_size", 0):
            if "w4" in target.schemes:
                continue
            message = f"its weight has {scale.size} scales by block; target {target.name} has no scheme with blocks"
        elif not target.per_channel:
            message = f"its weight has {scale.size} scales; target {target.name} takes one a tensor"
        else:
            continue
        remedy = "calibrate the float model again with --target"
        yield at(product.view, product.node, message, remedy, tensor=product.w.name)


RULE = TargetRule("weights have no more scales than the target takes", Severity.ERROR, find)
