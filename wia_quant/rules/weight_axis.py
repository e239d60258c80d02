# SPDX-License-Identifier: Apache-2.0
"""Per-axis weight scales lie along the output channels."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto

from wia_quant.qdq import ModelView, attribute, view_model
from wia_quant.rules.base import Place, Rule, Severity, at
from wia_quant.rules.products import products


def find(model: ModelView) -> Iterator[Place]:
    """Conv 0; ConvTranspose 1; Gemm 0 with transB = 1, else 1; MatMul the last; never counted from the end."""
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
    for view, tensor in model.tensors():
        if tensor.levels is not None and tensor.axis < 0:
            fits = -tensor.levels.ndim <= tensor.axis
            message = f"its axis is {tensor.axis}, counted from the end"
            remedy = f"write {tensor.axis + tensor.levels.ndim}" if fits else "set the axis of the output channels"
            yield at(view, tensor.node, message, remedy, tensor=tensor.name, fixable=fits, severity=Severity.NOTE)


def fix(model: ModelProto) -> int:
    """Writes axes of constants as they are counted from the front."""
    changed = 0
    for _, tensor in view_model(model).tensors():
        if tensor.levels is None or not -tensor.levels.ndim <= tensor.axis < 0:
            continue
        for a in tensor.node.attribute:
            if a.name == "axis":
                a.i = tensor.axis + tensor.levels.ndim
                changed += 1
    return changed


RULE = Rule("per-axis weight scales lie along the output channels", Severity.ERROR, find, fix)
