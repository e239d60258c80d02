# SPDX-License-Identifier: Apache-2.0
"""Activations are on grids that the target takes."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import helper

from wia_quant.affine import INT16_SYMMETRIC, QType
from wia_quant.rules.base import Place, Severity, at
from wia_quant.rules.target_case import TargetCase, TargetRule
from wia_quant.targets.target import Target


def find(case: TargetCase) -> Iterator[Place]:
    """Activations of another type, or with a zero point where the target wants a symmetric grid."""
    grids = _grids(case.target)
    for view, tensor in case.model.tensors():
        if tensor.is_constant or tensor.zero_point is None or tensor.elem_type == 0:
            continue
        if any(_fits(grid, tensor.elem_type, int(tensor.zero_point.reshape(-1)[0])) for grid in grids):
            continue
        kind = helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        has = ", ".join(g.name for g in grids) or "no integer activations"
        yield at(
            view,
            tensor.quantize_node or tensor.node,
            f"it is {kind} with zero point {tensor.zero_point.reshape(-1)[0]}; target {case.target.name} takes {has}",
            "calibrate the float model again with --target",
            tensor=tensor.source,
        )


def _grids(target: Target) -> list[QType]:
    eight = (target.activations, *target.other_activations) if "w8a8" in target.schemes else ()
    return list(dict.fromkeys([*eight, *([INT16_SYMMETRIC] if "w8a16" in target.schemes else [])]))


def _fits(grid: QType, elem_type: int, zero_point: int) -> bool:
    same = helper.np_dtype_to_tensor_dtype(grid.dtype) == elem_type
    return bool(same) and (not grid.symmetric or zero_point == grid.middle)


RULE = TargetRule("activations are on grids that the target takes", Severity.ERROR, find)
