# SPDX-License-Identifier: Apache-2.0
"""Makes a trained model evaluate as its file does in libwia: biases and all else on their grids."""

from __future__ import annotations

from wia_quant.keras.emit.table import key_of
from wia_quant.keras.frameworks import require
from wia_quant.keras.steps import split
from wia_quant.keras.trace import Keras, framework_of, trace
from wia_quant.keras.walk import is_known
from wia_quant.keras.wrappers import UNWRAP


def round_biases(model: Keras) -> Keras:
    """The same model, evaluating (``training=False``) as its file does; its weights stay as they are.

    What ``quantize_model`` and ``load`` return does so already, as do all Keras 3 models. What
    tensorflow-model-optimization made needs it: call it after training, before the last evaluation.

    Raises:
        CalibrationError: a fake quantizer that saw no data.
    """
    split(trace(model, is_known), key_of, UNWRAP)
    if framework_of(model) == "tf_keras":
        require("wia_quant.keras.tf_keras.model").linked(model)
    return model
