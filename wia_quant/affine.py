# SPDX-License-Identifier: Apache-2.0
"""The equation ``x = scale * (q - zero_point)``: grids, ranges, parameters, and both directions.

Numbers in parentheses are those of docs/quantization.md. Everything here is numpy float32, so that the
same parameters give the same integers as libwia does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt

from wia_quant.errors import CalibrationError

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]

#: No scale is smaller: 1/scale stays finite in float32 and a dead channel keeps a normal number.
MIN_SCALE: Final = float(np.float32(2.0**-100))


@dataclass(frozen=True)
class QType:
    """An integer grid: the levels ``qmin..qmax``, stored in ``dtype``.

    Attributes:
        name: the ONNX-like name, ``"int8"``; ``"int8_narrow"`` is int8 without -128.
        dtype: the numpy type that stores a level.
        qmin: the smallest level, inclusive.
        qmax: the largest level, inclusive.
        symmetric: True when the zero point is fixed at the middle of the grid.
    """

    name: str
    dtype: np.dtype[np.integer]
    qmin: int
    qmax: int
    symmetric: bool = False

    @property
    def middle(self) -> int:
        """The zero point of a symmetric range: 0 for signed grids, 128 for uint8."""
        return (self.qmin + self.qmax + 1) // 2


INT8: Final = QType("int8", np.dtype(np.int8), -128, 127)
UINT8: Final = QType("uint8", np.dtype(np.uint8), 0, 255)
INT8_NARROW: Final = QType("int8_narrow", np.dtype(np.int8), -127, 127, symmetric=True)
INT4_NARROW: Final = QType("int4_narrow", np.dtype(np.int8), -7, 7, symmetric=True)  # a level to an int8, until stored
INT8_SYMMETRIC: Final = QType("int8_symmetric", np.dtype(np.int8), -128, 127, symmetric=True)
INT16_SYMMETRIC: Final = QType("int16_symmetric", np.dtype(np.int16), -32767, 32767, symmetric=True)
INT32: Final = QType("int32", np.dtype(np.int32), -(2**31), 2**31 - 1, symmetric=True)

QTYPES: Final = MappingProxyType(
    {t.name: t for t in (INT8, UINT8, INT4_NARROW, INT8_NARROW, INT8_SYMMETRIC, INT16_SYMMETRIC, INT32)}
)


@dataclass(frozen=True)
class Range:
    """A closed interval of reals that contains 0.0; finite at both ends."""

    lo: float
    hi: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.lo) and math.isfinite(self.hi)):
            raise CalibrationError(f"range [{self.lo}, {self.hi}] is not finite")
        if not self.lo <= 0.0 <= self.hi:
            raise CalibrationError(f"range [{self.lo}, {self.hi}] does not contain 0.0")

    @staticmethod
    def around_zero(lo: float, hi: float) -> Range:
        """The smallest range that contains ``lo``, ``hi`` and 0.0."""
        return Range(min(float(lo), 0.0), max(float(hi), 0.0))


@dataclass(frozen=True)
class QParams:
    """A grid placed on the reals.

    Attributes:
        qtype: the grid.
        scale: float32, > 0; shape [] per tensor, [n] along ``axis``.
        zero_point: ``qtype.dtype``; the shape of ``scale``.
        axis: the axis that has its own scales, >= 0; None per tensor.
    """

    qtype: QType
    scale: npt.NDArray[np.float32]
    zero_point: IntArray
    axis: int | None = None

    def __post_init__(self) -> None:
        if self.scale.dtype != np.float32 or self.zero_point.dtype != self.qtype.dtype:
            raise TypeError("scale must be float32 and zero_point the grid's own type")
        if self.scale.shape != self.zero_point.shape or (self.axis is None) != (self.scale.ndim == 0):
            raise ValueError("scale and zero_point must both be [] per tensor or [n] along an axis")
        if not (np.isfinite(self.scale).all() and (self.scale > 0).all()):
            raise ValueError("every scale must be finite and > 0")


def choose_qparams(rng: Range, qtype: QType) -> QParams:
    """The parameters whose grid spans ``rng``, with 0.0 exactly on a level; equations (3) to (5).

    A symmetric grid spans ``max(|lo|, |hi|)`` on both sides. A range of one point gets scale 1.
    """
    scale, zero_point = place(rng, qtype)
    return QParams(qtype, np.array(scale, dtype=np.float32), np.array(zero_point, dtype=qtype.dtype))


def range_of(qp: QParams) -> Range:
    """The range that a per-tensor grid spans; ``choose_qparams`` gives ``qp`` back to the bit."""
    if qp.axis is not None:
        raise ValueError("a grid per axis has no single range")
    scale, zero_point = float(qp.scale), int(qp.zero_point)
    # Exact: a float32 times an 8- or 16-bit integer fits a double, and so does the difference of two such.
    return Range((qp.qtype.qmin - zero_point) * scale, (qp.qtype.qmax - zero_point) * scale)


def choose_qparams_per_axis(absmax: FloatArray, qtype: QType, axis: int) -> QParams:
    """Symmetric parameters, one per channel, from the largest magnitudes ``absmax`` [n]; equation (6).

    A channel of zeros gets scale 1: its integers are 0 whatever the scale.
    """
    if not qtype.symmetric:
        raise ValueError(f"per-axis parameters need a symmetric grid, not {qtype.name}")
    amax = np.asarray(absmax, dtype=np.float64)
    scale = np.where(amax > 0, np.maximum(amax / qtype.qmax, MIN_SCALE), 1.0).astype(np.float32)
    return QParams(qtype, scale, np.full(scale.shape, qtype.middle, dtype=qtype.dtype), axis)


def quantize(x: FloatArray, qp: QParams) -> IntArray:
    """Levels of ``x``: ``saturate(round_half_even(x / scale) + zero_point)``; equation (1).

    NaN becomes the zero point.
    """
    scale, zero_point = _broadcast(qp, x.ndim)
    with np.errstate(over="ignore", invalid="ignore"):
        level = np.rint(np.asarray(x, dtype=np.float32) / scale).astype(np.float64) + zero_point
    level = np.where(np.isnan(level), zero_point, level)
    return np.clip(level, qp.qtype.qmin, qp.qtype.qmax).astype(qp.qtype.dtype)


def dequantize(q: IntArray, qp: QParams) -> npt.NDArray[np.float32]:
    """Reals of ``q``: ``float32(q - zero_point) * scale``; equation (2)."""
    scale, zero_point = _broadcast(qp, q.ndim)
    return (q.astype(np.int64) - zero_point).astype(np.float32) * scale


def fake_quantize(x: FloatArray, qp: QParams) -> npt.NDArray[np.float32]:
    """``dequantize(quantize(x))``: what the integers make of ``x``."""
    return dequantize(quantize(x, qp), qp)


def place(rng: Range, qtype: QType) -> tuple[float, int]:
    """Scale and zero point of ``choose_qparams``, as plain numbers; the scale is a float32."""
    if rng.lo == rng.hi:
        return 1.0, qtype.middle if qtype.symmetric else _saturate(0, qtype)
    if qtype.symmetric:
        # The shorter side decides: for int8 that is 127, so the largest value never saturates.
        scale = max(abs(rng.lo), abs(rng.hi)) / (qtype.qmax - qtype.middle)
        return max(float(np.float32(scale)), MIN_SCALE), qtype.middle
    # float32 at birth: ONNX stores it so, and every later computation must see the same number.
    scale = max(float(np.float32((rng.hi - rng.lo) / (qtype.qmax - qtype.qmin))), MIN_SCALE)
    return scale, _saturate(int(np.rint(qtype.qmin - rng.lo / scale)), qtype)


def _saturate(level: int, qtype: QType) -> int:
    return min(max(level, qtype.qmin), qtype.qmax)


def _broadcast(qp: QParams, ndim: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    zero_point = qp.zero_point.astype(np.int64)
    if qp.axis is None:
        return qp.scale, zero_point
    shape = [1] * ndim
    shape[qp.axis] = -1
    return qp.scale.reshape(shape), zero_point.reshape(shape)
