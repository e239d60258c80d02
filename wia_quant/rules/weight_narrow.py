# SPDX-License-Identifier: Apache-2.0
"""int8 weights stay in [-127, 127]."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from wia_quant.qdq import ModelView
from wia_quant.rules.base import Place, Rule, Severity, at


def find(model: ModelView) -> Iterator[Place]:
    """Weights that use -128, whose negation does not exist on symmetric hardware."""
    for view, tensor in model.tensors():
        if tensor.levels is None or tensor.elem_type != TensorProto.INT8 or tensor.levels.ndim < 2:
            continue
        n = int((tensor.levels == -128).sum())
        if n:
            message = f"{n} of {tensor.levels.size} levels are -128"
            yield at(view, tensor.node, message, "quantize weights with the narrow range", tensor=tensor.name)


RULE = Rule("int8 weights are narrow, [-127, 127]", Severity.NOTE, find)
