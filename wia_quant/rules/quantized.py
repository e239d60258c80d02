# SPDX-License-Identifier: Apache-2.0
"""A model that is checked has something quantized in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from onnx import TensorProto

from wia_quant.qdq import ModelView, is_quantized
from wia_quant.rules.base import Place, Rule, Severity

#: The older forms of quantized models, whose operators are not QDQ.
_OTHER_FORMS: Final = ("QLinear", "ConvInteger", "MatMulInteger", "DynamicQuantize", "QGemm", "QAttention")


def find(model: ModelView) -> Iterator[Place]:
    """A float model, to which the other rules say nothing, or one in operator form (QLinearConv, ConvInteger)."""
    nodes = [node for view in model.graphs for node in view.graph.node]
    other = next((node for node in nodes if node.op_type.startswith(_OTHER_FORMS)), None)
    if other is not None:
        yield Place(
            f"'{other.name or other.output[0]}' is a {other.op_type}: the operator form; the format is QDQ",
            "quantize the float model with `wia-quant calibrate`",
        )
    elif not is_quantized(model.model) and not _has_halves(model):
        yield Place("nothing in it is quantized: it is a float model", "quantize it with `wia-quant calibrate`")


def _has_halves(model: ModelView) -> bool:
    """True for the format's fp16 scheme."""
    return any(t.data_type == TensorProto.FLOAT16 for view in model.graphs for t in view.graph.initializer)


RULE = Rule("something is quantized, in QDQ form", Severity.NOTE, find)
