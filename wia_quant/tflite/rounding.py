# SPDX-License-Identifier: Apache-2.0
"""How LiteRT's default kernels (XNNPACK) round, where the reals that the integers stand for do not say it.

A product is rounded once, a half to even, as here; only its multiplier is made otherwise. LeakyRelu, a change of grids
and bilinear resizing are fixed-point numbers, a half rounded up.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

#: Fractional bits of the multipliers of LeakyRelu and of a change of grids; beyond these ratios other kernels run.
_ONE: Final = 256
_LEAST, _MOST = 2.0**-8, 2.0**7

#: In levels: lifts a half above the border, and no other value of ``_ONE`` steps a level.
HALF_UP: Final = 0.5 / _ONE

#: The same of bilinear resizing: twice as large pictures have sixteenths of a level, others any number.
HALF_UP_OF_RESIZE: Final = 2.0**-12

#: And of the sum of a tensor and a number, whose multipliers have 21 bits.
HALF_UP_OF_SUM: Final = 2.0**-13


def weight_scales(x: np.float32, w: FloatArray, y: np.float32) -> FloatArray:
    """The scales of a weight, each at most one float32 step from ``w``, that give the multipliers of LiteRT.

    LiteRT takes float32(float32(x * w) / y), libwia rounds once, docs/quantization.md (8). Where no neighbour of
    ``w`` gives LiteRT's number, ``w`` stays, and sums that fall on the border of two levels may differ.
    """
    wanted = (x * w) / y
    chosen = w.copy()
    for candidate in (np.nextafter(w, np.float32(0)), np.nextafter(w, np.float32(np.inf)), w):
        made = (np.float64(x) * candidate.astype(np.float64) / np.float64(y)).astype(np.float32)
        chosen = np.where(made == wanted, candidate, chosen)
    return chosen.astype(np.float32)


def fixed_point(ratio: float) -> float | None:
    """The multiplier that LiteRT takes for this ratio of two grids' scales; None where it takes the ratio itself."""
    return float(np.rint(_ONE * np.float32(ratio))) / _ONE if _LEAST <= abs(ratio) <= _MOST else None
