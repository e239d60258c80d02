# SPDX-License-Identifier: Apache-2.0
"""QDQ models in libwia: fused as they should be, and byte for byte what docs/quantization.md says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.reference
import pytest
from onnx import TensorProto

from tests import oracle
from tests.oracle import Grid, Ints
from tests.qdq_models import Builder
from wia_quant.runtime import Session, usable_isas

# Scales whose quotients are no simple fractions: else exact ties would be common, and float32 rounds them either way.
GRIDS = {"uint8": (Grid(0.0517, 117), Grid(0.1103, 101), Grid(0.0731, 140)),
         "int8": (Grid(0.0517, -11, "int8"), Grid(0.1103, -27, "int8"), Grid(0.0731, 12, "int8"))}  # fmt: skip


@dataclass
class Case:
    """A model, the exact levels its one output must be, and the operators libwia must make of it."""

    builder: Builder
    y: str  # the DequantizeLinear output, or a float
    grid: Grid | None  # of the expected levels; None: `expected` are floats to equal exactly
    expected: npt.NDArray[Any]
    ops: dict[str, int]
    extra: dict[str, Any] = field(default_factory=dict)


def feed_levels(b: Builder, grid: Grid, index: int = 0) -> Ints:
    """The levels of the builder's n-th input."""
    return oracle.quantize(list(b.feeds.values())[index], grid)


def per_channel_scales(b: Builder, n: int, per_channel: bool) -> npt.NDArray[np.float32]:
    return (b.rng.uniform(0.002, 0.02, n if per_channel else 1)).astype(np.float32)


@dataclass(frozen=True)
class Geometry:
    """A convolution."""

    x: tuple[int, int, int, int]
    out: int
    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: str = "int32"  # or "float", "none", "other scale"
    after: str = ""  # "Relu", "Clip"


GEOMETRIES = {
    "1x1": Geometry((1, 16, 7, 7), 24, (1, 1)),
    "3x3": Geometry((1, 8, 9, 9), 8, (3, 3), pads=(1, 1, 1, 1), after="Relu"),
    "3x3 stride 2": Geometry((2, 8, 9, 11), 12, (3, 3), (2, 2), (1, 1, 1, 1), after="Clip"),
    "stem": Geometry((1, 3, 17, 17), 32, (7, 7), (2, 2), (3, 3, 3, 3), bias="float"),
    "asymmetric pads": Geometry((1, 4, 8, 7), 5, (3, 2), (1, 2), (0, 1, 2, 0), bias="none"),
    "dilated": Geometry((1, 4, 12, 12), 6, (3, 3), pads=(2, 2, 2, 2), dilations=(2, 2)),
    "grouped": Geometry((1, 8, 6, 6), 12, (3, 3), pads=(1, 1, 1, 1), groups=4, bias="other scale"),
    "depthwise": Geometry((1, 24, 8, 8), 24, (3, 3), pads=(1, 1, 1, 1), groups=24, after="Relu"),
    "depthwise stride 2": Geometry((1, 19, 9, 9), 19, (5, 5), (2, 2), (2, 2, 2, 2), groups=19),
    "channel multiplier": Geometry((1, 6, 5, 5), 12, (3, 3), groups=6),
    "one pixel": Geometry((3, 40, 1, 1), 33, (1, 1), bias="float"),
}


def bias_of(b: Builder, kind: str, product_scale: npt.NDArray[np.float64], n: int) -> tuple[list[str], Ints]:
    """The bias input (none or one) and its levels on the accumulator's grid."""
    if kind == "none":
        return [], np.zeros(n, np.int64)
    levels = b.rng.integers(-3000, 3000, n)
    if kind == "int32":
        scale = np.broadcast_to(product_scale.astype(np.float32), (n,)).copy()
        return [b.weights(levels.astype(np.int32), scale, axis=0)], levels
    if kind == "float":
        real = (levels * product_scale).astype(np.float32) * np.float32(1.0003)
        return [b.constant(real)], oracle.bias_levels(real, product_scale)
    scale = np.float32(0.0123)
    real = levels.astype(np.float32) * scale
    return [b.weights(levels.astype(np.int32), scale)], oracle.bias_levels(real, product_scale)


def bounded(levels: Ints, after: str, grid: Grid) -> Ints:
    if after == "Relu":
        return np.maximum(levels, grid.zero_point)
    if after == "Clip":
        lo, hi = oracle.quantize(np.array([-0.4, 1.7], np.float32), grid)
        return np.clip(levels, lo, hi)
    return levels


def add_after(b: Builder, y: str, after: str) -> str:
    if after == "Relu":
        return str(b.node("Relu", [y]))
    if after == "Clip":
        return str(b.node("Clip", [y, b.constant(-0.4), b.constant(1.7)]))
    return y


def conv_case(dtype: str, per_channel: bool, g: Geometry, one_dimension: bool = False) -> Case:
    gx, gy, _ = GRIDS[dtype]
    b = Builder()
    x = b.activation((g.x[0], g.x[1], g.x[3]) if one_dimension else g.x, gx)
    shape = (g.out, g.x[1] // g.groups, *g.kernel)
    w = b.rng.integers(-127, 128, shape).astype(np.int8)
    scales = per_channel_scales(b, g.out, per_channel)
    product_scale = float(gx.step) * scales.astype(np.float64)
    file_w = w[:, :, 0] if one_dimension else w
    weights = b.weights(file_w, scales if per_channel else scales[0], axis=0 if per_channel else None)
    bias, levels = bias_of(b, g.bias, product_scale, g.out)
    d = slice(1, 2) if one_dimension else slice(0, 2)
    y = b.node("Conv", [x, weights, *bias], strides=list(g.strides[d]), dilations=list(g.dilations[d]), group=g.groups,
               pads=[g.pads[1], g.pads[3]] if one_dimension else list(g.pads))  # fmt: skip
    y = b.output(b.fake(add_after(b, y, g.after), gy))
    qx = feed_levels(b, gx).reshape(g.x) - gx.zero_point
    acc = oracle.conv(qx, w.astype(np.int64), g.strides, g.pads, g.dilations, g.groups) + levels.reshape(1, -1, 1, 1)
    m = np.broadcast_to(oracle.multiplier(product_scale, gy.scale), (g.out,)).reshape(1, -1, 1, 1)
    expected = bounded(oracle.requantize(acc, m, gy), g.after, gy)
    if one_dimension:
        expected = expected[:, :, 0]
    # The picture is transposed on the way in and out, unless it has one pixel.
    edges = 0 if g.x[2:] == (1, 1) else 2
    ops = {"Quantize": 1, "QConv": 1, "Dequantize": 1} | ({"Transpose": edges} if edges else {"Reshape": 2})
    return Case(b, y, gy, expected, ops)


def conv_float_out(dtype: str) -> Case:
    gx = GRIDS[dtype][0]
    b = Builder()
    x = b.activation((1, 5, 6, 6), gx)
    w = b.rng.integers(-127, 128, (7, 5, 3, 3)).astype(np.int8)
    scales = per_channel_scales(b, 7, True)
    y = b.output(b.node("Conv", [x, b.weights(w, scales, axis=0)]))
    acc = oracle.conv(feed_levels(b, gx) - gx.zero_point, w.astype(np.int64), (1, 1), (0, 0, 0, 0), (1, 1), 1)
    m = (float(gx.step) * scales.astype(np.float64)).astype(np.float32)
    return Case(
        b, y, None, acc.astype(np.float32) * m.reshape(1, -1, 1, 1), {"Quantize": 1, "QConv": 1, "Transpose": 2}
    )


def conv_weight_zero_point(dtype: str, zero_point: int, groups: int = 1) -> Case:
    """uint8 weights: zero point 128 moves to int8; another may not fit and needs the sums of x."""
    gx, gy, _ = GRIDS[dtype]
    b = Builder()
    x = b.activation((2, 6, 12, 12), gx)
    w = b.rng.integers(0, 256, (9 if groups == 1 else 6, 6 // groups, 3, 3)).astype(np.uint8)
    weights = b.weights(w, 0.01, zero_point=zero_point)
    bias = b.rng.integers(-3000, 3000, w.shape[0])
    product_scale = np.asarray(float(gx.step) * float(np.float32(0.01)))
    y = b.node("Conv", [x, weights, b.weights(bias.astype(np.int32), product_scale)], pads=[1, 1, 1, 1], group=groups)
    y = b.output(b.fake(y, gy))
    centred = w.astype(np.int64) - zero_point
    acc = oracle.conv(feed_levels(b, gx) - gx.zero_point, centred, (1, 1), (1, 1, 1, 1), (1, 1), groups)
    acc = acc + bias.reshape(1, -1, 1, 1)
    expected = oracle.requantize(acc, oracle.multiplier(product_scale, gy.scale), gy)
    return Case(b, y, gy, expected, {"Quantize": 1, "QConv": 1, "Dequantize": 1, "Transpose": 2})


def conv_transpose_case(dtype: str, per_channel: bool, groups: int) -> Case:
    gx, gy, _ = GRIDS[dtype]
    b = Builder()
    x = b.activation((1, 8, 5, 6), gx)
    w = b.rng.integers(-127, 128, (8, 3, 3, 2)).astype(np.int8)
    scales = per_channel_scales(b, 3, per_channel)
    weights = b.weights(w, scales if per_channel else scales[0], axis=1 if per_channel else None)
    y = b.node("ConvTranspose", [x, weights], strides=[2, 2], pads=[1, 0, 0, 1], group=groups)
    y = b.output(b.fake(y, gy))
    acc = oracle.conv_transpose(feed_levels(b, gx) - gx.zero_point, w.astype(np.int64), (2, 2), (1, 0, 0, 1), groups)
    m = oracle.multiplier(float(gx.step) * np.tile(np.broadcast_to(scales, 3), groups).astype(np.float64), gy.scale)
    expected = oracle.requantize(acc, m.reshape(1, -1, 1, 1), gy)
    return Case(b, y, gy, expected, {"Quantize": 1, "QConvTranspose": 1, "Dequantize": 1, "Transpose": 2})


def gemm_case(dtype: str, per_channel: bool, trans_b: bool, bias: str) -> Case:
    gx, gy, _ = GRIDS[dtype]
    b = Builder()
    x = b.activation((13, 70), gx)
    w = b.rng.integers(-127, 128, (70, 45)).astype(np.int8)
    scales = per_channel_scales(b, 45, per_channel)
    product_scale = float(gx.step) * scales.astype(np.float64)
    weights = b.weights(w.T.copy() if trans_b else w, scales if per_channel else scales[0],
                        axis=(0 if trans_b else 1) if per_channel else None)  # fmt: skip
    c, levels = bias_of(b, bias, product_scale, 45)
    y = b.output(b.fake(b.node("Gemm", [x, weights, *c], transB=int(trans_b)), gy))
    acc = (feed_levels(b, gx) - gx.zero_point) @ w.astype(np.int64) + levels
    return Case(b, y, gy, oracle.requantize(acc, oracle.multiplier(product_scale, gy.scale), gy),
                {"Quantize": 1, "QGemm": 1, "Dequantize": 1})  # fmt: skip


def matmul_case(dtype: str, bias: str, transposed: bool, zero_point: int | None = None) -> Case:
    gx, gy, _ = GRIDS[dtype]
    b = Builder()
    x = b.activation((2, 7, 33), gx)
    kind = np.uint8 if zero_point is not None else np.int8
    w = b.rng.integers(0 if zero_point is not None else -127, 256 if zero_point is not None else 128, (33, 20)).astype(
        kind
    )
    scales = per_channel_scales(b, 20, zero_point is None)
    product_scale = float(gx.step) * scales.astype(np.float64)
    if zero_point is not None:
        weights = b.weights(w, scales[0], zero_point=zero_point)
    elif transposed:
        weights = b.node("Transpose", [b.weights(w.T.copy(), scales, axis=0)], perm=[1, 0])
    else:
        weights = b.weights(w, scales, axis=1)
    y = b.node("MatMul", [x, weights])
    c, levels = bias_of(b, bias, product_scale, 20)
    if c:
        y = b.node("Add", [y, *c] if transposed else [*c, y])
    y = b.output(b.fake(y, gy))
    acc = (feed_levels(b, gx) - gx.zero_point) @ (w.astype(np.int64) - (zero_point or 0)) + levels
    return Case(b, y, gy, oracle.requantize(acc, oracle.multiplier(product_scale, gy.scale), gy),
                {"Quantize": 1, "QGemm": 1, "Dequantize": 1})  # fmt: skip


def attention_case(dtype: str) -> Case:
    """Both products of attention on [batch, tokens, heads, depth], transposed by strides alone."""
    gx, gy, gz = GRIDS[dtype]
    b = Builder()
    q, k = b.activation((2, 11, 3, 8), gx), b.activation((2, 5, 3, 8), gx)
    scores = b.node(
        "MatMul", [b.node("Transpose", [q], perm=[0, 2, 1, 3]), b.node("Transpose", [k], perm=[0, 2, 3, 1])]
    )
    scores = b.fake(scores, gy)
    v = b.activation((2, 5, 3, 8), gz)
    y = b.node("MatMul", [scores, b.node("Transpose", [v], perm=[0, 2, 1, 3])])
    y = b.output(b.fake(b.node("Transpose", [y], perm=[0, 2, 1, 3]), gz))
    qq, qk, qv = (feed_levels(b, g, i) - g.zero_point for i, g in enumerate((gx, gx, gz)))
    acc = qq.transpose(0, 2, 1, 3) @ qk.transpose(0, 2, 3, 1)
    s = oracle.requantize(acc, oracle.multiplier(float(gx.step) ** 2, gy.scale), gy)
    acc = (s - gy.zero_point) @ qv.transpose(0, 2, 1, 3)
    expected = oracle.requantize(acc, oracle.multiplier(float(gy.step) * float(gz.step), gz.scale), gz)
    return Case(b, y, gz, expected.transpose(0, 2, 1, 3), {"Quantize": 3, "QMatMul": 2, "Dequantize": 1})


def binary_case(dtype: str, op: str, b_shape: tuple[int, ...], after: str = "", constant: bool = False) -> Case:
    gx, gw, gy = GRIDS[dtype]
    b = Builder()
    x = b.activation((2, 5, 6, 7), gx)
    if constant:
        levels = b.rng.integers(gw.qmin, gw.qmax + 1, b_shape)
        w = b.dequantize(b.constant(levels, dtype), gw)
    else:
        w = b.activation(b_shape, gw)
        levels = feed_levels(b, gw, 1)
    y = b.output(b.fake(add_after(b, b.node(op, [x, w]), after), gy))
    qx = feed_levels(b, gx)
    if op == "Mul":
        expected = oracle.mul(qx, gx, levels, gw, gy)
    else:
        expected = oracle.add(qx, gx, levels, gw, gy, -1 if op == "Sub" else 1)
    return Case(b, y, gy, bounded(expected, after, gy),
                {"Quantize": 1 if constant else 2, "QMul" if op == "Mul" else "QAdd": 1, "Dequantize": 1})  # fmt: skip


def residual_case(dtype: str, after: str, table: bool) -> Case:
    """Conv -> Q -> DQ -> [a table] -> Add -> Q is one operator with every rounding kept."""
    gx, gc, gy = GRIDS[dtype]
    b = Builder()
    x = b.activation((1, 8, 6, 6), gx)
    w = b.rng.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8)
    scales = per_channel_scales(b, 8, True)
    c = b.fake(b.node("Conv", [x, b.weights(w, scales, axis=0)], pads=[1, 1, 1, 1]), gc)
    if table:
        c = b.fake(b.node("LeakyRelu", [c], alpha=0.1), gc)
    y = b.output(b.fake(add_after(b, b.node("Add", [x, c]), after), gy))
    qx = feed_levels(b, gx)
    acc = oracle.conv(qx - gx.zero_point, w.astype(np.int64), (1, 1), (1, 1, 1, 1), (1, 1), 1)
    m = oracle.multiplier(float(gx.step) * scales.astype(np.float64), gc.scale).reshape(1, -1, 1, 1)
    qc = oracle.requantize(acc, m, gc)
    if table:
        real = oracle.dequantize(qc, gc)
        qc = oracle.quantize(np.where(real < 0, np.float32(0.1) * real, real).astype(np.float32), gc)
    expected = bounded(oracle.add(qx, gx, qc, gc, gy), after, gy)
    return Case(b, y, gy, expected, {"Quantize": 1, "QConv": 1, "Dequantize": 1, "Transpose": 2})


def mean_case(dtype: str, op: str) -> Case:
    gx, gy, _ = GRIDS[dtype]
    b = Builder()
    x = b.activation((2, 6, 5, 7), gx)
    q = lambda: feed_levels(b, gx)  # noqa: E731
    if op == "GlobalAveragePool":
        y, expected = b.node(op, [x]), oracle.mean(q(), gx, gy, (2, 3))
        ops = {"QMean": 1}
    elif op == "ReduceMean":
        y, expected = (
            b.node(op, [x, b.constant([1], np.int64)], keepdims=0),
            oracle.mean(q(), gx, gy, (1,), keepdims=False),
        )
        ops = {"QMean": 1}
    else:
        include = op == "AveragePool, pads counted"
        y = b.node(
            "AveragePool", [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2], count_include_pad=int(include)
        )
        padded = np.pad(q() - gx.zero_point, ((0, 0), (0, 0), (1, 1), (1, 1)))
        ones = np.pad(np.ones_like(q()), ((0, 0), (0, 0), (1, 1), (1, 1)))
        total = oracle.windows(padded, (3, 3), (2, 2), (1, 1)).sum(axis=(4, 5))
        n = oracle.windows(ones, (3, 3), (2, 2), (1, 1)).sum(axis=(4, 5))
        expected = oracle.average(total, np.full_like(n, 9) if include else n, gx, gy)
        ops = {"QAveragePool": 1, "Transpose": 2}
    y = b.output(b.fake(y, gy))
    return Case(b, y, gy, expected, {"Quantize": 1, "Dequantize": 1} | ops)


def moving_case(dtype: str, op: str) -> Case:
    """Operators that only move values, between two equal grids: not one float is touched."""
    g = GRIDS[dtype][0]
    b = Builder()
    x = b.activation((2, 4, 6, 6), g)
    q = feed_levels(b, g)
    ops = {op: 1}
    if op == "MaxPool":
        y = b.node(op, [x], kernel_shape=[2, 2], strides=[2, 2])
        expected, ops = q.reshape(2, 4, 3, 2, 3, 2).max(axis=(3, 5)), {"QMaxPool": 1, "Transpose": 2}
    elif op == "Transpose":
        y, expected = b.node(op, [x], perm=[0, 3, 1, 2]), q.transpose(0, 3, 1, 2)
    elif op == "Reshape":
        y, expected = b.node(op, [x, b.constant([2, -1], np.int64)]), q.reshape(2, -1)
    elif op == "Slice":
        y = b.node(op, [x, b.constant([1], np.int64), b.constant([5], np.int64), b.constant([2], np.int64)])
        expected = q[:, :, 1:5]
    elif op == "Pad":
        y = b.node(op, [x, b.constant([0, 0, 1, 2, 0, 0, 0, 1], np.int64)])
        expected = np.pad(q, ((0, 0), (0, 0), (1, 0), (2, 1)), constant_values=g.zero_point)
    elif op == "Concat":
        y, expected = (
            b.node(op, [x, b.activation((2, 3, 6, 6), g)], axis=1),
            np.concatenate([q, feed_levels(b, g, 1)], 1),
        )
    elif op == "Gather":
        y, expected = b.node(op, [x, b.constant([2, 0], np.int64)], axis=1), q[:, [2, 0]]
    elif op == "Resize":
        scales = b.constant([1, 1, 2, 2])
        y = b.node(
            op, [x, "", scales], mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor"
        )
        expected = q.repeat(2, axis=2).repeat(2, axis=3)
    elif op == "Expand":
        y, expected = b.node(op, [x, b.constant([3, 1, 1, 1, 1], np.int64)]), np.broadcast_to(q, (3, 2, 4, 6, 6))
    elif op == "ReduceMax":
        y, expected = b.node(op, [x, b.constant([2, 3], np.int64)], keepdims=0), q.max(axis=(2, 3))
    elif op == "DepthToSpace":
        y = b.node(op, [x], blocksize=2)
        expected = q.reshape(2, 2, 2, 1, 6, 6).transpose(0, 3, 4, 1, 5, 2).reshape(2, 1, 12, 12)
    else:
        raise AssertionError(op)
    y = b.output(b.fake(y, g))
    n = 2 if op == "Concat" else 1
    return Case(b, y, g, expected, {"Quantize": n, "Dequantize": 1} | ops)


MOVERS = [
    "MaxPool",
    "Transpose",
    "Reshape",
    "Slice",
    "Pad",
    "Concat",
    "Gather",
    "Resize",
    "Expand",
    "ReduceMax",
    "DepthToSpace",
]


def concat_of_scales(dtype: str) -> Case:
    """Inputs of different scales are requantized one by one."""
    gx, gw, gy = GRIDS[dtype]
    b = Builder()
    y = b.node(
        "Concat", [b.activation((2, 3, 4), gx), b.activation((2, 5, 4), gw), b.activation((2, 2, 4), gy)], axis=1
    )
    y = b.output(b.fake(y, gy))
    parts = [oracle.quantize(oracle.dequantize(feed_levels(b, g, i), g), gy) for i, g in enumerate((gx, gw, gy))]
    return Case(b, y, gy, np.concatenate(parts, 1), {"Quantize": 3, "Table": 2, "Concat": 1, "Dequantize": 1})


def sigmoid64(x: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def table_case(dtype: str, name: str) -> Case:
    """Functions of one tensor, however they are written, are one table."""
    gx, gm, gy = GRIDS[dtype]
    b = Builder()
    x = b.activation((2, 5, 4), gx)
    real = oracle.dequantize(feed_levels(b, gx), gx).astype(np.float64)
    if name == "SiLU":
        y, f = b.node("Mul", [x, b.node("Sigmoid", [x])]), real * sigmoid64(real)
    elif name == "SiLU with Q inside":
        y = b.node("Mul", [x, b.fake(b.node("Sigmoid", [x]), gm)])
        f = real * oracle.dequantize(oracle.quantize(sigmoid64(real).astype(np.float32), gm), gm)
    elif name == "Gelu":
        half = b.node("Mul", [x, b.constant(0.5)])
        erf = b.node("Erf", [b.node("Div", [x, b.constant(np.sqrt(2))])])
        y = b.node("Mul", [half, b.node("Add", [erf, b.constant([1.0])])])
        import math

        f = real * 0.5 * (1 + np.vectorize(math.erf)(real / math.sqrt(2)))
    elif name == "HardSwish":
        y, f = b.node("HardSwish", [x]), real * np.clip(real / 6 + 0.5, 0, 1)
    elif name == "LeakyRelu":
        y, f = b.node("LeakyRelu", [x], alpha=0.2), np.where(real < 0, 0.2 * real, real)
    elif name == "PRelu":
        y, f = b.node("PRelu", [x, b.constant([[[0.3]]])]), np.where(real < 0, 0.3 * real, real)
    elif name == "Clip":
        y, f = b.node("Clip", [x, b.constant(-1.0), b.constant(2.0)]), np.clip(real, -1, 2)
    elif name == "Pow":
        y, f = b.node("Pow", [x, b.constant(2.0)]), real**2
    elif name == "Tanh":
        y, f = b.node("Tanh", [x]), np.tanh(real)
    else:
        raise AssertionError(name)
    y = b.output(b.fake(y, gy))
    return Case(b, y, gy, oracle.quantize(f.astype(np.float32), gy), {"Quantize": 1, "Table": 1, "Dequantize": 1})


TABLES = ["SiLU", "SiLU with Q inside", "Gelu", "HardSwish", "LeakyRelu", "PRelu", "Clip", "Pow", "Tanh"]


def conv_table_case(dtype: str) -> Case:
    """Conv, then SiLU of its levels: the table goes into the convolution."""
    gx, gm, gy = GRIDS[dtype]
    b = Builder()
    x = b.activation((1, 8, 5, 5), gx)
    w = b.rng.integers(-127, 128, (16, 8, 1, 1)).astype(np.int8)
    scales = per_channel_scales(b, 16, True)
    c = b.fake(b.node("Conv", [x, b.weights(w, scales, axis=0)]), gm)
    y = b.output(b.fake(b.node("Mul", [c, b.node("Sigmoid", [c])]), gy))
    acc = oracle.conv(feed_levels(b, gx) - gx.zero_point, w.astype(np.int64), (1, 1), (0, 0, 0, 0), (1, 1), 1)
    m = oracle.multiplier(float(gx.step) * scales.astype(np.float64), gm.scale).reshape(1, -1, 1, 1)
    real = oracle.dequantize(oracle.requantize(acc, m, gm), gm).astype(np.float64)
    expected = oracle.quantize((real * sigmoid64(real)).astype(np.float32), gy)
    return Case(b, y, gy, expected, {"Quantize": 1, "QConv": 1, "Dequantize": 1, "Transpose": 2})


def integer_output(dtype: str) -> Case:
    """An int8 or uint8 graph output keeps its type."""
    gx, gy, _ = GRIDS[dtype]
    b = Builder()
    x = b.activation((4, 30), gx)
    w = b.rng.integers(-127, 128, (30, 8)).astype(np.int8)
    y = b.quantize(b.node("MatMul", [x, b.weights(w, 0.01)]), gy)
    b.output(y, TensorProto.INT8 if dtype == "int8" else TensorProto.UINT8)
    acc = (feed_levels(b, gx) - gx.zero_point) @ w.astype(np.int64)
    expected = oracle.requantize(acc, oracle.multiplier(float(gx.step) * float(np.float32(0.01)), gy.scale), gy)
    ops = {"Quantize": 1, "QGemm": 1} | ({"FlipSign": 1} if dtype == "int8" else {})
    return Case(b, y, gy, expected, ops, {"integers": True})


def all_cases() -> dict[str, Callable[[], Case]]:
    cases: dict[str, Callable[[], Case]] = {}
    for dtype in ("uint8", "int8"):
        for per_channel in (False, True):
            kind = f"{dtype}, {'per channel' if per_channel else 'per tensor'}"
            for name, g in GEOMETRIES.items():
                cases[f"Conv {name}, {kind}"] = lambda d=dtype, p=per_channel, g=g: conv_case(d, p, g)
            line = Geometry((2, 6, 1, 15), 9, (1, 3), (1, 2), (0, 1, 0, 1))
            cases[f"Conv 1-D, {kind}"] = lambda d=dtype, p=per_channel, g=line: conv_case(d, p, g, one_dimension=True)
            for groups in (1, 2):
                cases[f"ConvTranspose groups {groups}, {kind}"] = (
                    lambda d=dtype, p=per_channel, g=groups: conv_transpose_case(d, p, g))  # fmt: skip
            for trans_b in (False, True):
                for bias in ("int32", "float", "none"):
                    cases[f"Gemm transB {int(trans_b)}, bias {bias}, {kind}"] = (
                        lambda d=dtype, p=per_channel, t=trans_b, c=bias: gemm_case(d, p, t, c))  # fmt: skip
        cases[f"Conv to float, {dtype}"] = lambda d=dtype: conv_float_out(d)
        for zero_point, groups in ((128, 1), (3, 1), (250, 1), (40, 3)):
            cases[f"Conv weight zero point {zero_point}, groups {groups}, {dtype}"] = (
                lambda d=dtype, z=zero_point, g=groups: conv_weight_zero_point(d, z, g))  # fmt: skip
        cases[f"MatMul, {dtype}"] = lambda d=dtype: matmul_case(d, "none", False)
        cases[f"MatMul weight zero point, {dtype}"] = lambda d=dtype: matmul_case(d, "none", False, 20)
        cases[f"MatMul bias, {dtype}"] = lambda d=dtype: matmul_case(d, "float", False)
        cases[f"MatMul transposed weight, bias, {dtype}"] = lambda d=dtype: matmul_case(d, "int32", True)
        cases[f"Attention, {dtype}"] = lambda d=dtype: attention_case(d)
        for op in ("Add", "Sub", "Mul"):
            for shape in ((2, 5, 6, 7), (5, 1, 1), (7,), (2, 1, 6, 1), (1,)):
                cases[f"{op} {shape}, {dtype}"] = lambda d=dtype, o=op, s=shape: binary_case(d, o, s)
            cases[f"{op} Relu, {dtype}"] = lambda d=dtype, o=op: binary_case(d, o, (2, 5, 6, 7), "Relu")
            cases[f"{op} constant, {dtype}"] = lambda d=dtype, o=op: binary_case(d, o, (5, 1, 1), constant=True)
        for after in ("", "Relu"):
            for table in (False, True):
                cases[f"Conv + residual {after} table {int(table)}, {dtype}"] = (
                    lambda d=dtype, a=after, t=table: residual_case(d, a, t))  # fmt: skip
        for op in ("GlobalAveragePool", "ReduceMean", "AveragePool", "AveragePool, pads counted"):
            cases[f"{op}, {dtype}"] = lambda d=dtype, o=op: mean_case(d, o)
        for op in MOVERS:
            cases[f"{op} on integers, {dtype}"] = lambda d=dtype, o=op: moving_case(d, o)
        cases[f"Concat of scales, {dtype}"] = lambda d=dtype: concat_of_scales(d)
        for name in TABLES:
            cases[f"{name} table, {dtype}"] = lambda d=dtype, n=name: table_case(d, n)
        cases[f"Conv SiLU, {dtype}"] = lambda d=dtype: conv_table_case(d)
        cases[f"Integer output, {dtype}"] = lambda d=dtype: integer_output(d)
    return cases


CASES = all_cases()


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    """Every case of the table."""
    return CASES[request.param]()


def levels_of(case: Case, y: npt.NDArray[Any]) -> Ints:
    """The levels behind the case's output."""
    if case.grid is None or case.extra.get("integers"):
        return y.astype(np.int64)
    return np.rint(y.astype(np.float64) / float(case.grid.step)).astype(np.int64) + case.grid.zero_point


def run(case: Case, **options: Any) -> npt.NDArray[Any]:
    session = Session(case.builder.model().SerializeToString(), **options)
    return session.run(None, case.builder.feeds)[0]


def test_every_level_is_what_the_equations_say(case: Case) -> None:
    y = run(case)
    assert y.shape == case.expected.shape
    if case.grid is None:
        assert np.array_equal(y, case.expected)
    else:
        assert np.array_equal(levels_of(case, y), case.expected)


def test_the_graph_is_fused(case: Case) -> None:
    session = Session(case.builder.model().SerializeToString())
    nodes = session.describe()["nodes"]
    assert Counter(n["op_type"] for n in nodes if n["kind"] != "folded") == case.ops


# onnx.reference cannot do a ConvTranspose of several groups.
@pytest.mark.parametrize("name", [name for name in CASES if "ConvTranspose groups 2" not in name])
def test_within_one_step_of_the_reference_evaluator(name: str) -> None:
    case = CASES[name]()
    expected = onnx.reference.ReferenceEvaluator(case.builder.model()).run(None, case.builder.feeds)[0]
    y = run(case)
    if case.grid is None:
        np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))
        return
    off = np.abs(levels_of(case, y) - levels_of(case, expected))
    assert off.max() <= 1
    assert (off > 0).sum() <= max(1, off.size // 1000)


@pytest.mark.parametrize("threads", [2, 4])
def test_equal_bytes_for_any_number_of_threads(case: Case, threads: int) -> None:
    assert run(case, threads=threads).tobytes() == run(case).tobytes()


@pytest.mark.parametrize("isa", usable_isas())
def test_equal_bytes_on_every_instruction_set(case: Case, isa: str) -> None:
    assert run(case, isa=isa).tobytes() == run(case).tobytes()


def test_a_product_whose_accumulator_has_no_normal_scale_runs_in_float() -> None:
    """Its multiplier would be that of a rounded scale, or 0."""
    tiny, far = Grid(1e-22, 100), Grid(1e-38, 128)
    b = Builder()
    x = b.activation((4, 30), tiny)
    w = b.rng.integers(-127, 128, (30, 8)).astype(np.int8)
    y = b.node("MatMul", [x, b.weights(w, 1e-20)])
    b.output(b.dequantize(b.quantize(y, far), far))
    session = Session(b.model().SerializeToString())
    assert "QGemm" not in {node["op_type"] for node in session.describe()["nodes"]}
    assert np.isfinite(session.run(None, b.feeds)[0]).all()
