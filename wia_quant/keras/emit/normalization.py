# SPDX-License-Identifier: Apache-2.0
"""Normalizations and the scaling of inputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from wia_quant.builder import Builder, Tensor
from wia_quant.errors import ExportError
from wia_quant.keras.steps import Step
from wia_quant.keras.values import array


def batch_normalization(b: Builder, step: Step, x: Tensor) -> Tensor:
    """A BatchNormalization that no product takes in."""
    layer = step.layer
    if step.kwargs.get("training"):
        raise ExportError(f"layer '{step.name}' is called with training=True: its statistics are those of the batch")
    axis = layer.axis[0] if isinstance(layer.axis, list | tuple) else layer.axis
    axis = int(axis) % x.rank
    if axis == x.rank - 1:
        x = b.first(x)
    elif axis == 1:
        x = b.logical(x)
    else:
        raise ExportError(f"layer '{step.name}': a BatchNormalization along axis {axis} has no ONNX form here")
    mean, variance = array(layer.moving_mean), array(layer.moving_variance)
    gamma = np.ones_like(mean) if layer.gamma is None else array(layer.gamma)
    beta = np.zeros_like(mean) if layer.beta is None else array(layer.beta)
    inputs = [
        b.floats(v, n) for v, n in ((gamma, "gamma"), (beta, "beta"), (mean, "mean"), (variance, "variance"))
    ]  # fmt: skip
    return b.like(x, b.node("BatchNormalization", [x.name, *inputs], epsilon=float(layer.epsilon)))


def layer_normalization(b: Builder, step: Step, x: Tensor) -> Tensor:
    """LayerNormalization over the last axes."""
    layer = step.layer
    axes = _axes(layer, x)
    if axes != list(range(axes[0], x.rank)):
        raise ExportError(f"layer '{step.name}': a LayerNormalization over axes {axes} has no ONNX form here")
    x = b.logical(x)
    if getattr(layer, "rms_scaling", False):
        return _over_rms(b, x, axes, float(layer.epsilon), layer.gamma)
    shape = [int(x.shape[a] or 1) for a in axes]
    gamma = np.ones(shape) if layer.gamma is None else array(layer.gamma)
    inputs = [x.name, b.floats(gamma, "gamma")]
    if layer.beta is not None:
        inputs.append(b.floats(array(layer.beta), "beta"))
    return b.like(x, b.node("LayerNormalization", inputs, axis=axes[0], epsilon=float(layer.epsilon)))


def rms_normalization(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer RMSNormalization: ``x / sqrt(mean(x^2) + epsilon) * scale``."""
    layer = step.layer
    x = b.logical(x)
    return _over_rms(b, x, _axes(layer, x), float(layer.epsilon), layer.scale)


def _over_rms(b: Builder, x: Tensor, axes: list[int], epsilon: float, gamma: Any) -> Tensor:
    mean = b.node("ReduceMean", [b.node("Mul", [x.name, x.name]), b.integers(axes, "axes")], keepdims=1)
    y = b.node("Div", [x.name, b.node("Sqrt", [b.node("Add", [mean, b.floats(epsilon, "epsilon")])])])
    return b.like(x, y if gamma is None else b.node("Mul", [y, b.floats(array(gamma), "gamma")]))


def unit_normalization(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer UnitNormalization: of Euclidean length 1 along its axes."""
    x = b.logical(x) if x.unflattened is not None else x
    # tf_keras bounds the square of the length, Keras 3 the length.
    least = 1e-12 if type(step.layer).__module__.startswith("tf_keras") else 1e-24
    return unit_length(b, x, _axes(step.layer, x), least)


def unit_length(b: Builder, x: Tensor, axes: list[int], least_square: float) -> Tensor:
    """``x / sqrt(max(sum(x^2), least_square))`` along Keras' ``axes``."""
    places = b.integers(sorted(x.axis(a) for a in axes), "axes")
    square = b.node("ReduceSum", [b.node("Mul", [x.name, x.name]), places], keepdims=1)
    length = b.node("Sqrt", [b.node("Max", [square, b.floats(least_square, "least")])])
    return b.like(x, b.node("Div", [x.name, length]))


def group_normalization(b: Builder, step: Step, x: Tensor) -> Tensor:
    """GroupNormalization: an InstanceNormalization of each group's values in a row, then one factor a channel."""
    layer = step.layer
    (axis,) = _axes(layer, x)
    if axis not in (1, x.rank - 1):
        raise ExportError(f"layer '{step.name}': a GroupNormalization along axis {axis} has no ONNX form here")
    channels, groups = int(x.shape[axis] or 0), int(layer.groups)
    x = b.first(x) if axis == x.rank - 1 else b.logical(x)
    ones, zeros = b.floats(np.ones(groups), "ones"), b.floats(np.zeros(groups), "zeros")
    rows = b.node("Reshape", [x.name, b.integers([0, groups, -1], "groups")])
    rows = b.node("InstanceNormalization", [rows, ones, zeros], epsilon=float(layer.epsilon))
    sizes = [x.shape[a] for a in (x.order or range(x.rank))][2:]
    if sizes.count(None) > 1:
        raise ExportError(f"layer '{step.name}': a GroupNormalization of open sizes has no ONNX form here")
    shape = [0, channels, *(-1 if d is None else d for d in sizes)]
    y = b.like(x, b.node("Reshape", [rows, b.integers(shape, "shape")]))
    for values, op_type in ((layer.gamma, "Mul"), (layer.beta, "Add")):
        if values is not None:
            each = b.floats(b.spread(array(values), y, axis), op_type.lower())
            y = b.like(y, b.node(op_type, [y.name, each]))
    return y


def _axes(layer: Any, x: Tensor) -> list[int]:
    """The layer's axes, counted from the first."""
    given = layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]
    return sorted(int(a) % x.rank for a in given)


def layer_scale(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer LayerScale of ConvNeXt: one factor a channel."""
    gamma = array(step.layer.gamma)
    return b.elementwise(x, lambda t: b.node("Mul", [t.name, b.floats(b.spread(gamma, t), "gamma")]))


def rescaling(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer Rescaling: ``x * scale + offset``."""
    x = _float(b, x)
    scale, offset = np.asarray(step.layer.scale, np.float32), np.asarray(step.layer.offset, np.float32)
    y = b.elementwise(x, lambda t: b.node("Mul", [t.name, b.floats(b.spread(scale, t), "scale")]))
    if not offset.any():
        return y
    return b.elementwise(y, lambda t: b.node("Add", [t.name, b.floats(b.spread(offset, t), "offset")]))


def normalization(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer Normalization: ``(x - mean) / sqrt(variance)``."""
    layer = step.layer
    if getattr(layer, "invert", False):
        raise ExportError(f"layer '{step.name}': Normalization with invert=True has no ONNX form here")
    x = _float(b, x)
    mean, variance = array(layer.mean), array(layer.variance)
    deviation = np.maximum(np.sqrt(variance), np.float32(1e-7))  # keras.backend.epsilon()
    centred = b.like(x, b.node("Sub", [x.name, b.floats(b.spread(mean, x), "mean")]))
    return b.like(x, b.node("Div", [centred.name, b.floats(b.spread(deviation, x), "deviation")]))


def _float(b: Builder, x: Tensor) -> Tensor:
    return x if x.dtype == "float32" else Tensor(b.node("Cast", [x.name], to=1), x.shape, x.order, "float32")
