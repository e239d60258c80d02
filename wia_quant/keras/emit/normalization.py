# SPDX-License-Identifier: Apache-2.0
"""Normalizations and the scaling of inputs."""

from __future__ import annotations

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
    axes = sorted(int(a) % x.rank for a in (layer.axis if isinstance(layer.axis, list | tuple) else [layer.axis]))
    if axes != list(range(axes[0], x.rank)):
        raise ExportError(f"layer '{step.name}': a LayerNormalization over axes {axes} has no ONNX form here")
    if getattr(layer, "rms_scaling", False):
        raise ExportError(f"layer '{step.name}': rms_scaling has no ONNX form here")
    x = b.logical(x)
    shape = [int(x.shape[a] or 1) for a in axes]
    gamma = np.ones(shape) if layer.gamma is None else array(layer.gamma)
    inputs = [x.name, b.floats(gamma, "gamma")]
    if layer.beta is not None:
        inputs.append(b.floats(array(layer.beta), "beta"))
    return b.like(x, b.node("LayerNormalization", inputs, axis=axes[0], epsilon=float(layer.epsilon)))


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
