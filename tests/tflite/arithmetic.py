# SPDX-License-Identifier: Apache-2.0
"""How LiteRT's kernels round, written from what they do: for each, integers to the same integers.

A result of ours that differs is explained if LiteRT's integers are those of its arithmetic, all of them, and ours is
the level next to the exact number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.tflite.litert import Step, in_libwia
from wia_quant.tflite.reader import Grid
from wia_quant.tflite.rounding import half_away, hard_swish, of_31_bits

Integers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

#: Fractional bits of a fixed-point multiplier, and of the multipliers of a sum.
_Q31, _SUM_BITS = 31, 20

#: Relative error of four roundings to float32, which ours and LiteRT's numbers have at most.
_FLOAT32 = 2.0**-22


# -- an accumulator and a multiplier -> levels before the zero point -----------------------------------------------


def float32_product(acc: Integers, x: np.float32, w: np.float32, y: np.float32) -> Integers:
    """XNNPACK: one float32 multiplier, made in float32; a half to even."""
    return np.rint(acc.astype(np.float32) * ((x * w) / y)).astype(np.int64)


def twice_half_up(acc: Integers, x: np.float32, w: np.float32, y: np.float32) -> Integers:
    """The optimized kernels: to 31 fractional bits, then to a level, each time a half up."""
    q, shift = of_31_bits(float(np.float64(x) * np.float64(w) / np.float64(y)))
    high = ((acc << max(shift, 0)) * q + 2 ** (_Q31 - 1)) >> _Q31
    down = max(-shift, 0)
    return (high + ((1 << down) >> 1)) >> down


def twice_half_away(acc: Integers, x: np.float32, w: np.float32, y: np.float32) -> Integers:
    """The reference kernels: the same, but the second time a half away from zero."""
    q, shift = of_31_bits(float(np.float64(x) * np.float64(w) / np.float64(y)))
    high = ((acc << max(shift, 0)) * q + 2 ** (_Q31 - 1)) >> _Q31
    return half_away(high, max(-shift, 0))


def once_half_up(acc: Integers, x: np.float32, w: np.float32, y: np.float32) -> Integers:
    """The reference kernel of FULLY_CONNECTED: a 31-bit multiplier, one rounding."""
    q, shift = of_31_bits(float(np.float64(x) * np.float64(w) / np.float64(y)))
    return (acc * q + (1 << (_Q31 - 1 - shift))) >> (_Q31 - shift)


REQUANTIZATIONS: Mapping[str, Callable[[Integers, np.float32, np.float32, np.float32], Integers]] = MappingProxyType(
    {
        "float32 product": float32_product,
        "twice, half up": twice_half_up,
        "twice, half away": twice_half_away,
        "once, half up": once_half_up,
    }
)


# -- operators: (the exact result in levels, {arithmetic: what it gives}) -------------------------------------------


@dataclass(frozen=True)
class Candidates:
    """The exact result in levels with the zero point, and what each arithmetic makes of it, before saturation."""

    exact: Reals
    rounded: dict[str, Integers]


def _grid(step: Step, index: int) -> Grid:
    grid = step.model.tensors[index].grid
    assert grid is not None
    return grid


def _centred(step: Step, index: int) -> Integers:
    """Levels less the zero point, of an activation or a constant."""
    info = step.model.tensors[index]
    values = step.values[index] if info.data is None else info.data
    return values.astype(np.int64) - (0 if info.grid is None else int(info.grid.zero_point[0]))


def _products(step: Step, acc: Integers, x: Grid, w: Grid) -> Candidates:
    y = _grid(step, step.op.outputs[0])
    channels = acc.shape[-1]
    w_scale = np.broadcast_to(w.scale, (channels,))
    zero_point = int(y.zero_point[0])
    exact = acc * (np.float64(x.scale[0]) * w_scale.astype(np.float64) / np.float64(y.scale[0])) + zero_point
    rounded = {
        name: np.stack([f(acc[..., c], x.scale[0], w_scale[c], y.scale[0]) for c in range(channels)], -1) + zero_point
        for name, f in REQUANTIZATIONS.items()
    }
    return Candidates(exact, rounded)


def _windows(x: Integers, size: tuple[int, int], o: Any, shape: tuple[int, ...]) -> tuple[list[list[Integers]], int]:
    """For each place of a kernel the picture that it sees, zeros outside."""
    strides = (int(o.strideH), int(o.strideW))
    dilations = (int(getattr(o, "dilationHFactor", 1)), int(getattr(o, "dilationWFactor", 1)))
    pads = []
    for n, k, s, d, m in zip(x.shape[1:3], size, strides, dilations, shape[1:3], strict=True):
        total = max((m - 1) * s + d * (k - 1) + 1 - n, 0) if int(o.padding) == 0 else 0
        pads.append((total // 2, total - total // 2))
    padded = np.pad(x, [(0, 0), *pads, (0, 0)])
    found = []
    for i in range(size[0]):
        row = []
        for j in range(size[1]):
            top, left = i * dilations[0], j * dilations[1]
            rows = slice(top, top + (shape[1] - 1) * strides[0] + 1, strides[0])
            row.append(padded[:, rows, left : left + (shape[2] - 1) * strides[1] + 1 : strides[1]])
        found.append(row)
    return found, size[0] * size[1]


def _matmul(a: Integers, b: Integers) -> Integers:
    """Exact: every sum is below 2^53."""
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(np.int64)


def _bias(step: Step, place: int) -> Integers:
    if place >= len(step.op.inputs) or step.op.inputs[place] < 0:
        return np.zeros(1, np.int64)
    return np.asarray(step.model.tensors[step.op.inputs[place]].data, np.int64).reshape(-1)


def _conv(step: Step) -> Candidates:
    x, w = _centred(step, step.op.inputs[0]), _centred(step, step.op.inputs[1])
    seen, _ = _windows(x, w.shape[1:3], step.op.options, step.output.shape)
    groups = x.shape[3] // w.shape[3]
    each = w.shape[0] // groups
    acc = np.zeros(step.output.shape, np.int64) + _bias(step, 2)
    for i, row in enumerate(seen):
        for j, picture in enumerate(row):
            for g in range(groups):
                rows, channels = slice(g * w.shape[3], (g + 1) * w.shape[3]), slice(g * each, (g + 1) * each)
                acc[..., channels] += _matmul(picture[..., rows], w[channels, i, j].T)
    return _products(step, acc, _grid(step, step.op.inputs[0]), _grid(step, step.op.inputs[1]))


def _depthwise(step: Step) -> Candidates:
    x, w = _centred(step, step.op.inputs[0]), _centred(step, step.op.inputs[1])
    seen, _ = _windows(x, w.shape[1:3], step.op.options, step.output.shape)
    each = w.shape[3] // x.shape[3]
    acc = np.zeros(step.output.shape, np.int64) + _bias(step, 2)
    for i, row in enumerate(seen):
        for j, picture in enumerate(row):
            acc += np.repeat(picture, each, axis=3) * w[0, i, j]
    return _products(step, acc, _grid(step, step.op.inputs[0]), _grid(step, step.op.inputs[1]))


def _transpose_conv(step: Step) -> Candidates:
    x, w = _centred(step, step.op.inputs[2]), _centred(step, step.op.inputs[1])
    o, (n, height, width, _) = step.op.options, step.output.shape
    strides, size = (int(o.strideH), int(o.strideW)), w.shape[1:3]
    spans = [(m - 1) * s + k for m, s, k in zip(x.shape[1:3], strides, size, strict=True)]
    acc = np.zeros((n, max(spans[0], height), max(spans[1], width), w.shape[0]), np.int64)
    for i in range(size[0]):
        for j in range(size[1]):
            rows = slice(i, i + (x.shape[1] - 1) * strides[0] + 1, strides[0])
            acc[:, rows, j : j + (x.shape[2] - 1) * strides[1] + 1 : strides[1]] += _matmul(x, w[:, i, j].T)
    top, left = (
        (max(s - m, 0) // 2 if int(o.padding) == 0 else 0) for s, m in zip(spans, (height, width), strict=True)
    )
    acc = acc[:, top : top + height, left : left + width] + _bias(step, 3)
    return _products(step, acc, _grid(step, step.op.inputs[2]), _grid(step, step.op.inputs[1]))


def _fully_connected(step: Step) -> Candidates:
    x, w = _centred(step, step.op.inputs[0]), _centred(step, step.op.inputs[1])
    acc = _matmul(x.reshape(-1, w.shape[1]), w.T) + _bias(step, 2)
    acc = acc.reshape(step.output.shape)
    return _products(step, acc, _grid(step, step.op.inputs[0]), _grid(step, step.op.inputs[1]))


def _mul(step: Step) -> Candidates:
    left, right = step.op.inputs
    acc = _centred(step, left) * _centred(step, right)
    return _products(step, acc, _grid(step, left), _grid(step, right))


def _sum(sign: int) -> Callable[[Step], Candidates]:
    def of(step: Step) -> Candidates:
        """XNNPACK: multipliers of which the larger has 21 bits, one sum, a half up."""
        (left, right), y = step.op.inputs, _grid(step, step.op.outputs[0])
        a, b = _centred(step, left), sign * _centred(step, right)
        ratios = [_grid(step, i).scale[0] / y.scale[0] for i in (left, right)]
        bits = _SUM_BITS - (math.frexp(float(max(ratios)))[1] - 1)
        ma, mb = (int(np.rint(np.ldexp(np.float64(r), bits))) for r in ratios)
        acc = a * ma + b * mb
        zero_point = int(y.zero_point[0])
        exact = sum(
            v * (np.float64(_grid(step, i).scale[0]) / np.float64(y.scale[0]))
            for v, i in ((a, left), (b, right))
        )  # fmt: skip
        return Candidates(exact + zero_point, {"21-bit sum": ((acc + (1 << (bits - 1))) >> bits) + zero_point})

    return of


def _few_bits(alpha: Callable[[Step], float]) -> Callable[[Step], Candidates]:
    def of(step: Step) -> Candidates:
        """XNNPACK: multipliers in steps of 1/256, a half up; beyond its bounds in 31 bits."""
        (i,), y = step.op.inputs, _grid(step, step.op.outputs[0])
        q, x, zero_point = _centred(step, i), _grid(step, i).scale[0], int(y.zero_point[0])
        slopes = np.where(q < 0, np.float32(alpha(step)), np.float32(1))
        multiplier = np.rint(256 * ((x / y.scale[0]) * slopes)).astype(np.int64)
        rounded = {"8-bit fraction": ((q * multiplier + 128) >> 8) + zero_point}
        for name in ("twice, half up", "twice, half away"):
            above, below = (REQUANTIZATIONS[name](q, x, np.float32(s), y.scale[0]) for s in (1, alpha(step)))
            rounded[name] = np.where(q < 0, below, above) + zero_point
        return Candidates(q * (np.float64(x) / np.float64(y.scale[0])) * slopes + zero_point, rounded)

    return of


def _hard_swish(step: Step) -> Candidates:
    (i,), y = step.op.inputs, _grid(step, step.op.outputs[0])
    q, scale, zero_point = _centred(step, i), _grid(step, i).scale[0], int(y.zero_point[0])
    x = q * np.float64(scale)
    exact = x * np.clip(x + 3, 0, 6) / 6 / np.float64(y.scale[0]) + zero_point
    return Candidates(exact, {"16-bit products": hard_swish(q, scale, y.scale[0]) + zero_point})


def _fixed_point(acc: Integers, multiplier: np.float64) -> dict[str, Integers]:
    """By a multiplier of 31 bits, as the kernels do that XNNPACK has not."""
    one = np.float32(1)
    return {name: REQUANTIZATIONS[name](acc, multiplier, one, one) for name in ("twice, half up", "twice, half away")}


def _prelu(step: Step) -> Candidates:
    x, alpha, y = (_grid(step, i) for i in (*step.op.inputs, step.op.outputs[0]))
    q, slope = (_centred(step, i) for i in step.op.inputs)
    ratio, zero_point = np.float64(x.scale[0]) / np.float64(y.scale[0]), int(y.zero_point[0])
    above, below = _fixed_point(q, ratio), _fixed_point(q * slope, ratio * np.float64(alpha.scale[0]))
    exact = q * ratio * np.where(q < 0, slope * np.float64(alpha.scale[0]), 1.0)
    rounded = {name: np.where(q < 0, below[name], above[name]) + zero_point for name in above}
    return Candidates(exact + zero_point, rounded)


def _batch_matmul(step: Step) -> Candidates:
    a, b = (_centred(step, i) for i in step.op.inputs)
    a = np.swapaxes(a, -1, -2) if step.op.options.adjX else a
    b = np.swapaxes(b, -1, -2) if step.op.options.adjY else b
    return _products(step, _matmul(a, b), *(_grid(step, i) for i in step.op.inputs))


#: SQUARED_DIFFERENCE: bits that a level is moved up before it is put on the common scale.
_UP = 7


def _squared_difference(step: Step) -> Candidates:
    """Both on a common scale in fixed point, their difference squared, then to the scale of the result."""
    (left, right), y = step.op.inputs, _grid(step, step.op.outputs[0])
    scales = [np.float64(_grid(step, i).scale[0]) for i in (left, right)]
    common, zero_point = 2 * max(scales), int(y.zero_point[0])
    a, b = (_fixed_point(_centred(step, i) << _UP, s / common) for i, s in zip((left, right), scales, strict=True))
    last = common * common / (2.0 ** (2 * _UP) * np.float64(y.scale[0]))
    rounded = {name: _fixed_point((a[name] - b[name]) ** 2, last)[name] + zero_point for name in a}
    exact = (_centred(step, left) * scales[0] - _centred(step, right) * scales[1]) ** 2 / np.float64(y.scale[0])
    return Candidates(exact + zero_point, rounded)


def _average_pool(step: Step) -> Candidates:
    """Every set of kernels: the mean of the levels as they are, a half away from zero."""
    info, o = step.model.tensors[step.op.inputs[0]], step.op.options
    q = step.values[step.op.inputs[0]].astype(np.int64)
    assert info.grid is not None
    size = (int(o.filterHeight), int(o.filterWidth))
    sums, counts = (
        sum(picture for row in _windows(v, size, o, step.output.shape)[0] for picture in row)
        for v in (q, np.ones_like(q))
    )
    away = np.sign(sums) * ((np.abs(sums) + counts // 2) // counts)
    return Candidates(sums / counts, {"half away": away})


def _quantize(step: Step) -> Candidates:
    if step.model.tensors[step.op.inputs[0]].dtype == "float32":
        x, y = step.values[step.op.inputs[0]], _grid(step, step.op.outputs[0])
        zero_point = int(y.zero_point[0])
        exact = x.astype(np.float64) / np.float64(y.scale[0]) + zero_point
        times = np.rint(x * (np.float32(1) / y.scale[0])).astype(np.int64) + zero_point
        return Candidates(exact, {"times the reciprocal": times})
    return _few_bits(lambda step: 1.0)(step)


ARITHMETIC: Mapping[str, Callable[[Step], Candidates]] = MappingProxyType(
    {
        "CONV_2D": _conv,
        "DEPTHWISE_CONV_2D": _depthwise,
        "TRANSPOSE_CONV": _transpose_conv,
        "FULLY_CONNECTED": _fully_connected,
        "MUL": _mul,
        "ADD": _sum(1),
        "SUB": _sum(-1),
        "LEAKY_RELU": _few_bits(lambda step: step.op.options.alpha),
        "QUANTIZE": _quantize,
        "HARD_SWISH": _hard_swish,
        "PRELU": _prelu,
        "BATCH_MATMUL": _batch_matmul,
        "SQUARED_DIFFERENCE": _squared_difference,
        "AVERAGE_POOL_2D": _average_pool,
    }
)


def saturated(step: Step, levels: Integers) -> Integers:
    """Within the grid, and the bounds of a fused ReLU or ReLU6."""
    info = step.model.tensors[step.op.outputs[0]]
    lo, hi = np.iinfo(info.dtype).min, np.iinfo(info.dtype).max
    assert info.grid is not None
    scale, zero_point = info.grid.scale[0], int(info.grid.zero_point[0])
    ends = {0: (None, None), 1: (0.0, None), 2: (-1.0, 1.0), 3: (0.0, 6.0)}
    low, high = ends[int(getattr(step.op.options, "fusedActivationFunction", 0))]
    if low is not None:
        lo = max(lo, int(np.rint(np.float32(low) / scale)) + zero_point)
    if high is not None:
        hi = min(hi, int(np.rint(np.float32(high) / scale)) + zero_point)
    return np.clip(levels, lo, hi)


@dataclass
class Verdict:
    """Results of one operator, counted.

    Attributes:
        results: of them
        equal: are LiteRT's integers;
        explained: LiteRT's arithmetic gives its integers, every one, and ours is next to the exact number;
        unexplained: neither.
        arithmetic: which one LiteRT's integers are of; "" where nothing differs.
        border: how far, in levels, the exact number of one that differs is from the border, at most.
    """

    results: int
    equal: int
    explained: int
    unexplained: int
    arithmetic: str = ""
    border: float = 0.0


def judge(step: Step) -> Verdict:
    """libwia's integers of one step against LiteRT's."""
    ours, theirs = (
        parts[0].reshape(step.output.shape) if len(parts) == 1 else np.concatenate([p.reshape(-1) for p in parts])
        for parts in (in_libwia(step.content, step.inputs), step.outputs)
    )
    differ = ours != theirs
    n = int(differ.sum())
    if n == 0 or step.op.kind not in ARITHMETIC:
        return Verdict(theirs.size, theirs.size - n, 0, n)
    candidates = ARITHMETIC[step.op.kind](step)
    of = [name for name, q in candidates.rounded.items() if np.array_equal(saturated(step, q), theirs)]
    exact = np.broadcast_to(candidates.exact, theirs.shape)[differ]
    got = ours[differ].astype(np.float64)
    near = np.abs(got - exact) <= 0.5 + _FLOAT32 * (np.abs(exact) + 256)
    border = np.abs(np.abs(exact - np.floor(exact)) - 0.5)
    explained = int(near.sum()) if of else 0
    return Verdict(
        theirs.size,
        theirs.size - n,
        explained,
        n - explained,
        of[0] if of else "none of those known",
        float(border.max()),
    )
