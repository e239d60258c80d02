# SPDX-License-Identifier: Apache-2.0
"""What every exporter promises: the invariants of a QDQ model, checked before it leaves."""

from __future__ import annotations

import onnx

from wia_quant.errors import ExportError
from wia_quant.graph import MAX_PROTO_BYTES
from wia_quant.qdq import view_model


def verify(model: onnx.ModelProto) -> None:
    """Check that a finished model is valid ONNX and that no scale in it can misbehave.

    Raises:
        ExportError: it is not; a fault of the exporter, or of a float model that was not valid either.
    """
    if model.ByteSize() < MAX_PROTO_BYTES:
        try:
            onnx.checker.check_model(model, full_check=True)
        except Exception as error:  # ValidationError, InferenceError and bare RuntimeError alike
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ExportError(f"the quantized model does not pass the ONNX checker: {reason}") from None
    for _, tensor in view_model(model).tensors():
        if tensor.scale is None:
            raise ExportError(f"{tensor.name!r}: its scale is not a constant")
        if not bool((tensor.scale > 0).all()):
            raise ExportError(f"{tensor.name!r}: a scale is not positive")
