# SPDX-License-Identifier: Apache-2.0
"""Tensors and inputs are no larger than the target takes."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import helper

from wia_quant.rules.base import Place, Severity, at
from wia_quant.rules.target_case import TargetCase, TargetRule


def find(case: TargetCase) -> Iterator[Place]:
    """Integer tensors of too many dimensions or bytes, batches that are too large, shapes that are open."""
    initialized = {t.name for t in case.model.model.graph.initializer}
    for info in case.model.model.graph.input:
        shape = case.shape(info.name)
        reason = None if shape is None else case.target.reason_against_input(info.name, shape)
        if reason is not None and info.name not in initialized:
            yield Place(reason, "fix the shape of the float model's inputs and calibrate again", tensor=info.name)
    for view, tensor in case.model.tensors():
        shape = case.shape(tensor.node.input[0])
        if shape is None or tensor.elem_type == 0:
            continue
        width = helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
        reason = case.target.reason_against_tensor(tensor.source, shape, width)
        if reason is not None:
            remedy = "split it, or exclude the operators around it"
            yield at(view, tensor.quantize_node or tensor.node, reason, remedy, tensor=tensor.source)


RULE = TargetRule("tensors and inputs are no larger than the target takes", Severity.ERROR, find)
