# SPDX-License-Identifier: Apache-2.0
"""The range whose 256-level grid reproduces the values with the least mean squared error."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wia_quant.affine import INT8, Range
from wia_quant.calibrators.histogram import Histogram
from wia_quant.calibrators.of_histogram import OfHistogram

FloatArray = npt.NDArray[np.float64]

#: The ends are first shrunk by these powers of two, then searched around the best in finer steps.
COARSE: Final = 2.0 ** (-np.arange(25) / 2.0)
FINE: Final = tuple(2.0 ** (np.linspace(-1.0, 1.0, 9) * reach) for reach in (0.5, 0.125, 0.03125))

#: Bins this near to 0 keep their width for the search; of the others, this many become one.
NEAR_ZERO: Final = 64
MERGED: Final = 8


class Mse(OfHistogram):
    """Trades clipping a few large values against the resolution of all the others.

    The squared error of a bin is integrated in closed form, its values taken as spread evenly over it.
    """

    def _choose(self, h: Histogram) -> Range:
        lo, hi = min(h.seen.lo, 0.0), max(h.seen.hi, 0.0)
        if lo == hi:
            return Range(lo, hi)
        edges, density = _search_bins(h)
        one = np.ones(1)

        def best(lo_shrink: FloatArray, hi_shrink: FloatArray) -> tuple[float, float]:
            lo_shrink, hi_shrink = np.broadcast_arrays(np.minimum(lo_shrink, 1.0), np.minimum(hi_shrink, 1.0))
            i = int(np.argmin(_squared_error(edges, density, lo * lo_shrink, hi * hi_shrink)))
            return float(lo_shrink[i]), float(hi_shrink[i])

        a, b = best(COARSE, COARSE)
        if lo < 0.0 < hi:
            a, b = best(one * a, COARSE)
            a, b = best(COARSE, one * b)
        for around in FINE:
            a, b = best(a * around, b * around)
            if lo < 0.0 < hi:
                a, b = best(one * a, b * around)
                a, b = best(a * around, one * b)
        return Range(lo * a, hi * b)


def _search_bins(h: Histogram) -> tuple[FloatArray, FloatArray]:
    """Edges [n + 1] and values per unit of length [n] of fewer bins: fine around 0, wider elsewhere."""
    index = np.arange(h.first, h.first + h.counts.size)
    wider = np.sign(index) * (NEAR_ZERO + (np.abs(index) - NEAR_ZERO) // MERGED)
    starts = np.flatnonzero(np.diff(np.where(np.abs(index) <= NEAR_ZERO, index, wider), prepend=-(2**62)))
    edges = h.edges()[np.append(starts, h.counts.size)]
    # A value that is the largest, and the lower end of its bin, leaves nothing of the bin: give it all of it.
    edges[-1] += h.width if edges[-1] == edges[-2] else 0.0
    edges[0] -= h.width if edges[0] == edges[1] else 0.0
    counts = np.add.reduceat(h.counts, starts).astype(np.float64)
    return edges, counts / np.diff(edges)


def _squared_error(edges: FloatArray, density: FloatArray, lo: FloatArray, hi: FloatArray) -> FloatArray:
    """The sum of squared errors [k] of the grids placed on the ranges lo [k], hi [k]; equations (1) to (4).

    With t = x / scale and level = saturate(rhe(t)), the integral of (t - level)**2 up to t is
    level / 12 + (t - level)**3 / 3: every whole level adds 1/12, beyond the last the cube grows.
    """
    scale = (hi - lo) / (INT8.qmax - INT8.qmin)
    below = np.rint(-lo / scale)[:, None]
    above = INT8.qmax - INT8.qmin - below
    t = edges / scale[:, None]
    level = np.clip(np.rint(t), -below, above)
    rest = t - level
    integral = level / 12.0 + rest * rest * rest / 3.0
    # The differences between the edges of each bin, times its density, summed by parts.
    weights = np.concatenate([[0.0], density]) - np.concatenate([density, [0.0]])
    return np.asarray(scale**3 * (integral @ weights))
