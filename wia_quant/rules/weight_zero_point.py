# SPDX-License-Identifier: Apache-2.0
"""Weights are symmetric: zero point 0."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from wia_quant.qdq import ModelView
from wia_quant.rules.base import Place, Rule, Severity, at


def find(model: ModelView) -> Iterator[Place]:
    """Signed constant tensors with a zero point other than 0, and unsigned ones with one off the middle."""
    middles: dict[int, int] = {TensorProto.UINT8: 128, TensorProto.UINT4: 8}
    for view, tensor in model.tensors():
        if tensor.levels is None or tensor.zero_point is None or tensor.levels.ndim < 2:
            continue
        middle = middles.get(tensor.elem_type, 0)
        off = tensor.zero_point[tensor.zero_point != middle]
        if off.size:
            yield at(
                view,
                tensor.node,
                f"weight zero point {off.reshape(-1)[0]} ({off.size} of {tensor.zero_point.size} are not {middle})",
                "quantize weights symmetrically",
                tensor=tensor.name,
            )


RULE = Rule("weights are symmetric", Severity.ERROR, find)
