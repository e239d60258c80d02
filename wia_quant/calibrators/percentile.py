# SPDX-License-Identifier: Apache-2.0
"""Clip a fixed share of the values, half of it at each end."""

from __future__ import annotations

import math

import numpy as np

from wia_quant.affine import Range
from wia_quant.calibrators.histogram import Histogram
from wia_quant.calibrators.of_histogram import OfHistogram
from wia_quant.errors import UsageError


class Percentile(OfHistogram):
    """Keeps the central ``percentile`` % of the values: (100 - percentile) / 2 % lie below, as many above.

    Each end is the order statistic (numpy's method "inverted_cdf") rounded outwards to an end of a bin, so at
    most one bin's width wider; 0 is always inside. 100 keeps everything.
    """

    def __init__(self, percentile: float = 99.99) -> None:
        if not 0.0 < percentile <= 100.0:
            raise UsageError(f"percentile is {percentile}; it must be above 0 and at most 100")
        super().__init__()
        self._percentile = float(percentile)

    def _choose(self, h: Histogram) -> Range:
        tail = (100.0 - self._percentile) / 200.0
        # Ranks count from 1; this many values at least are kept from each end.
        keep = min(max(math.ceil((1.0 - tail) * h.seen.n_values), 1), h.seen.n_values)
        edges = h.edges()
        from_below = np.cumsum(h.counts)
        from_above = np.cumsum(h.counts[::-1])
        hi = edges[1 + int(np.searchsorted(from_below, keep))]
        lo = edges[h.counts.size - 1 - int(np.searchsorted(from_above, keep))]
        return Range.around_zero(max(float(lo), h.seen.lo), min(float(hi), h.seen.hi))

    def parameters(self) -> dict[str, float]:
        return {"percentile": self._percentile}
