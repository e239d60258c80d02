# SPDX-License-Identifier: Apache-2.0
"""The table: operator of TFLite -> the float operator that its integers stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import reduce
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from wia_quant.builder import Array, Builder, Tensor, channels_first, flattened_rows, padding_of
from wia_quant.errors import UnsupportedError
from wia_quant.gelu import gelu, gelu_tanh
from wia_quant.tflite import rearranging
from wia_quant.tflite.emitter import Emit, Graph, shape_of
from wia_quant.tflite.reader import Grid, Op
from wia_quant.tflite.rounding import HALF_UP, HALF_UP_OF_RESIZE, HALF_UP_OF_SUM, fixed_point, hard_swish

#: ActivationFunctionType -> what follows the operator.
_FUSED: Final = {0: None, 1: "relu", 2: "relu_n1_to_1", 3: "relu6", 4: "tanh"}
_BOUNDS: Final = {"relu_n1_to_1": (-1.0, 1.0), "relu6": (0.0, 6.0)}
_PADDING: Final = {0: "same", 1: "valid"}


def _activated(g: Graph, op: Op, y: Tensor) -> Tensor:
    code = int(getattr(op.options, "fusedActivationFunction", 0))
    if code not in _FUSED:
        raise UnsupportedError(f"{op.kind} '{op.name}': fused activation {code} of TFLite is not read")
    return _function(g.b, _FUSED[code], y)


def _function(b: Builder, name: str | None, y: Tensor) -> Tensor:
    if name is None:
        return y
    if name in _BOUNDS:
        lo, hi = _BOUNDS[name]
        return b.unary(y, "Clip", b.floats(lo, "min"), b.floats(hi, "max"))
    return b.unary(y, "Relu" if name == "relu" else "Tanh")


def _convolve(g: Graph, op: Op, turn: Callable[[Array], Array], groups: int) -> Tensor:
    o, x = op.options, g.b.first(g.x(op, 0))
    size = list(g.constant(op, 1).shape[1:3])
    strides = [int(o.strideH), int(o.strideW)]
    dilations = [int(o.dilationHFactor), int(o.dilationWFactor)]
    weights = [g.weight(op, 1, turn, 0), g.bias(op, 2)]
    name = g.b.node(
        "Conv",
        [x.name, *[w for w in weights if w is not None]],
        kernel_shape=size,
        strides=strides,
        dilations=dilations,
        group=groups,
        **padding_of(_PADDING[int(o.padding)], list(x.shape[1:3]), size, strides, dilations),
    )
    return _activated(g, op, Tensor(name, shape_of(g, op), channels_first(4)))


def _conv(g: Graph, op: Op) -> Tensor:
    channels, per_group = g.x(op, 0).shape[3], g.constant(op, 1).shape[3]
    return _convolve(g, op, lambda w: w.transpose(0, 3, 1, 2), int(channels or per_group) // per_group)


def _depthwise(g: Graph, op: Op) -> Tensor:
    return _convolve(g, op, lambda w: w.transpose(3, 0, 1, 2), int(g.x(op, 0).shape[3] or 1))


def _transpose_conv(g: Graph, op: Op) -> Tensor:
    o, x = op.options, g.b.first(g.x(op, 2))
    kernel = g.constant(op, 1)
    size, strides = list(kernel.shape[1:3]), [int(o.strideH), int(o.strideW)]
    totals = [max(k - s, 0) if int(o.padding) == 0 else 0 for k, s in zip(size, strides, strict=True)]
    weights = [g.weight(op, 1, lambda w: w.transpose(3, 0, 1, 2), 1), g.bias(op, 3) if len(op.inputs) > 3 else None]
    name = g.b.node(
        "ConvTranspose",
        [x.name, *[w for w in weights if w is not None]],
        kernel_shape=size,
        strides=strides,
        pads=[*[t // 2 for t in totals], *[t - t // 2 for t in totals]],
        output_padding=[max(s - k, 0) for k, s in zip(size, strides, strict=True)],
    )
    return _activated(g, op, Tensor(name, shape_of(g, op), channels_first(4)))


def _fully_connected(g: Graph, op: Op) -> Tensor:
    x = g.x(op, 0)
    columns = g.constant(op, 1).shape[1]
    if x.unflattened is not None:
        rows = flattened_rows(x.unflattened)
        name = g.b.node("Flatten", [x.unflattened.name], axis=1)
    else:
        rows, x = None, g.b.logical(x)
        name = x.name
        if x.rank != 2:
            name = g.b.node("Reshape", [name, g.b.integers([-1, columns], "rows")])
    weight = g.weight(op, 1, lambda w: w if rows is None else w[:, rows], 0)
    bias = g.bias(op, 2)
    product = g.b.node("Gemm", [name, weight, *([] if bias is None else [bias])], transB=1)
    shape = shape_of(g, op)
    if len(shape) != 2:
        product = g.b.node("Reshape", [product, g.b.integers([0 if shape[0] is None else shape[0], *shape[1:]], "s")])
    return _activated(g, op, Tensor(product, shape))


def _joined(g: Graph, op: Op, op_type: str) -> Tensor:
    (left, right), order = g.b.alike(g.x(op, 0), g.x(op, 1))
    return Tensor(g.b.node(op_type, [left.name, right.name]), shape_of(g, op), order)


def _binary(op_type: str) -> Emit:
    return lambda g, op: _activated(g, op, _joined(g, op, op_type))


def _sum(op_type: str) -> Emit:
    def emit(g: Graph, op: Op) -> Tensor:
        """With one number it is a function of one tensor, which costs nothing to round as LiteRT does."""
        numbers = [info for info in map(g.info, op.inputs) if info.data is not None and info.data.size == 1]
        y, grid = _joined(g, op, op_type), g.info(op.outputs[0]).grid
        if len(numbers) == 1 and grid is not None:
            y = _lifted(g.b, y, HALF_UP_OF_SUM, grid)
        return _activated(g, op, y)

    return emit


def _pool(op_type: str) -> Emit:
    def emit(g: Graph, op: Op) -> Tensor:
        o, x = op.options, g.b.first(g.x(op, 0))
        size, strides = [int(o.filterHeight), int(o.filterWidth)], [int(o.strideH), int(o.strideW)]
        padding = padding_of(_PADDING[int(o.padding)], list(x.shape[1:3]), size, strides, [1, 1])
        name = g.b.node(op_type, [x.name], kernel_shape=size, strides=strides, **padding)
        y, grid = Tensor(name, shape_of(g, op), channels_first(4)), g.info(op.outputs[0]).grid
        if op_type == "AveragePool" and grid is not None and (padding or math.prod(size) % 2 == 0):
            y = _away_from_level_0(g.b, y, math.prod(size), grid)
        return _activated(g, op, y)

    return emit


def _away_from_level_0(b: Builder, y: Tensor, n: int, grid: Grid) -> Tensor:
    """Means of at most ``n`` levels, and a little: halves are rounded away from level 0, as LiteRT rounds them."""
    scale, zero_point = np.float64(grid.scale[0]), int(grid.zero_point[0])
    level_0 = b.floats(zero_point * scale, "level_0")
    bounds = [b.floats(sign * scale / (4 * n), name) for sign, name in ((-1, "down"), (1, "up"))]
    part = b.floats(0.5 / n, "part")

    def make(x: Tensor) -> str:
        lift = b.node("Clip", [b.node("Mul", [b.node("Add", [x.name, level_0]), part]), *bounds])
        return b.node("Add", [x.name, lift])

    return b.elementwise(y, make)


def _mean(g: Graph, op: Op) -> Tensor:
    x = g.x(op, 0)
    axes = sorted(int(a) % x.rank for a in g.constant(op, 1).reshape(-1))
    keep = bool(op.options.keepDims)
    if x.rank == 4 and axes == [1, 2]:
        name = g.b.node("GlobalAveragePool", [g.b.first(x).name])
        if keep:
            return Tensor(name, shape_of(g, op), channels_first(4))
        return Tensor(g.b.node("Flatten", [name], axis=1), shape_of(g, op))
    name = g.b.node("ReduceMean", [g.b.logical(x).name, g.b.integers(axes, "axes")], keepdims=int(keep))
    return Tensor(name, shape_of(g, op))


def _concatenation(g: Graph, op: Op) -> Tensor:
    xs, order = g.b.alike(*(g.x(op, i) for i in range(len(op.inputs))))
    name = g.b.node("Concat", [x.name for x in xs], axis=xs[0].axis(int(op.options.axis)))
    return _activated(g, op, Tensor(name, shape_of(g, op), order))


def _softmax(g: Graph, op: Op) -> Tensor:
    if float(op.options.beta) != 1.0:
        raise UnsupportedError(f"SOFTMAX '{op.name}': a beta other than 1 is not read")
    x = g.b.logical(g.x(op, 0))
    return Tensor(g.b.node("Softmax", [x.name], axis=x.rank - 1), x.shape)


def _unary(op_type: str, **attributes: Any) -> Emit:
    return lambda g, op: g.b.unary(g.x(op, 0), op_type, **attributes)


def _bounded(name: str) -> Emit:
    return lambda g, op: _function(g.b, name, g.x(op, 0))


def _leaky(g: Graph, op: Op) -> Tensor:
    """Two multipliers of few bits, from levels to levels; the reals that give the same levels."""
    x, before, after = g.x(op, 0), g.info(op.inputs[0]).grid, g.info(op.outputs[0]).grid
    alpha = np.float32(op.options.alpha)
    if before is None or after is None:
        return g.b.unary(x, "LeakyRelu", alpha=float(alpha))
    ratio = before.scale[0] / after.scale[0]
    above, below = fixed_point(ratio), fixed_point(ratio * alpha)
    if above is None or below is None or above == 0:
        return g.b.unary(x, "LeakyRelu", alpha=float(alpha))
    y = g.b.unary(_multiplied(g.b, x, above, before, after), "LeakyRelu", alpha=below / above)
    return _lifted(g.b, y, HALF_UP, after)


def _hard_swish(g: Graph, op: Op) -> Tensor:
    """With what is apart at the few levels where LiteRT's 16-bit fixed point rounds otherwise."""
    x, before, after = g.x(op, 0), g.info(op.inputs[0]), g.info(op.outputs[0])
    y = g.b.unary(x, "HardSwish")
    if before.grid is None or after.grid is None:
        return y
    ends = np.iinfo(before.dtype)
    q = np.arange(ends.min, ends.max + 1, dtype=np.int64) - int(before.grid.zero_point[0])
    reals = q * np.float64(before.grid.scale[0])
    step = np.float64(after.grid.scale[0])
    exact = reals * np.clip(reals + 3, 0, 6) / 6
    wanted = hard_swish(q, before.grid.scale[0], after.grid.scale[0]) * step
    apart = np.abs(exact - wanted) > (0.5 - _NEAR_HALF) * step
    return _moved_at(g.b, x, y, reals[apart], (wanted - exact)[apart], np.float64(before.grid.scale[0]))


#: As near as this to the border of two levels, in levels, float32 arithmetic may fall to either side.
_NEAR_HALF: Final = 1e-4


def _moved_at(b: Builder, x: Tensor, y: Tensor, places: Array, by: Array, step: np.float64) -> Tensor:
    """``y``, a function of ``x``, moved at a few of the levels of ``x``: each by a peak that is 0 at the next ones."""

    def make(t: Tensor) -> str:
        total = ""
        for place, height in zip(places, by, strict=True):
            distance = b.node("Abs", [b.node("Sub", [t.name, b.floats(place, "level")])])
            peak = b.node("Relu", [b.node("Sub", [b.floats(step / 2, "half"), distance])])
            one = b.node("Mul", [peak, b.floats(height / (step / 2), "height")])
            total = b.node("Add", [total, one]) if total else one
        return total

    if not len(places):
        return y
    moved = b.elementwise(x, make)
    return b.like(y, b.node("Add", [y.name, moved.name]))


def _multiplied(b: Builder, x: Tensor, multiplier: float, before: Grid, after: Grid) -> Tensor:
    """The reals whose levels are those of ``x`` times ``multiplier``."""
    return b.unary(x, "Mul", b.floats(multiplier * np.float64(after.scale[0]) / np.float64(before.scale[0]), "ratio"))


def _lifted(b: Builder, x: Tensor, levels: float, grid: Grid) -> Tensor:
    """``x`` and a little: rounded to even as ever, it is ``x`` with halves rounded up."""
    return b.unary(x, "Add", b.floats(levels * np.float64(grid.scale[0]), "half_up"))


def _resize(mode: str) -> Emit:
    def emit(g: Graph, op: Op) -> Tensor:
        o, x = op.options, g.b.first(g.x(op, 0))
        shape, sizes = shape_of(g, op), x.shape[1:3]
        if None in sizes or o.alignCorners:
            raise UnsupportedError(f"{op.kind} '{op.name}': aligned corners or an open size are not read")
        scales = [float(n or 1) / float(s or 1) for n, s in zip(shape[1:3], sizes, strict=True)]
        coordinates = "half_pixel" if o.halfPixelCenters else "asymmetric"
        rounding = ("round_prefer_ceil" if o.halfPixelCenters else "floor") if mode == "nearest" else None
        inputs = [x.name, "", g.b.floats([1.0, 1.0, *scales], "scales")]
        name = g.b.node(
            "Resize", inputs, mode=mode, coordinate_transformation_mode=coordinates, nearest_mode=rounding
        )  # fmt: skip
        y, grid = Tensor(name, shape, channels_first(4)), g.info(op.outputs[0]).grid
        return y if grid is None or mode == "nearest" else _lifted(g.b, y, HALF_UP_OF_RESIZE, grid)

    return emit


def _same(g: Graph, op: Op) -> Tensor:
    return g.x(op, 0)


def _quantize(g: Graph, op: Op) -> Tensor:
    """From one grid to another: a number stands between the two, or bounds that change nothing."""
    x, before, after = g.x(op, 0), g.info(op.inputs[0]), g.info(op.outputs[0])
    if before.grid is None or after.grid is None:
        return x
    multiplier = fixed_point(float(before.grid.scale[0] / after.grid.scale[0]))
    if before.dtype == after.dtype and multiplier is not None:
        return _lifted(g.b, _multiplied(g.b, x, multiplier, before.grid, after.grid), HALF_UP, after.grid)
    lo, hi = np.iinfo(after.dtype).min, np.iinfo(after.dtype).max
    scale, zero_point = np.float64(after.grid.scale[0]), int(after.grid.zero_point[0])
    ends = [g.b.floats((level - zero_point) * scale, name) for level, name in ((lo, "min"), (hi, "max"))]
    return g.b.unary(x, "Clip", *ends)


def _add_n(g: Graph, op: Op) -> Tensor:
    xs, order = g.b.alike(*(g.x(op, i) for i in range(len(op.inputs))))
    name = reduce(lambda a, c: g.b.node("Add", [a, c]), [x.name for x in xs])
    return Tensor(name, shape_of(g, op), order)


def _total(g: Graph, op: Op) -> Tensor:
    x = g.b.logical(g.x(op, 0))
    axes = sorted(int(a) % x.rank for a in g.constant(op, 1).reshape(-1))
    name = g.b.node("ReduceSum", [x.name, g.b.integers(axes, "axes")], keepdims=int(bool(op.options.keepDims)))
    return Tensor(name, shape_of(g, op))


def _prelu(g: Graph, op: Op) -> Tensor:
    """A slope for every value of a sample, or shared along axes."""
    x, slope = g.x(op, 0), g.x(op, 1)
    x = g.b.logical(x) if x.order is None or slope.rank != x.rank - 1 else x
    turned = slope
    if x.order is not None:
        perm = [axis - 1 for axis in x.order if axis > 0]
        turned = Tensor(g.b.node("Transpose", [slope.name], perm=perm), slope.shape)
    return g.b.like(x, g.b.node("PRelu", [x.name, turned.name]))


def _batch_matmul(g: Graph, op: Op) -> Tensor:
    names = []
    for place, turned in ((0, op.options.adjX), (1, op.options.adjY)):
        x = g.b.logical(g.x(op, place))
        perm = [*range(x.rank - 2), x.rank - 1, x.rank - 2]
        names.append(g.b.node("Transpose", [x.name], perm=perm) if turned else x.name)
    return Tensor(g.b.node("MatMul", names), shape_of(g, op))


def _squared_difference(g: Graph, op: Op) -> Tensor:
    y = _joined(g, op, "Sub")
    return g.b.elementwise(y, lambda t: g.b.node("Mul", [t.name, t.name]))


def _rsqrt(g: Graph, op: Op) -> Tensor:
    return g.b.unary(g.b.unary(g.x(op, 0), "Sqrt"), "Reciprocal")


def _gelu(g: Graph, op: Op) -> Tensor:
    return gelu_tanh(g.b, g.x(op, 0)) if op.options.approximate else gelu(g.b, g.x(op, 0))


def _ignored(g: Graph, op: Op) -> None:
    """Computes a shape, which the file says, too."""


OPERATORS: Final[Mapping[str, Emit]] = MappingProxyType(
    {
        "CONV_2D": _conv,
        "DEPTHWISE_CONV_2D": _depthwise,
        "TRANSPOSE_CONV": _transpose_conv,
        "FULLY_CONNECTED": _fully_connected,
        "ADD": _sum("Add"),
        "SUB": _sum("Sub"),
        "MUL": _binary("Mul"),
        "MAXIMUM": _binary("Max"),
        "MINIMUM": _binary("Min"),
        "ADD_N": _add_n,
        "AVERAGE_POOL_2D": _pool("AveragePool"),
        "MAX_POOL_2D": _pool("MaxPool"),
        "MEAN": _mean,
        "RESHAPE": rearranging.reshape,
        "SQUEEZE": rearranging.reshape,
        "EXPAND_DIMS": rearranging.reshape,
        "TRANSPOSE": rearranging.transpose,
        "PAD": rearranging.pad,
        "CONCATENATION": _concatenation,
        "SOFTMAX": _softmax,
        "LOGISTIC": _unary("Sigmoid"),
        "TANH": _unary("Tanh"),
        "HARD_SWISH": _hard_swish,
        "ELU": _unary("Elu"),
        "RELU": _bounded("relu"),
        "RELU6": _bounded("relu6"),
        "RELU_N1_TO_1": _bounded("relu_n1_to_1"),
        "LEAKY_RELU": _leaky,
        "RESIZE_NEAREST_NEIGHBOR": _resize("nearest"),
        "RESIZE_BILINEAR": _resize("linear"),
        "QUANTIZE": _quantize,
        "DEQUANTIZE": _same,
        "SHAPE": _ignored,
        "PACK": rearranging.pack,
        "UNPACK": rearranging.unpack,
        "SLICE": rearranging.part,
        "GATHER": rearranging.gather,
        "TILE": rearranging.tile,
        "REVERSE_V2": rearranging.reverse,
        "PADV2": rearranging.pad,
        "MIRROR_PAD": rearranging.mirror_pad,
        "DEPTH_TO_SPACE": rearranging.depth_to_space("DepthToSpace", "DCR"),
        "SPACE_TO_DEPTH": rearranging.depth_to_space("SpaceToDepth"),
        "REDUCE_MAX": rearranging.ends("ReduceMax"),
        "REDUCE_MIN": rearranging.ends("ReduceMin"),
        "SUM": _total,
        "PRELU": _prelu,
        "BATCH_MATMUL": _batch_matmul,
        "SQUARED_DIFFERENCE": _squared_difference,
        "EXP": _unary("Exp"),
        "RSQRT": _rsqrt,
        "ABS": _unary("Abs"),
        "GELU": _gelu,
        "STRIDED_SLICE": rearranging.strided_slice,
        "SPLIT": rearranging.split(1, 0),
        "SPLIT_V": rearranging.split(0, 2),
    }
)

#: What moves or selects values: its result is on the grid of its input already.
MOVERS: Final = frozenset(
    {
        "MAX_POOL_2D", "RESHAPE", "SQUEEZE", "EXPAND_DIMS", "TRANSPOSE", "PAD", "RESIZE_NEAREST_NEIGHBOR", "DEQUANTIZE",
        "STRIDED_SLICE", "SPLIT", "SPLIT_V", "UNPACK", "SLICE", "GATHER", "TILE", "REVERSE_V2", "MIRROR_PAD",
        "DEPTH_TO_SPACE", "SPACE_TO_DEPTH", "REDUCE_MAX", "REDUCE_MIN",
    }
)  # fmt: skip
