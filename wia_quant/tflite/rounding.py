# SPDX-License-Identifier: Apache-2.0
"""How LiteRT's default kernels (XNNPACK) round, where the reals that the integers stand for do not say it.

A product is rounded once, a half to even, by the multiplier of docs/quantization.md (8), as here. LeakyRelu, a change
of grids and bilinear resizing are fixed-point numbers, a half rounded up.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
Levels = npt.NDArray[np.int64]

#: Fractional bits of the multipliers of LeakyRelu and of a change of grids; beyond these ratios other kernels run.
_ONE: Final = 256
_LEAST, _MOST = 2.0**-8, 2.0**7

#: In levels: lifts a half above the border, and no other value of ``_ONE`` steps a level.
HALF_UP: Final = 0.5 / _ONE

#: The same of bilinear resizing: twice as large pictures have sixteenths of a level, others any number.
HALF_UP_OF_RESIZE: Final = 2.0**-12

#: And of the sum of a tensor and a number, whose multipliers have 21 bits.
HALF_UP_OF_SUM: Final = 2.0**-13


def fixed_point(ratio: float) -> float | None:
    """The multiplier that LiteRT takes for this ratio of two grids' scales; None where it takes the ratio itself."""
    return float(np.rint(_ONE * np.float32(ratio))) / _ONE if _LEAST <= abs(ratio) <= _MOST else None


#: HARD_SWISH: bits that a level is moved up before its two 16-bit products, and the real that 2^15 stands for.
_HIGH_BITS, _THREE = 7, 3.0


def hard_swish(q: Levels, x: np.float32, y: np.float32) -> Levels:
    """x and relu6(x + 3) / 6, from x / 3 within [-1, 1], in 16-bit fixed point; their product is cut towards 0.

    Args:
        q: levels less the zero point, of a grid with the scale ``x``.
        x: scale of the input.
        y: scale of the result.

    Returns:
        Levels of the result less its zero point, before saturation.
    """
    high = np.float32(np.float64(x) / 2**_HIGH_BITS)
    multiplier, shift = _of_16_bits(float(high / y))
    reluish_multiplier, reluish_shift = _of_16_bits(float(high / np.float32(_THREE / 2**15)))
    gate = _product_of_16_bits(_up(q << _HIGH_BITS, max(reluish_shift - 1, 0)), reluish_multiplier)
    gate = _up(gate, 1) if reluish_shift > 0 else half_away(gate, -reluish_shift)
    gate = (gate + 2**15) >> 1
    both = gate * _product_of_16_bits(q << _HIGH_BITS, multiplier)
    return half_away(np.sign(both) * (np.abs(both) >> 15), -shift)


def of_31_bits(multiplier: float) -> tuple[int, int]:
    """The multiplier as q * 2^(shift - 31)."""
    fraction, shift = math.frexp(multiplier)
    q = math.floor(fraction * 2**31 + 0.5)
    return (q // 2, shift + 1) if q == 2**31 else (q, shift)


def half_away(value: Levels, bits: int) -> Levels:
    """``value / 2^bits``, a half away from 0."""
    half = (1 << bits) >> 1
    return np.where(value >= 0, (value + half) >> bits, -((-value + half) >> bits))


def _of_16_bits(multiplier: float) -> tuple[int, int]:
    q, shift = of_31_bits(multiplier)
    return min((q + (1 << 15)) >> 16, 2**15 - 1), shift


def _product_of_16_bits(a: Levels, b: int) -> Levels:
    found: Levels = np.clip((a * b + 2**14) >> 15, -(2**15), 2**15 - 1)
    return found


def _up(a: Levels, bits: int) -> Levels:
    found: Levels = np.clip(a << bits, -(2**15), 2**15 - 1)
    return found
