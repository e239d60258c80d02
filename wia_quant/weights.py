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
