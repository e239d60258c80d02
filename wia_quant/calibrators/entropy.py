# SPDX-License-Identifier: Apache-2.0
"""The threshold whose grid keeps the most information: least Kullback-Leibler divergence."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from wia_quant.affine import Range
from wia_quant.calibrators.histogram import Histogram, coarsened
from wia_quant.calibrators.of_histogram import OfHistogram

FloatArray = npt.NDArray[np.float64]

#: Bins of magnitude that thresholds are chosen from; between half of it and all are in use.
MAX_MAGNITUDES: Final = 2048

#: Levels of the magnitudes: half of an 8-bit grid, as in Migacz, "8-bit Inference with TensorRT", 2017.
LEVELS: Final = 128

#: Thresholds looked at together: their levels stay in the second-level cache.
AT_A_TIME: Final = 64


class Entropy(OfHistogram):
    """The threshold T for which clipping magnitudes to T and rounding them to 128 levels loses least.

    The method of TensorRT and onnxruntime, on a histogram of magnitudes: for every T the reference P is the
    histogram up to T with all that lies above added to its last bin; the candidate Q is the histogram without
    it, each level's mass spread evenly over the bins of the level in which P is not zero; T minimizes
    KL(P || Q). The range is [-T, T] cut to what was observed, so data without negative values gets [0, T].
    Two faults of other implementations are absent: bins are divided among the levels without a remainder,
    and the spike of zeros, which every grid holds exactly, does not decide (bin 0 counts as much as bin 1).
    Known to clip too much for many convolutional nets: see docs/calibration-table.md before choosing it.
    """

    def _choose(self, h: Histogram) -> Range:
        counts, width = magnitudes(h)
        last = counts.size  # bins kept
        if counts.size > LEVELS:
            last = LEVELS + int(np.argmin(divergences(counts, LEVELS)))
        threshold = np.inf if last == counts.size else last * width
        return Range.around_zero(max(h.seen.lo, -threshold), min(h.seen.hi, threshold))


def magnitudes(h: Histogram) -> tuple[FloatArray, float]:
    """Counts of |x| in bins [k, k + 1) * width, at most MAX_MAGNITUDES of them, and the width."""
    first, counts, exponent = h.first, h.counts, h.exponent
    while max(-first + 1, first + counts.size) > MAX_MAGNITUDES:
        first, counts = coarsened(first, counts, 1)
        exponent += 1
    folded = np.zeros(max(-first + 1, first + counts.size), dtype=np.float64)
    folded[: first + counts.size] += counts[-first:]
    folded[1 : -first + 1] += counts[:-first][::-1]
    if folded.size > 1:
        folded[0] = folded[1]
    return folded, 2.0**exponent


def divergences(counts: FloatArray, levels: int) -> FloatArray:
    """KL(P || Q) of the thresholds levels, levels + 1, ... counts.size bins; inf where Q misses a bin."""
    size = counts.size
    sums = _prefix(counts)
    n_used = _prefix((counts > 0).astype(np.float64))
    logs = _prefix(_xlogx(counts))
    kept = np.arange(levels, size + 1)
    total = sums[-1]
    if total == 0:
        return np.zeros(kept.size)
    outliers = total - sums[kept]
    last = counts[kept - 1]

    # sum p log p: that of the counts, the last bin exchanged for one that holds the outliers too
    plogp = logs[kept] - _xlogx(last) + _xlogx(last + outliers)
    plogq = np.empty(kept.size)
    for begin in range(0, kept.size, AT_A_TIME):
        some = slice(begin, begin + AT_A_TIME)
        # starts[i, l]: the first bin of level l when i bins are kept.
        starts = np.arange(levels + 1)[None, :] * kept[some, None] // levels
        mass = np.diff(sums.take(starts), axis=1)  # of Q, [thresholds, levels]
        used = np.diff(n_used.take(starts), axis=1)
        reference = mass.copy()  # of P
        reference[:, -1] += outliers[some]
        used[:, -1] += (last[some] == 0) & (outliers[some] > 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            qlog = np.where(reference > 0, np.log(mass / used), 0.0)
        plogq[some] = np.einsum("tl,tl->t", reference, qlog)
    # Both are normalized: P by total, Q by the kept mass.
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = (plogp - plogq) / total - np.log(total) + np.log(sums[kept])
    return np.where(np.isfinite(kl), kl, np.inf)


def _prefix(values: FloatArray) -> FloatArray:
    return np.concatenate([[0.0], np.cumsum(values)])


def _xlogx(values: FloatArray) -> FloatArray:
    return values * np.log(np.where(values > 0, values, 1.0))
