# SPDX-License-Identifier: Apache-2.0
"""Pooling over windows and over everything."""

from __future__ import annotations

from wia_quant.builder import Builder, Tensor, padding_of
from wia_quant.keras.emit.products import numbers, spatial_input, spatial_output
from wia_quant.keras.steps import Step


def pool(b: Builder, step: Step, x: Tensor, op_type: str) -> Tensor:
    """Over windows, as the attributes of ``step.layer`` say."""
    layer = step.layer
    x, sizes, keras_first = spatial_input(b, layer, x)
    size = numbers(layer.pool_size, len(sizes))
    strides = numbers(layer.strides if layer.strides is not None else layer.pool_size, len(sizes))
    padding = padding_of(layer.padding, sizes, size, strides, [1] * len(size))
    name = b.node(op_type, [x.name], kernel_shape=size, strides=strides, **padding)
    return spatial_output(name, step, keras_first)


def max_pooling(b: Builder, step: Step, x: Tensor) -> Tensor:
    """MaxPooling1D to 3D."""
    return pool(b, step, x, "MaxPool")


def average_pooling(b: Builder, step: Step, x: Tensor) -> Tensor:
    """AveragePooling1D to 3D; Keras, as ONNX by default, counts no padding."""
    return pool(b, step, x, "AveragePool")


def _global(b: Builder, step: Step, x: Tensor, op_type: str) -> Tensor:
    x, _, keras_first = spatial_input(b, step.layer, x)
    name = b.node(op_type, [x.name])
    if getattr(step.layer, "keepdims", False):
        return spatial_output(name, step, keras_first)
    return Tensor(b.node("Flatten", [name], axis=1), step.outputs[0].shape)


def global_average_pooling(b: Builder, step: Step, x: Tensor) -> Tensor:
    """GlobalAveragePooling1D to 3D."""
    return _global(b, step, x, "GlobalAveragePool")


def global_max_pooling(b: Builder, step: Step, x: Tensor) -> Tensor:
    """GlobalMaxPooling1D to 3D."""
    return _global(b, step, x, "GlobalMaxPool")
