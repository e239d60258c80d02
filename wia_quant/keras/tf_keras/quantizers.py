# SPDX-License-Identifier: Apache-2.0
"""Quantizers for tensorflow-model-optimization that compute equations (1) to (6), not TensorFlow's fake quantization.

TensorFlow's operator rounds half up where ONNX' rounds half to even: a picture scaled to [-1, 1] is all halves.
"""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf
from tensorflow_model_optimization.quantization.keras import quantizers

from wia_quant.affine import INT8, INT8_NARROW, MIN_SCALE
from wia_quant.keras import observing
from wia_quant.keras.weights import summed_axes

#: The weight of a new batch in the moving average, as in wia_quant.torch.
AVERAGING_CONSTANT: Final = 0.01


def fake_quantize(x: Any, scale: Any, lowest: Any, highest: Any) -> Any:
    """The real of the level of each value; levels counted from the zero point saturate at ``lowest``, ``highest``.

    The gradient passes where ``x`` did not saturate; the term that carries it is exactly zero.
    """
    levels = tf.round(x / scale)
    inside = tf.where((levels >= lowest) & (levels <= highest), x, tf.zeros_like(x))
    rounded = tf.clip_by_value(levels, lowest, highest) * scale
    return tf.stop_gradient(rounded) + (inside - tf.stop_gradient(inside))


def affine_grid(lo: Any, hi: Any) -> tuple[Any, Any]:
    """Scale and zero point of a range that contains 0, equations (3) and (4); of a range of one point some."""
    wide_lo, wide_hi = tf.cast(lo, tf.float64), tf.cast(hi, tf.float64)
    scale = tf.cast((wide_hi - wide_lo) / (INT8.qmax - INT8.qmin), tf.float32)
    scale = tf.maximum(tf.where(wide_hi > wide_lo, scale, 1.0), MIN_SCALE)
    place = tf.round(INT8.qmin - wide_lo / tf.cast(scale, tf.float64))
    return scale, tf.cast(tf.clip_by_value(place, INT8.qmin, INT8.qmax), tf.float32)


class WiaActivationQuantizer(quantizers.Quantizer):
    """int8 affine by a moving average of each batch's ends; before any training values pass unchanged."""

    def build(self, tensor_shape: Any, name: str, layer: Any) -> dict[str, Any]:
        return {
            f"{end}_var": layer.add_weight(f"{name}_{end}", initializer="zeros", trainable=False)
            for end in ("min", "max")
        }

    def __call__(self, inputs: Any, training: bool, weights: dict[str, Any], **kwargs: Any) -> Any:
        lo, hi = weights["min_var"], weights["max_var"]
        if training or observing.share is not None:
            batch_lo, batch_hi = tf.minimum(tf.reduce_min(inputs), 0.0), tf.maximum(tf.reduce_max(inputs), 0.0)
            share = tf.where(tf.equal(lo, hi), 1.0, observing.share or AVERAGING_CONSTANT)
            lo, hi = lo.assign(lo + share * (batch_lo - lo)), hi.assign(hi + share * (batch_hi - hi))
        if observing.share is not None:
            return inputs
        scale, zero_point = affine_grid(lo, hi)
        rounded = fake_quantize(inputs, scale, INT8.qmin - zero_point, INT8.qmax - zero_point)
        return tf.where(hi > lo, rounded, inputs)

    def get_config(self) -> dict[str, Any]:
        return {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WiaActivationQuantizer)

    __hash__ = None  # type: ignore[assignment]


class WiaWeightQuantizer(quantizers.Quantizer):
    """int8 symmetric, narrow, one scale an output channel, from the weight as it is."""

    def __init__(self, channels: Any) -> None:
        self.channels = tuple(channels)

    def build(self, tensor_shape: Any, name: str, layer: Any) -> dict[str, Any]:
        return {}

    def __call__(self, inputs: Any, training: bool, weights: dict[str, Any], **kwargs: Any) -> Any:
        axes = summed_axes(len(inputs.shape), self.channels)
        absmax = tf.stop_gradient(tf.reduce_max(tf.abs(inputs), axis=axes, keepdims=True))
        scale = tf.where(absmax > 0, tf.maximum(absmax / INT8_NARROW.qmax, MIN_SCALE), tf.ones_like(absmax))
        return fake_quantize(inputs, scale, float(INT8_NARROW.qmin), float(INT8_NARROW.qmax))

    def get_config(self) -> dict[str, Any]:
        return {"channels": list(self.channels)}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WiaWeightQuantizer) and self.channels == other.channels

    __hash__ = None  # type: ignore[assignment]
