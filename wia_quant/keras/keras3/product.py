# SPDX-License-Identifier: Apache-2.0
"""A layer with a weight, in training: it multiplies by what the weight's integers stand for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import keras
from keras import ops

from wia_quant.affine import INT8, INT8_NARROW, MIN_SCALE
from wia_quant.keras.emit.table import key_of
from wia_quant.keras.keras3.fake_quantize import affine_grid, fake_quantize, quotient
from wia_quant.keras.weights import WEIGHTS, summed_axes

Multiply = Callable[[Any, Any, Any], Any]


def _conv(layer: Any, x: Any, kernel: Any) -> Any:
    padding = layer.padding
    if padding == "causal":
        left = layer.dilation_rate[0] * (layer.kernel_size[0] - 1)
        first = layer.data_format == "channels_first"
        x, padding = ops.pad(x, [[0, 0], *([[0, 0], [left, 0]] if first else [[left, 0], [0, 0]])]), "valid"
    return ops.conv(
        x,
        kernel,
        strides=list(layer.strides),
        padding=padding,
        dilation_rate=layer.dilation_rate,
        data_format=layer.data_format,
    )


def _depthwise(layer: Any, x: Any, kernel: Any) -> Any:
    return ops.depthwise_conv(
        x,
        kernel,
        strides=layer.strides,
        padding=layer.padding,
        dilation_rate=layer.dilation_rate,
        data_format=layer.data_format,
    )


def _transposed(layer: Any, x: Any, kernel: Any) -> Any:
    return ops.conv_transpose(
        x,
        kernel,
        strides=list(layer.strides),
        output_padding=layer.output_padding,
        padding=layer.padding,
        dilation_rate=layer.dilation_rate,
        data_format=layer.data_format,
    )


def _dense(layer: Any, x: Any, kernel: Any) -> Any:
    return ops.matmul(x, kernel)


def _embedding(layer: Any, x: Any, kernel: Any) -> Any:
    return ops.take(kernel, ops.cast(x, "int32"), axis=0)


MULTIPLY: Final[Mapping[str, Multiply]] = MappingProxyType(
    {
        "Conv1D": _conv,
        "Conv2D": _conv,
        "Conv3D": _conv,
        "DepthwiseConv1D": _depthwise,
        "DepthwiseConv2D": _depthwise,
        "Conv1DTranspose": _transposed,
        "Conv2DTranspose": _transposed,
        "Conv3DTranspose": _transposed,
        "Dense": _dense,
        "Embedding": _embedding,
    }
)


@keras.saving.register_keras_serializable("wia_quant")
class QuantizedProduct(keras.layers.Wrapper):
    """A convolution, Dense or Embedding whose weight and bias are on their grids, and the BatchNorm that follows it.

    The weight has one scale an output channel, from the weight as it is; the bias is in steps of the input's scale
    times the weight's. The layer inside has no activation. With a BatchNorm that trains, the bias is what the
    statistics of the batch make of it; in inference, or when the BatchNorm is frozen, its factor is in the scales, as
    it will be in the file: scaling a channel scales its grid, so no level changes.
    """

    def __init__(self, layer: Any, batch_norm: Any = None, **kwargs: Any) -> None:
        super().__init__(layer, **kwargs)
        self.key = str(key_of(layer))
        self.batch_norm = batch_norm

    def build(self, inputs_shape: Any = None, input_scale_shape: Any = None) -> None:
        super().build(inputs_shape)
        if self.batch_norm is not None and not self.batch_norm.built:
            self.batch_norm.build(self.layer.compute_output_shape(inputs_shape))

    def call(self, inputs: Any, input_scale: Any = None, training: bool = False) -> Any:
        weight = WEIGHTS[self.key]
        kernel = _tensor(getattr(self.layer, weight.attribute))
        scale = _scale(kernel, weight.channels)
        y = MULTIPLY[self.key](self.layer, inputs, fake_quantize(kernel, scale, INT8_NARROW.qmin, INT8_NARROW.qmax))
        bias, norm = _tensor(getattr(self.layer, "bias", None)), self.batch_norm
        if norm is not None and training and norm.trainable:
            return norm(y if bias is None else y + self._spread(bias, y), training=True)
        scale = ops.reshape(scale, [-1])
        if norm is not None:
            # In the order of the file, see emit/products.py.
            gamma, beta, mean = map(_tensor, (norm.gamma, norm.beta, norm.moving_mean))
            gain = spread = 1 / ops.sqrt(_tensor(norm.moving_variance) + norm.epsilon)
            bias = (-mean if bias is None else bias - mean) * spread
            if gamma is not None:
                gain, bias = gamma * spread, bias * gamma
            if beta is not None:
                bias = bias + beta
            y = y * self._spread(gain, y)
            scale = ops.reshape(_scale(kernel * _along(gain, kernel.shape, weight.channels), weight.channels), [-1])
        if bias is None:
            return y
        return y + self._spread(bias if input_scale is None else _on_grid(bias, input_scale * scale), y)

    def _spread(self, v: Any, y: Any) -> Any:
        if getattr(self.layer, "data_format", None) == "channels_first":
            return ops.reshape(v, [1, -1] + [1] * (len(y.shape) - 2))
        return v

    def compute_output_shape(self, inputs_shape: Any, input_scale_shape: Any = None) -> Any:
        return self.layer.compute_output_shape(inputs_shape)

    def get_config(self) -> dict[str, Any]:
        norm = None if self.batch_norm is None else keras.saving.serialize_keras_object(self.batch_norm)
        return {**super().get_config(), "batch_norm": norm}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        layer, norm = (
            None if config[name] is None else keras.saving.deserialize_keras_object(config[name], custom_objects)
            for name in ("layer", "batch_norm")
        )
        return cls(**{**config, "layer": layer, "batch_norm": norm})


@keras.saving.register_keras_serializable("wia_quant")
class QuantizedScale(keras.layers.Wrapper):
    """A LayerScale whose factors are on the one affine grid that they have in the file."""

    def call(self, inputs: Any) -> Any:
        gamma = _tensor(self.layer.gamma)
        lo, hi = (
            ops.stop_gradient(end) for end in (ops.minimum(ops.min(gamma), 0.0), ops.maximum(ops.max(gamma), 0.0))
        )
        scale, zero_point = affine_grid(lo, hi)
        return inputs * fake_quantize(gamma, scale, INT8.qmin - zero_point, INT8.qmax - zero_point)

    def compute_output_shape(self, input_shape: Any) -> Any:
        return input_shape


def _tensor(variable: Any) -> Any:
    """The value of a variable, which JAX' own functions do not take."""
    return None if variable is None else ops.convert_to_tensor(variable)


def _along(v: Any, shape: Any, channels: tuple[int, ...]) -> Any:
    """One value an output channel, shaped to broadcast with the kernel."""
    kept = {axis % len(shape) for axis in channels}
    return ops.reshape(v, [n if i in kept else 1 for i, n in enumerate(shape)])


def _scale(kernel: Any, channels: tuple[int, ...]) -> Any:
    """Equation (6), shaped to broadcast with the kernel."""
    absmax = ops.stop_gradient(ops.max(ops.abs(kernel), axis=summed_axes(len(kernel.shape), channels), keepdims=True))
    return ops.where(absmax > 0, ops.maximum(quotient(absmax, INT8_NARROW.qmax), MIN_SCALE), ops.ones_like(absmax))


def _on_grid(bias: Any, scale: Any) -> Any:
    """The bias as its int32 stands for it; the gradient passes. Without a scale, or with too small a one, as it is."""
    steps = ops.round(bias / ops.maximum(scale, MIN_SCALE))
    fits = ops.logical_and(scale > 0, ops.abs(steps) < _LARGEST_BIAS)
    rounded = ops.where(fits, steps * scale, bias)
    return ops.stop_gradient(rounded) + (bias - ops.stop_gradient(bias))


#: Steps of a bias beyond this are coarsened by the exporter.
_LARGEST_BIAS: Final = float(2**30)
