# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training of Keras models, tf_keras and Keras 3, and their export to the one format."""

from typing import TYPE_CHECKING, Any, Final

from wia_quant.keras.frameworks import require, require_any

require_any()

from wia_quant.keras.biases import round_biases  # noqa: E402  # only where there is a Keras
from wia_quant.keras.calibration import from_calibration  # noqa: E402
from wia_quant.keras.export import Exported, export  # noqa: E402
from wia_quant.keras.files import load  # noqa: E402
from wia_quant.keras.observing import observe  # noqa: E402
from wia_quant.keras.quantize import freeze_batch_norm, quantize_model  # noqa: E402
from wia_quant.keras.walk import to_onnx  # noqa: E402

if TYPE_CHECKING:
    from wia_quant.keras.tf_keras.scheme import WiaQuantizeScheme, quantize_annotate_layer, quantize_scope

#: What needs tensorflow-model-optimization is imported when it is first used.
_TF_KERAS: Final = ("WiaQuantizeScheme", "quantize_annotate_layer", "quantize_scope")

__all__ = [
    "Exported",
    "WiaQuantizeScheme",
    "export",
    "freeze_batch_norm",
    "from_calibration",
    "load",
    "observe",
    "quantize_annotate_layer",
    "quantize_model",
    "quantize_scope",
    "round_biases",
    "to_onnx",
]


def __getattr__(name: str) -> Any:  # Any: what a module attribute is; PEP 562
    if name not in _TF_KERAS:
        raise AttributeError(f"module 'wia_quant.keras' has no attribute '{name}'")
    return getattr(require("wia_quant.keras.tf_keras.scheme"), name)
