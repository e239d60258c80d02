# SPDX-License-Identifier: Apache-2.0
"""Keras models for post-training quantization and for ``wia-quant export``: in memory, or files that Keras wrote."""

from __future__ import annotations

from collections.abc import Sequence

import onnx

from wia_quant.errors import ExportError, UsageError
from wia_quant.keras.export import is_trained
from wia_quant.keras.files import read
from wia_quant.keras.trace import Keras
from wia_quant.keras.walk import to_onnx
from wia_quant.trained import export_trained


def model_to_onnx(model: Keras, data: object) -> onnx.ModelProto:
    """The float model as ONNX; its inputs lie as in Keras, so ``data`` is what the Keras model takes.

    Raises:
        ExportError: a layer that has no ONNX form here, or a model that is quantized already.
    """
    proto = to_onnx(model)
    if is_trained(proto):
        raise ExportError(
            f"model '{model.name}' has fake quantizers: it is quantized already; wia_quant.keras.export writes it"
        )
    return proto


def read_to_onnx(what: str, shapes: Sequence[str]) -> onnx.ModelProto:
    """A .keras or .h5 file, or a SavedModel folder, as ONNX; a trained (quantized) one as it was trained.

    Raises:
        UsageError: shapes are given; the file has them.
        ModelError: the file cannot be read.
    """
    if shapes:
        raise UsageError("a file of Keras has its shapes; leave --shape out")
    proto = read(what)
    return export_trained(proto, source="keras").model if is_trained(proto) else proto
