# SPDX-License-Identifier: Apache-2.0
"""Sums, products and averages of tensors on grids: as Keras computes them in training, as libwia in evaluation."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from types import MappingProxyType
from typing import Any, Final

import keras
import numpy as np
from keras import ops

from wia_quant.keras.emit.table import key_of
from wia_quant.keras.keras3 import exact
from wia_quant.keras.steps import Step

#: From the layer, the levels of its operands, their scales and that of the result, the levels of the result.
Form = Callable[[Any, list[Any], list[Any], Any], Any]


def _sum(sign: float) -> Form:
    """Equation (12)."""

    def levels(layer: Any, x: list[Any], scales: list[Any], y: Any) -> Any:
        a, b = (exact.in_float64(lambda p, q: p / q, s, y) for s in scales)
        return exact.times(x[0], a) + exact.times(x[1], sign * b)

    return levels


def _product(layer: Any, x: list[Any], scales: list[Any], y: Any) -> Any:
    """Equation (13)."""
    return x[0] * x[1] * exact.multiplier(scales[0], scales[1], y)


def _matmul(layer: Any, x: list[Any], scales: list[Any], y: Any) -> Any:
    """Equation (8) of two activations."""
    return ops.round(ops.matmul(x[0], x[1])) * exact.multiplier(scales[0], scales[1], y)


def _mean(axes_of: Callable[[Any, int], tuple[int, ...]]) -> Form:
    """Equation (14)."""

    def levels(layer: Any, x: list[Any], scales: list[Any], y: Any) -> Any:
        axes = axes_of(layer, len(x[0].shape))
        total = ops.sum(x[0], axes, keepdims=bool(getattr(layer, "keepdims", False)))
        n = reduce(operator.mul, [ops.shape(x[0])[axis] for axis in axes])
        return total * exact.in_float64(lambda s, n, q: s / (n * q), scales[0], n, y)

    return levels


def _average(layer: Any, x: list[Any], scales: list[Any], y: Any) -> Any:
    """Of tensors: a sum of reals and one factor, as libwia runs the file's nodes."""
    total = reduce(operator.add, [exact.times(v, s) for v, s in zip(x, scales, strict=True)])
    return total * np.float32(1 / len(x)) / y


def spatial_axes(layer: Any, rank: int) -> tuple[int, ...]:
    """Of a layer with a data_format."""
    return tuple(range(2, rank)) if layer.data_format == "channels_first" else tuple(range(1, rank - 1))


def mean_axes(operation: Any, rank: int) -> tuple[int, ...]:
    """Of the operation Mean."""
    axis = operation.axis
    axes = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
    return tuple(sorted(int(a) % rank for a in axes))


def _pool(layer: Any, x: list[Any], scales: list[Any], y: Any) -> Any:
    """Equation (14) of windows; what is padded does not count, whatever the backend."""
    rank = len(x[0].shape)
    spatial = spatial_axes(layer, rank)
    sizes, strides = tuple(layer.pool_size), tuple(layer.strides or layer.pool_size)

    def total(values: Any) -> Any:
        if layer.padding == "same":
            pads = [(0, 0)] * rank
            for axis, size, stride in zip(spatial, sizes, strides, strict=True):
                length = values.shape[axis]
                more = max((-(-length // stride) - 1) * stride + size - length, 0)
                pads[axis] = (more // 2, more - more // 2)
            values = ops.pad(values, pads)
        mean = ops.average_pool(values, sizes, strides, padding="valid", data_format=layer.data_format)
        return ops.round(mean * int(np.prod(sizes)))

    ones = ops.ones([x[0].shape[axis] if axis in spatial else 1 for axis in range(rank)])
    n = total(ones) if layer.padding == "same" else ops.cast(np.prod(sizes), "float32")
    return total(x[0]) * exact.in_float64(lambda s, n, q: s / (n * q), scales[0], n, y)


#: Key of a layer or an operation -> its equation.
FORMS: Final[Mapping[str, Form]] = MappingProxyType(
    {
        "Add": _sum(1.0),
        "ops.Add": _sum(1.0),
        "Subtract": _sum(-1.0),
        "ops.Subtract": _sum(-1.0),
        "Multiply": _product,
        "ops.Multiply": _product,
        "ops.Matmul": _matmul,
        "Average": _average,
        "AveragePooling1D": _pool,
        "AveragePooling2D": _pool,
        "GlobalAveragePooling1D": _mean(spatial_axes),
        "GlobalAveragePooling2D": _mean(spatial_axes),
        "GlobalAveragePooling3D": _mean(spatial_axes),
        "ops.Mean": _mean(mean_axes),
    }
)

#: libwia takes no bound between these and the quantizer.
AVERAGES: Final = frozenset(key for key in FORMS if "Pooling" in key or key in ("Average", "ops.Mean"))

#: Functions of each element of both operands: where both are functions of one tensor's levels, a table.
BINARY: Final = frozenset({"Add", "Subtract", "Multiply", "ops.Add", "ops.Subtract", "ops.Multiply"})


def has_equation(step: Step) -> bool:
    """Whether FORMS has what libwia makes of this step, were all of its tensors on grids."""
    if step.key not in FORMS or step.kwargs:
        return False
    operands, shape = keras.tree.flatten(step.args), step.inputs[0].shape
    if step.key in BINARY or step.key == "ops.Matmul":
        return len(operands) == 2
    if step.key.startswith("Average") and getattr(step.layer, "padding", "valid") == "same":
        return None not in [shape[axis] for axis in spatial_axes(step.layer, len(shape))]
    if step.key == "ops.Mean":
        axes = mean_axes(step.layer, len(shape))
        return (len(axes) == 1 and axes != (0,)) or axes == tuple(range(1, len(shape) - 1))
    return True


@keras.saving.register_keras_serializable("wia_quant")
class QuantizedArithmetic(keras.layers.Layer):
    """A layer or operation without weights, that computes on levels in evaluation.

    Args:
        layer: what it computes.
    """

    def __init__(self, layer: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer = layer
        self.key = str(key_of(layer))
        self.built = True

    def call(self, inputs: Any, scales: Any, output_scale: Any, training: bool = False) -> Any:
        """Of the inputs: the layer's first argument, or a list of the operation's.

        Args:
            inputs: on their grids.
            scales: of each.
            output_scale: of the grid that the result is quantized to, at once or behind a bound.
            training: as the layer computes it.
        """
        smooth = self._computed(inputs)
        if training:
            return smooth
        tensors = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        known = reduce(ops.logical_and, [ops.convert_to_tensor(s, "float32") > 0 for s in (*scales, output_scale)])
        y = exact.positive(output_scale)
        held = [exact.positive(ops.convert_to_tensor(s, "float32")) for s in scales]
        x = [ops.stop_gradient(ops.round(v / s)) for v, s in zip(tensors, held, strict=True)]
        found = ops.round(FORMS[self.key](self.layer, x, held, y)) * y
        return exact.straight_through(ops.where(known, found, smooth), smooth)

    def _computed(self, inputs: Any) -> Any:
        return self.layer(inputs) if isinstance(self.layer, keras.layers.Layer) else self.layer(*inputs)

    def compute_output_spec(self, inputs: Any, scales: Any, output_scale: Any, training: bool = False) -> Any:
        spec = self.layer.compute_output_spec
        return spec(inputs) if isinstance(self.layer, keras.layers.Layer) else spec(*inputs)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "layer": keras.saving.serialize_keras_object(self.layer)}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Any:
        layer = keras.saving.deserialize_keras_object(config["layer"], custom_objects)
        return cls(**{**config, "layer": layer})
