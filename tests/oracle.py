# SPDX-License-Identifier: Apache-2.0
"""Slow and obviously right: docs/quantization.md in numpy, integers in int64, each float32 rounding written out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
f32 = np.float32


@dataclass(frozen=True)
class Grid:
    """One scale and one zero point on int8 or uint8."""

    scale: float
    zero_point: int
    dtype: str = "uint8"

    @property
    def qmin(self) -> int:
        """The least level."""
        return 0 if self.dtype == "uint8" else -128

    @property
    def qmax(self) -> int:
        """The greatest level."""
        return self.qmin + 255

    @property
    def step(self) -> np.float32:
        """The scale as the file stores it."""
        return f32(self.scale)


def saturate(x: npt.NDArray[Any], grid: Grid) -> Ints:
    """Rounded values plus the zero point, clipped to the grid."""
    return np.clip(np.rint(x).astype(np.float64) + grid.zero_point, grid.qmin, grid.qmax).astype(np.int64)


def quantize(x: Floats, grid: Grid) -> Ints:
    """Equation (1)."""
    with np.errstate(invalid="ignore", over="ignore"):
        levels = np.rint(x.astype(f32) / grid.step)
    return np.where(np.isnan(x), grid.zero_point, saturate(np.nan_to_num(levels, nan=0.0), grid)).astype(np.int64)


def dequantize(q: Ints, grid: Grid) -> Floats:
    """Equation (2)."""
    return (q - grid.zero_point).astype(f32) * grid.step


def multiplier(product_scale: npt.NDArray[np.float64] | float, y_scale: float) -> Floats:
    """The m of (8): the scale of the accumulator as float32, divided in float32."""
    return np.asarray(np.asarray(product_scale, f32) / f32(y_scale), f32)


def requantize(acc: Ints, m: Floats, grid: Grid) -> Ints:
    """Equation (8)."""
    return saturate(acc.astype(f32) * m, grid)


def bias_levels(bias: Floats, product_scale: npt.NDArray[np.float64] | float) -> Ints:
    """Equation (18)."""
    return np.rint(bias.astype(np.float64) / product_scale).astype(np.int64)


def add(a: Ints, ga: Grid, b: Ints, gb: Grid, gy: Grid, sign: int = 1) -> Ints:
    """Equation (12)."""
    ma = f32(float(ga.step) / float(gy.step))
    mb = f32(sign * float(gb.step) / float(gy.step))
    return saturate((a - ga.zero_point).astype(f32) * ma + (b - gb.zero_point).astype(f32) * mb, gy)


def mul(a: Ints, ga: Grid, b: Ints, gb: Grid, gy: Grid) -> Ints:
    """Equation (13)."""
    m = multiplier(f32(ga.step) * f32(gb.step), gy.step)
    return saturate(((a - ga.zero_point) * (b - gb.zero_point)).astype(f32) * m, gy)


def mean(x: Ints, gx: Grid, gy: Grid, axes: tuple[int, ...], keepdims: bool = True) -> Ints:
    """Equation (14) over whole axes."""
    n = int(np.prod([x.shape[a] for a in axes]))
    total = (x - gx.zero_point).sum(axis=axes, keepdims=keepdims)
    return average(total, np.asarray(n), gx, gy)


def average(total: Ints, n: npt.NDArray[Any], gx: Grid, gy: Grid) -> Ints:
    """Equation (14) of sums over n values each."""
    m = np.asarray(float(gx.step) / (n.astype(np.float64) * float(gy.step)), f32)
    return saturate(total.astype(f32) * m, gy)


def windows(x: Ints, kernel: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int]) -> Ints:
    """[N, C, H, W] -> [N, C, out_h, out_w, kernel_h, kernel_w]; no padding."""
    span = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(x, span, axis=(2, 3))
    return views[:, :, :: strides[0], :: strides[1], :: dilations[0], :: dilations[1]]


def conv(
    x: Ints, w: Ints, strides: tuple[int, int], pads: tuple[int, int, int, int], dilations: tuple[int, int], groups: int
) -> Ints:
    """The sum of (7) without bias, of x [N, C, H, W] and w [O, C / groups, h, w] less their zero points."""
    x = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))
    views = windows(x, (w.shape[2], w.shape[3]), strides, dilations)
    out = []
    n_in, n_out = x.shape[1] // groups, w.shape[0] // groups
    for g in range(groups):
        part = views[:, g * n_in : (g + 1) * n_in]
        out.append(np.einsum("nchwij,ocij->nohw", part, w[g * n_out : (g + 1) * n_out]))
    return np.concatenate(out, axis=1)


def conv_transpose(x: Ints, w: Ints, strides: tuple[int, int], pads: tuple[int, int, int, int], groups: int) -> Ints:
    """The sum of (7) of a transposed convolution. w [C, O / groups, h, w]."""
    n, c, h, width = x.shape
    _, per_group, kh, kw = w.shape
    full = np.zeros((n, per_group * groups, (h - 1) * strides[0] + kh, (width - 1) * strides[1] + kw), np.int64)
    n_in = c // groups
    for g in range(groups):
        xs, ws = x[:, g * n_in : (g + 1) * n_in], w[g * n_in : (g + 1) * n_in]
        to = full[:, g * per_group : (g + 1) * per_group]
        for i in range(kh):
            for j in range(kw):
                part = np.einsum("nchw,co->nohw", xs, ws[:, :, i, j])
                to[:, :, i : i + h * strides[0] : strides[0], j : j + width * strides[1] : strides[1]] += part
    return full[:, :, pads[0] : full.shape[2] - pads[2], pads[1] : full.shape[3] - pads[3]]
