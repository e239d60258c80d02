# SPDX-License-Identifier: Apache-2.0
"""Weights are on grids that the target takes."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto, helper

from wia_quant.affine import QType
from wia_quant.qdq import Dequantized
from wia_quant.rules.base import Place, Severity, at
from wia_quant.rules.products import products
from wia_quant.rules.target_case import TargetCase, TargetRule

_FOUR_BITS = (TensorProto.INT4, TensorProto.UINT4)


def find(case: TargetCase) -> Iterator[Place]:
    """Weights of another type, with zero points, or with levels outside the grid."""
    target = case.target
    grids = (target.weights, *target.other_weights)
    for product in products(case.model):
        w = product.w
        if w.elem_type in _FOUR_BITS and "w4" in target.schemes:
            continue
        if any(_fits(grid, w) for grid in grids):
            continue
        assert w.levels is not None  # a product's weight is constant
        zero_points = "" if w.zero_point is None or not w.zero_point.any() else " with zero points"
        yield at(
            product.view,
            product.node,
            f"its weight is {helper.tensor_dtype_to_np_dtype(w.elem_type).name}{zero_points}, levels"
            f" {w.levels.min()} to {w.levels.max()}; target {target.name} takes {', '.join(g.name for g in grids)}",
            "calibrate the float model again with --target",
            tensor=w.name,
        )


def _fits(grid: QType, w: Dequantized) -> bool:
    if helper.np_dtype_to_tensor_dtype(grid.dtype) != w.elem_type or w.levels is None or w.zero_point is None:
        return False
    within = w.levels.size == 0 or (w.levels.min() >= grid.qmin and w.levels.max() <= grid.qmax)
    return bool(within and (w.zero_point == grid.middle).all())


RULE = TargetRule("weights are on grids that the target takes", Severity.ERROR, find)
