# SPDX-License-Identifier: Apache-2.0
"""The opset has the forms of QuantizeLinear and DequantizeLinear that the model uses."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from wia_quant.qdq import DEQUANTIZE, QUANTIZE, ModelView, attribute
from wia_quant.rules.base import Place, Rule, Severity, at

_PER_AXIS, _WIDE, _FIRST = 13, 21, 10
_WIDE_TYPES: dict[int, str] = {
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
    TensorProto.INT4: "int4",
    TensorProto.UINT4: "uint4",
}


def find(model: ModelView) -> Iterator[Place]:
    """Per-axis scales before opset 13; int16, int4 and blocks before 21; any Q/DQ before 10."""
    for view, node in model.nodes():
        if node.op_type not in (QUANTIZE, DEQUANTIZE):
            continue
        needs, what = _FIRST, node.op_type
        scale = view.constant(node.input[1])
        if scale is not None and scale.size > 1:
            needs, what = _PER_AXIS, "a per-axis scale"
        tensor = view.initializers.get(node.input[2]) if len(node.input) > 2 else None
        if tensor is not None and tensor.data_type in _WIDE_TYPES:
            needs, what = _WIDE, _WIDE_TYPES[tensor.data_type]
        if attribute(node, "block_size", 0):
            needs, what = _WIDE, "a blocked scale"
        if model.opset < needs:
            yield at(view, node, f"{what} needs opset {needs}; the model has {model.opset}", f"raise it to {needs}")


RULE = Rule("the opset has every form of Q and DQ that is used", Severity.ERROR, find)
