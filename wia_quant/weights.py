# SPDX-License-Identifier: Apache-2.0
"""Weights and biases as integers: one scale a channel, raised where the int32 bias would not fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wia_quant.affine import MIN_SCALE, FloatArray, IntArray, QParams, QType, choose_qparams, quantize
from wia_quant.affine import Range as Interval

#: A bias level is kept below this, so that the sum of products (up to 2^30) and the bias stay within int32.
MAX_BIAS_LEVEL: Final = 2**30

#: Scales that a block tries, relative to the one that holds its largest weight.
SHRINK: Final = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75)


@dataclass(frozen=True)
class QuantizedWeight:
    """Levels and their grid."""

    levels: IntArray
    qparams: QParams


def weight_scales(w: FloatArray, axis: int | None, qtype: QType) -> npt.NDArray[np.float32]:
    """The scale of each channel, [n] along ``axis`` or [] for all; docs/quantization.md (6).

    A channel of zeros takes the largest scale of the others, 1 if there are none: its integers are 0 whatever
    the scale, but its bias is stored in steps of ``input_scale * weight_scale``.
    """
    if axis is None:
        return choose_qparams(Interval.around_zero(float(w.min(initial=0)), float(w.max(initial=0))), qtype).scale
    absmax = np.abs(np.moveaxis(w, axis, 0).reshape(w.shape[axis], -1)).max(axis=1, initial=0).astype(np.float64)
    scale = np.maximum(absmax / qtype.qmax, MIN_SCALE)
    scale[absmax == 0] = scale.max(initial=0) if (absmax > 0).any() else 1.0
    return np.asarray(scale, dtype=np.float32)


def block_scales(w: FloatArray, axis: int, block: int, qtype: QType) -> npt.NDArray[np.float32]:
    """The scale of each run of ``block`` weights along ``axis``; the last run may be shorter.

    Of a few scales at and below max |w| / qmax the one with the smallest squared error: at 4 bits the largest
    weight of a block is not worth the step it costs the others.

    Returns:
        The shape of ``w`` with ``axis`` as long as there are blocks. w [100, 8], axis 0, block 32 -> [4, 8].
    """
    blocks = _blocked(w.astype(np.float64), axis, block)  # [..., blocks, block]
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    best = np.maximum(largest / qtype.qmax, MIN_SCALE)
    best[largest == 0] = 1.0
    full, least = best, np.full(best.shape, np.inf)
    for factor in SHRINK:
        scale = (full * factor).astype(np.float32).astype(np.float64)
        levels = np.clip(np.rint(blocks / scale), qtype.qmin, qtype.qmax)
        error = ((levels * scale - blocks) ** 2).sum(axis=-1, keepdims=True)
        best, least = np.where(error < least, scale, best), np.minimum(error, least)
    scales: npt.NDArray[np.float32] = np.moveaxis(best[..., 0], -1, axis).astype(np.float32)
    return scales


def quantize_blocks(
    w: FloatArray, scale: npt.NDArray[np.float32], axis: int, block: int, qtype: QType
) -> npt.NDArray[np.int8]:
    """Levels of ``w``, one an int8, with a scale for each run of ``block`` along ``axis``."""
    spread = np.repeat(scale, block, axis=axis)
    spread = np.take(spread, np.arange(w.shape[axis]), axis=axis)
    levels: npt.NDArray[np.int8] = np.clip(np.rint(w / spread), qtype.qmin, qtype.qmax).astype(np.int8)
    return levels


def _blocked(w: npt.NDArray[np.float64], axis: int, block: int) -> npt.NDArray[np.float64]:
    """``w`` with ``axis`` last and cut into [blocks, block]; zeros fill the tail."""
    last = np.moveaxis(w, axis, -1)
    n = -(-last.shape[-1] // block)
    padded = np.zeros((*last.shape[:-1], n * block))
    padded[..., : last.shape[-1]] = last
    return padded.reshape(*last.shape[:-1], n, block)


def least_scales(bias: FloatArray, input_scale: float) -> npt.NDArray[np.float64]:
    """The smallest weight scale of each channel at which ``bias / (input_scale * scale)`` fits int32."""
    return np.abs(bias.astype(np.float64)) / (input_scale * MAX_BIAS_LEVEL)


def quantize_weight(w: FloatArray, scale: npt.NDArray[np.float32], axis: int | None, qtype: QType) -> QuantizedWeight:
    """Levels of ``w`` on a symmetric grid with the given scales."""
    zero_point = np.full(scale.shape, qtype.middle, dtype=qtype.dtype)
    qparams = QParams(qtype, scale, zero_point, axis)
    return QuantizedWeight(quantize(w, qparams), qparams)


def quantize_bias(
    bias: FloatArray, input_scale: np.float32, weight_scale: npt.NDArray[np.float32]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """int32 levels of a bias and their scales, [n]: ``float32(input_scale * weight_scale)``."""
    scale = (np.float64(input_scale) * weight_scale.astype(np.float64)).astype(np.float32)
    scale = np.broadcast_to(np.maximum(scale, np.float32(np.finfo(np.float32).tiny)), bias.shape)
    levels = np.rint(bias.astype(np.float64) / scale.astype(np.float64))
    assert np.abs(levels).max(initial=0) < 2**31, "the weight scale was not raised for this bias"
    return levels.astype(np.int32), np.ascontiguousarray(scale)
