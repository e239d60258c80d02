# SPDX-License-Identifier: Apache-2.0
"""What ``wia-quant export model.tflite`` reads."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from wia_quant.errors import UsageError
from wia_quant.tflite.convert import to_onnx


def read_to_onnx(what: str, shapes: Sequence[str]) -> onnx.ModelProto:
    """The quantized model of a .tflite file, as it is.

    Raises:
        UsageError: shapes are given; the file has them.
        ModelError: the file cannot be read.
    """
    if shapes:
        raise UsageError("a .tflite file has its shapes; leave --shape out")
    return to_onnx(what)
