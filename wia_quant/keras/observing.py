# SPDX-License-Identifier: Apache-2.0
"""Ranges from samples before the first step of training, so that they are not those of one batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wia_quant.errors import CalibrationError, UsageError
from wia_quant.keras.trace import Keras
from wia_quant.keras.wrappers import UNWRAP

#: While samples are shown: the weight of the batch that passes; our fake quantizers of either Keras read it.
share: float | None = None


def observe(model: Keras, batches: Iterable[Any]) -> Keras:
    """The same model, its ranges the mean of those of the batches; nothing else in it changes.

    Values pass unrounded, Dropout and BatchNorm work as in inference.

    Args:
        model: what ``quantize_model`` returned. Quantizers of tensorflow-model-optimization's own schemes do not take
            part.
        batches: what the model is called with: arrays, or lists of arrays for several inputs.

    Raises:
        UsageError: a model without fake quantizers.
        CalibrationError: no batches.
    """
    global share
    layers = model._flatten_layers() if hasattr(model, "_flatten_layers") else model.layers
    if not any(type(layer).__name__ in UNWRAP for layer in layers):
        raise UsageError(f"model '{model.name}' has no fake quantizers; call quantize_model on it first")
    n = 0
    try:
        for batch in batches:
            n += 1
            share = 1 / n
            model(batch, training=False)
    finally:
        share = None
    if n == 0:
        raise CalibrationError("observe: no batches")
    return model
