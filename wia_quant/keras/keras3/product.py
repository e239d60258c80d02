# SPDX-License-Identifier: Apache-2.0
"""A layer with a weight, in training: it multiplies by what the weight's integers stand for."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import keras
from keras import ops

from wia_quant.affine import INT8, INT8_NARROW, MIN_SCALE
from wia_quant.keras.emit.table import key_of
from wia_quant.keras.keras3 import exact
from wia_quant.keras.keras3.exact import quotient
from wia_quant.keras.keras3.fake_quantize import affine_grid, fake_quantize
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

#: What libwia computes on integers; an Embedding only picks rows.
INTEGERS: Final = frozenset(MULTIPLY) - {"Conv3D", "Conv3DTranspose", "Embedding"}


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

    def build(self, inputs_shape: Any = None, input_scale_shape: Any = None, output_scale_shape: Any = None) -> None:
        super().build(inputs_shape)
        if self.batch_norm is not None and not self.batch_norm.built:
            self.batch_norm.build(self.layer.compute_output_shape(inputs_shape))

    def call(self, inputs: Any, input_scale: Any = None, output_scale: Any = None, training: bool = False) -> Any:
        weight = WEIGHTS[self.key]
        kernel = _tensor(getattr(self.layer, weight.attribute))
        scale = _scale(kernel, weight.channels)
        bias, norm = _tensor(getattr(self.layer, "bias", None)), self.batch_norm
        if not training and input_scale is not None and self.key in INTEGERS:
            return self._evaluated(inputs, kernel, scale, bias, input_scale, output_scale)
        y = MULTIPLY[self.key](self.layer, inputs, fake_quantize(kernel, scale, INT8_NARROW.qmin, INT8_NARROW.qmax))
        if norm is not None and training and norm.trainable:
            return norm(y if bias is None else y + self._spread(bias, y), training=True)
        scale = ops.reshape(scale, [-1])
        if norm is not None:
            gain, bias = self._folded(bias, operator.mul, lambda v: 1 / ops.sqrt(v))
            y = y * self._spread(gain, y)
            scale = ops.reshape(_scale(kernel * _along(gain, kernel.shape, weight.channels), weight.channels), [-1])
        if bias is None:
            return y
        return y + self._spread(bias if input_scale is None else _on_grid(bias, input_scale * scale), y)

    def _folded(self, bias: Any, times: Any, inverse_root: Any) -> tuple[Any, Any]:
        """The factor of the BatchNorm and the bias that holds it, in the order of the file, see emit/products.py."""
        norm = self.batch_norm
        gamma, beta, mean = map(_tensor, (norm.gamma, norm.beta, norm.moving_mean))
        gain = spread = inverse_root(_tensor(norm.moving_variance) + norm.epsilon)
        bias = times(-mean if bias is None else bias - mean, spread)
        if gamma is not None:
            gain, bias = times(gamma, spread), times(bias, gamma)
        return gain, bias if beta is None else bias + beta

    def _evaluated(self, x: Any, kernel: Any, scale: Any, bias: Any, input_scale: Any, output_scale: Any) -> Any:
        """Equations (7) to (9) on levels: what the file computes in libwia, to the bit."""
        weight, shape = WEIGHTS[self.key], kernel.shape
        real = quotient(kernel, scale)
        w = ops.round(real)
        folded, size = scale, ops.ones_like(scale)
        if self.batch_norm is not None:
            gain, bias = self._folded(bias, exact.times, exact.inverse_root)
            along = _along(gain, shape, weight.channels)
            folded = ops.where(ops.equal(along, 0), ops.zeros_like(along), _scale(kernel * along, weight.channels))
            folded = ops.where(folded > 0, folded, _or_one(ops.max(folded)))
            w, real, size = w * ops.sign(along), real * ops.sign(along), ops.abs(along)
        final = folded
        if bias is not None:
            final = exact.fitting_bias(folded, _along(bias, shape, weight.channels), exact.positive(input_scale))
            w = ops.round(quotient(w * folded, final))
        acc = MULTIPLY[self.key](self.layer, exact.levels(x, input_scale), exact.straight_through(w, real))

        def spread(v: Any) -> Any:
            return self._spread(v, acc)

        final = ops.reshape(final, [-1])
        y = exact.product(acc, bias, final, input_scale, output_scale, spread)
        if not exact.wants_gradient(acc):
            return y
        unit = exact.positive(input_scale) * exact.straight_through(final, ops.reshape(scale * size, [-1]))
        smooth = acc * spread(unit)
        return exact.straight_through(y, smooth if bias is None else smooth + spread(bias))

    def _spread(self, v: Any, y: Any) -> Any:
        if getattr(self.layer, "data_format", None) == "channels_first":
            return ops.reshape(v, [1, -1] + [1] * (len(y.shape) - 2))
        return v

    def compute_output_shape(
        self, inputs_shape: Any, input_scale_shape: Any = None, output_scale_shape: Any = None
    ) -> Any:
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

    def build(self, inputs_shape: Any = None, input_scale_shape: Any = None, output_scale_shape: Any = None) -> None:
        super().build(inputs_shape)

    def call(self, inputs: Any, input_scale: Any = None, output_scale: Any = None, training: bool = False) -> Any:
        gamma = _tensor(self.layer.gamma)
        lo, hi = (
            ops.stop_gradient(end) for end in (ops.minimum(ops.min(gamma), 0.0), ops.maximum(ops.max(gamma), 0.0))
        )
        scale, zero_point = affine_grid(lo, hi)
        factors = fake_quantize(gamma, scale, INT8.qmin - zero_point, INT8.qmax - zero_point)
        smooth = inputs * factors
        if training or output_scale is None:
            return smooth
        # Equation (13).
        y = exact.positive(output_scale)
        levels = ops.round(inputs / exact.positive(input_scale)) * ops.round(factors / scale)
        found = ops.round(levels * exact.multiplier(exact.positive(input_scale), scale, y)) * y
        known = ops.logical_and(input_scale > 0, output_scale > 0)
        return exact.straight_through(ops.where(known, found, smooth), smooth)

    def compute_output_shape(
        self, inputs_shape: Any, input_scale_shape: Any = None, output_scale_shape: Any = None
    ) -> Any:
        return inputs_shape


def _tensor(variable: Any) -> Any:
    """The value of a variable, which JAX' own functions do not take."""
    return None if variable is None else ops.convert_to_tensor(variable)


def _or_one(largest: Any) -> Any:
    return ops.where(largest > 0, largest, ops.ones_like(largest))


def _along(v: Any, shape: Any, channels: tuple[int, ...]) -> Any:
    """One value an output channel, shaped to broadcast with the kernel."""
    kept = {axis % len(shape) for axis in channels}
    return ops.reshape(v, [n if i in kept else 1 for i, n in enumerate(shape)])


def _scale(kernel: Any, channels: tuple[int, ...]) -> Any:
    """Equation (6), shaped to broadcast with the kernel."""
    absmax = ops.stop_gradient(ops.max(ops.abs(kernel), axis=summed_axes(len(kernel.shape), channels), keepdims=True))
    scale = exact.in_float64(lambda largest: largest / INT8_NARROW.qmax, absmax)
    return ops.where(absmax > 0, ops.maximum(scale, MIN_SCALE), ops.ones_like(absmax))


def _on_grid(bias: Any, scale: Any) -> Any:
    """The bias as its int32 stands for it; the gradient passes. Without a scale, or with too small a one, as it is."""
    steps = ops.round(bias / ops.maximum(scale, MIN_SCALE))
    fits = ops.logical_and(scale > 0, ops.abs(steps) < _LARGEST_BIAS)
    rounded = ops.where(fits, steps * scale, bias)
    return ops.stop_gradient(rounded) + (bias - ops.stop_gradient(bias))


#: Steps of a bias beyond this are coarsened by the exporter.
_LARGEST_BIAS: Final = float(2**30)
