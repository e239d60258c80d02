# SPDX-License-Identifier: Apache-2.0
"""int8 models of TFLite (LiteRT) in the one format."""

from wia_quant.tflite.convert import to_onnx
from wia_quant.tflite.reader import read_model

__all__ = ["read_model", "to_onnx"]
