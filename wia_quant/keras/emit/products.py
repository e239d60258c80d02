# SPDX-License-Identifier: Apache-2.0
"""Convolutions, Dense and Embedding: the weight in ONNX' order, with its BatchNorm and its grid in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wia_quant.affine import INT8_NARROW, QParams, choose_qparams_per_axis, quantize
from wia_quant.builder import Array, Builder, Tensor, channels_first, flattened_rows, padding_of
from wia_quant.errors import ExportError
from wia_quant.keras.steps import Step
from wia_quant.keras.values import array


@dataclass(frozen=True)
class Fold:
    """What a BatchNorm makes of a product's result, a number of each a channel: ``y * gain``, plus a shift.

    In float32 and in the order of torch's fuse_conv_bn_weights, so that one network folds to the same bits in every
    framework.
    """

    spread: Array
    gamma: Array | None
    mean: Array
    beta: Array | None

    @property
    def gain(self) -> Array:
        """The factor."""
        return self.spread if self.gamma is None else self.gamma * self.spread

    def shift(self, bias: Array | None) -> Array:
        """The bias of the folded product; ``bias`` is the product's own."""
        found = -self.mean if bias is None else bias - self.mean
        found = found * self.spread
        if self.gamma is not None:
            found = found * self.gamma
        return found if self.beta is None else found + self.beta


def batch_norm_of(layer: Any) -> Fold:
    """The fold of a BatchNormalization by its moving statistics."""
    one = np.float32(1)
    variance = array(layer.moving_variance).astype(np.float32)
    gamma, beta = (None if v is None else array(v).astype(np.float32) for v in (layer.gamma, layer.beta))
    mean = array(layer.moving_mean).astype(np.float32)
    return Fold(one / np.sqrt(variance + np.float32(layer.epsilon)), gamma, mean, beta)


def weight_and_bias(
    b: Builder, step: Step, kernel: Array, axis: int, grid: QParams | None, bias: Any, fold: Fold | None
) -> list[str]:
    """Names of the weight, on its grid if it was trained on one, and of the bias.

    Args:
        b: the graph.
        step: the product.
        kernel: in ONNX' order.
        axis: of the output channels.
        grid: per tensor, or of one scale an output channel in their order.
        bias: a variable, or None.
        fold: the BatchNorm behind.
    """
    channels = kernel.shape[axis]
    along = [1] * kernel.ndim
    along[axis] = channels
    gain = np.ones(channels, np.float32) if fold is None else fold.gain
    weight = _on_grid(b, kernel, axis, grid, gain) if grid else b.floats(kernel * gain.reshape(along), "kernel")
    offset = None if bias is None else array(bias)
    if fold is not None:
        offset = fold.shift(offset)
    return [weight] if offset is None else [weight, b.floats(offset, "bias")]


def _on_grid(b: Builder, kernel: Array, axis: int, grid: QParams, gain: Array) -> str:
    """The levels of training, on scales that have the BatchNorm in them; a negative gain turns the levels' sign."""
    channels = kernel.shape[axis]
    along = [1] * kernel.ndim
    along[axis] = channels
    scale = np.broadcast_to(grid.scale, (channels,)).astype(np.float32)
    per_channel = QParams(INT8_NARROW, scale, np.zeros(channels, np.int8), axis)
    levels = quantize(kernel.astype(np.float32), per_channel).astype(np.float32)
    folded = _folded_scale(kernel, axis, scale, gain)
    dead = ~(folded >= np.float32(2.0**-100))
    if dead.any():
        folded = np.where(dead, folded[~dead].max(initial=np.float32(0)) or np.float32(1), folded).astype(np.float32)
    sign = np.where(dead, 0.0, np.sign(gain)).astype(np.float32)
    values = levels * sign.reshape(along) * folded.reshape(along)
    stored = b.floats(values, "kernel")
    scale_name = b.floats(folded, "kernel/scale")
    zero_point = b.constant(np.zeros(channels, np.int8), "kernel/zero_point")
    q = b.node("QuantizeLinear", [stored, scale_name, zero_point], axis=axis)
    return b.node("DequantizeLinear", [q, scale_name, zero_point], axis=axis)


def _folded_scale(kernel: Array, axis: int, scale: Array, gain: Array) -> Array:
    """The scales that hold the BatchNorm: where the grid spans the weight, those that span the folded weight."""
    others = tuple(i for i in range(kernel.ndim) if i != axis)
    along = [1] * kernel.ndim
    along[axis] = len(gain)

    def spanning(w: Array) -> Array:
        return choose_qparams_per_axis(np.abs(w).max(axis=others), INT8_NARROW, axis).scale

    if np.array_equal(scale, spanning(kernel)):
        return np.where(gain == 0, np.float32(0), spanning(kernel * gain.reshape(along)))
    return (scale.astype(np.float64) * np.abs(gain)).astype(np.float32)


def _fold_of(step: Step) -> Fold | None:
    return None if step.batch_norm is None else batch_norm_of(step.batch_norm)


def spatial_input(b: Builder, layer: Any, x: Tensor) -> tuple[Tensor, list[int | None], bool]:
    """``x`` with channels on axis 1; its spatial sizes; whether Keras has them first, too."""
    if getattr(layer, "data_format", "channels_last") == "channels_first":
        return b.logical(x), list(x.shape[2:]), True
    return b.first(x), list(x.shape[1:-1]), False


def spatial_output(name: str, step: Step, keras_first: bool) -> Tensor:
    """A result with channels on axis 1, as Keras' shape says."""
    shape = step.outputs[0].shape
    return Tensor(name, shape, None if keras_first else channels_first(len(shape)), "float32")


def numbers(value: Any, rank: int) -> list[int]:
    """An int or a tuple as one number an axis."""
    return [int(value)] * rank if isinstance(value, int) else [int(v) for v in value]


def _convolve(
    b: Builder, step: Step, x: Tensor, kernel: Array, groups: int, grid: QParams | None, bias: Any, fold: Fold | None
) -> Tensor:
    layer = step.layer
    x, sizes, keras_first = spatial_input(b, layer, x)
    size = list(kernel.shape[2:])
    strides, dilations = numbers(layer.strides, len(size)), numbers(layer.dilation_rate, len(size))
    weights = weight_and_bias(b, step, kernel, 0, grid, bias, fold)
    name = b.node(
        "Conv",
        [x.name, *weights],
        kernel_shape=size,
        strides=strides,
        dilations=dilations,
        group=groups,
        **padding_of(layer.padding, sizes, size, strides, dilations),
    )
    return spatial_output(name, step, keras_first)


def conv(b: Builder, step: Step, x: Tensor) -> Tensor:
    """Conv1D to Conv3D: kernel [spatial..., in / groups, out]."""
    kernel = array(step.layer.kernel)
    turned = np.moveaxis(kernel, (-1, -2), (0, 1))
    grid = step.grids.get("kernel")
    return _convolve(b, step, x, turned, int(step.layer.groups), grid, step.layer.bias, _fold_of(step))


def _depthwise_kernel(kernel: Array) -> tuple[Array, int]:
    """[spatial..., in, multiplier] -> [in * multiplier, 1, spatial...], and the number of groups."""
    groups, multiplier = kernel.shape[-2:]
    turned = np.moveaxis(kernel, (-2, -1), (0, 1))
    return turned.reshape(groups * multiplier, 1, *kernel.shape[:-2]), groups


def depthwise_attribute(layer: Any) -> str:
    """What the two frameworks call the kernel."""
    return "depthwise_kernel" if hasattr(layer, "depthwise_kernel") else "kernel"


def depthwise_conv(b: Builder, step: Step, x: Tensor) -> Tensor:
    """DepthwiseConv1D and 2D."""
    attribute = depthwise_attribute(step.layer)
    kernel, groups = _depthwise_kernel(array(getattr(step.layer, attribute)))
    return _convolve(b, step, x, kernel, groups, step.grids.get(attribute), step.layer.bias, _fold_of(step))


def separable_conv(b: Builder, step: Step, x: Tensor) -> Tensor:
    """SeparableConv1D and 2D: a depthwise convolution, then one of size 1."""
    layer = step.layer
    kernel, groups = _depthwise_kernel(array(layer.depthwise_kernel))
    between = _convolve(b, step, x, kernel, groups, step.grids.get("depthwise_kernel"), None, None)
    pointwise = np.moveaxis(array(layer.pointwise_kernel), (-1, -2), (0, 1))
    weights = weight_and_bias(
        b, step, pointwise, 0, step.grids.get("pointwise_kernel"), layer.bias, _fold_of(step)
    )  # fmt: skip
    return Tensor(b.node("Conv", [between.name, *weights]), step.outputs[0].shape, between.order)


def conv_transpose(b: Builder, step: Step, x: Tensor) -> Tensor:
    """Conv1DTranspose to Conv3DTranspose: kernel [spatial..., out, in]."""
    layer = step.layer
    kernel = np.moveaxis(array(layer.kernel), (-1, -2), (0, 1))
    rank = kernel.ndim - 2
    x, _, keras_first = spatial_input(b, layer, x)
    size, strides = list(kernel.shape[2:]), numbers(layer.strides, rank)
    dilations = numbers(layer.dilation_rate, rank)
    spans = [d * (k - 1) + 1 for k, d in zip(size, dilations, strict=True)]
    #: What is cut off the whole result, both sides; below zero: rows more, at the end.
    totals = _cut(layer, spans, strides)
    weights = weight_and_bias(b, step, kernel, 1, step.grids.get("kernel"), layer.bias, _fold_of(step))
    name = b.node(
        "ConvTranspose",
        [x.name, *weights],
        kernel_shape=size,
        strides=strides,
        dilations=dilations,
        pads=[*[max(t, 0) // 2 for t in totals], *[max(t, 0) - max(t, 0) // 2 for t in totals]],
        output_padding=[max(-t, 0) for t in totals],
    )
    return spatial_output(name, step, keras_first)


def _cut(layer: Any, spans: list[int], strides: list[int]) -> list[int]:
    given = getattr(layer, "output_padding", None)
    more = [None] * len(spans) if given is None else [given] * len(spans) if isinstance(given, int) else list(given)
    same = layer.padding == "same"
    return [
        (k - s if same else min(k - s, 0)) if p is None else (2 * (k // 2) if same else 0) - int(p)
        for k, s, p in zip(spans, strides, more, strict=True)
    ]


def dense(b: Builder, step: Step, x: Tensor) -> Tensor:
    """A Gemm of a matrix; a MatMul and an Add of more axes. A flattened input is taken as it lies."""
    layer, grid, shape = step.layer, step.grids.get("kernel"), step.outputs[0].shape
    kernel = array(layer.kernel)
    if x.unflattened is not None:
        source = x.unflattened
        kernel = kernel[flattened_rows(source)]
        name = b.node("Flatten", [source.name], axis=1)
    else:
        name = b.logical(x).name
    if len(shape) == 2:
        weights = weight_and_bias(b, step, kernel.T, 0, grid, layer.bias, _fold_of(step))
        return Tensor(b.node("Gemm", [name, *weights], transB=1), shape)
    weights = weight_and_bias(b, step, kernel, 1, grid, layer.bias, _fold_of(step))
    product = b.node("MatMul", [name, weights[0]])
    return Tensor(product if len(weights) == 1 else b.node("Add", [product, weights[1]]), shape)


def embedding(b: Builder, step: Step, x: Tensor) -> Tensor:
    """Rows picked by integers."""
    if step.layer.mask_zero:
        raise ExportError(
            f"layer '{step.name}': mask_zero=True has no ONNX form here; layers behind it would see no mask"
        )
    x = b.logical(x)
    indices = x.name if x.dtype in ("int32", "int64") else b.node("Cast", [x.name], to=6)
    table = array(step.layer.embeddings)
    grid = step.grids.get("embeddings")
    rows = np.ones(table.shape[0], np.float32)
    stored = b.floats(table, "embeddings") if grid is None else _on_grid(b, table, 0, grid, rows)
    return Tensor(b.node("Gather", [stored, indices], axis=0), step.outputs[0].shape)
