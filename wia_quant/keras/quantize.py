# SPDX-License-Identifier: Apache-2.0
"""``quantize_model`` of either Keras."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from wia_quant.errors import UsageError
from wia_quant.keras.frameworks import require
from wia_quant.keras.trace import Keras, framework_of
from wia_quant.keras.wrappers import UNWRAP


def quantize_model(model: Keras, *, exclude: Iterable[str] = (), input_shape: Any = None) -> Keras:
    """The model ready for quantization-aware training: compile and fit it, then ``export`` it.

    A Keras 3 model gets fake quantizers of ours, a tf_keras model those of tensorflow-model-optimization with
    ``WiaQuantizeScheme``.

    Args:
        model: not changed; the result has its own copy of the weights.
        exclude: names of layers that stay float.
        input_shape: of a subclassed Keras 3 model that has not been called: without the batch.

    Raises:
        ExportError: a layer that cannot be exported; names it.
        UsageError: no Keras model, or a name of ``exclude`` that is no layer.
    """
    return with_biases(model, frozenset(), exclude=exclude, input_shape=input_shape)


def with_biases(
    model: Keras,
    biased: frozenset[str],
    *,
    rangeless: frozenset[str] = frozenset(),
    exclude: Iterable[str] = (),
    input_shape: Any = None,
) -> Keras:
    """As ``quantize_model``; the layers named in ``biased``, which have no bias, get one of zeros.

    Of Keras 3, quantizers of tensors named in ``rangeless``, which only float layers read, are left out.
    """
    framework = framework_of(model)
    if framework == "keras":
        return require("wia_quant.keras.keras3.prepare").quantize_model(
            model, exclude=exclude, input_shape=input_shape, biased=biased, rangeless=rangeless
        )
    if framework == "tf_keras":
        return require("wia_quant.keras.tf_keras.scheme").quantize_model(model, exclude=exclude, biased=biased)
    raise UsageError(f"{type(model).__name__} is no Keras model")


def freeze_batch_norm(model: Keras, frozen: bool = True) -> Keras:
    """From now on BatchNorms use, and keep, their moving statistics, as they will after export.

    Usual schedule: for the last third of the training (Krishnamoorthi 2018, section 3.2.2). Compile the model again
    afterwards, as after every change of ``trainable``.
    """
    layers = list(model._flatten_layers() if hasattr(model, "_flatten_layers") else model.layers)
    if framework_of(model) == "tf_keras" and any(type(layer).__name__ in UNWRAP for layer in layers):
        require("wia_quant.keras.tf_keras.layers").settle(model)
    for layer in layers:
        if type(layer).__name__ in ("BatchNormalization", "SyncBatchNormalization"):
            layer.trainable = not frozen
    return model
