# SPDX-License-Identifier: Apache-2.0
"""A measured figure with its interval, so that 20 pictures never look like 20,000."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

#: The two-sided 95 % point of the normal distribution.
Z95: Final = 1.959963984540054
#: Resamples of a bootstrap; the seed is fixed, so that the same scores give the same interval.
N_RESAMPLES: Final = 1000
_SEED: Final = 20150


@dataclass(frozen=True)
class Metric:
    """One figure of an evaluation.

    Attributes:
        name: ``"top1"``, ``"cer"``, ``"sqnr/logits"``.
        value: in ``unit``.
        lo: lower end of the 95 % interval.
        hi: upper end of the 95 % interval.
        n: how many samples (pixels, pairs ...) stand behind it.
        unit: ``"%"``, ``"dB"`` or ``""``.
        higher_is_better: False for an error or a distance.
        method: how the interval was found: ``"wilson"``, ``"bootstrap"``, or ``"none"`` (then lo = hi = value).
    """

    name: str
    value: float
    lo: float
    hi: float
    n: int
    unit: str = ""
    higher_is_better: bool = True
    method: str = "none"


def proportion(name: str, n_right: int, n: int, *, higher_is_better: bool = True) -> Metric:
    """``n_right / n`` in percent with the Wilson score interval (Wilson 1927, equation 1)."""
    if n == 0:
        return Metric(name, math.nan, math.nan, math.nan, 0, "%", higher_is_better, "none")
    p = n_right / n
    spread = Z95**2 / n
    centre = (p + spread / 2) / (1 + spread)
    half = Z95 * math.sqrt(p * (1 - p) / n + spread / (4 * n)) / (1 + spread)
    # p lies inside by construction; rounding alone could leave it a hair outside at 0 and 1.
    lo, hi = min(centre - half, p), max(centre + half, p)
    return Metric(name, 100 * p, 100 * max(lo, 0.0), 100 * min(hi, 1.0), n, "%", higher_is_better, "wilson")


def mean(
    name: str, scores: npt.ArrayLike, *, unit: str = "", higher_is_better: bool = True, scale: float = 1.0
) -> Metric:
    """The mean of per-sample ``scores`` [n] with a percentile bootstrap over samples (Efron 1979)."""
    x = np.asarray(scores, dtype=np.float64) * scale
    return ratio(name, x, np.ones_like(x), unit=unit, higher_is_better=higher_is_better)


def ratio(
    name: str,
    numerators: npt.ArrayLike,
    denominators: npt.ArrayLike,
    *,
    unit: str = "",
    higher_is_better: bool = True,
) -> Metric:
    """``sum(numerators) / sum(denominators)`` over samples [n], bootstrapped over samples.

    The character error rate of a set is such a ratio: errors of all lines over characters of all lines.
    """
    top = np.asarray(numerators, dtype=np.float64)
    bottom = np.asarray(denominators, dtype=np.float64)
    if top.size == 0 or bottom.sum() == 0:
        return Metric(name, math.nan, math.nan, math.nan, 0, unit, higher_is_better, "none")
    value = float(top.sum() / bottom.sum())
    if not np.isfinite(top).all():
        return Metric(name, value, value, value, top.size, unit, higher_is_better, "none")
    rng = np.random.default_rng(_SEED)
    # Counts of each sample in each resample: one multinomial a resample, no index matrix.
    counts = rng.multinomial(top.size, np.full(top.size, 1 / top.size), size=N_RESAMPLES)
    below = counts @ bottom
    means = (counts @ top)[below > 0] / below[below > 0]
    lo, hi = np.quantile(means, [0.025, 0.975])
    return Metric(
        name,
        value,
        min(float(lo), value),
        max(float(hi), value),
        top.size,
        unit,
        higher_is_better,
        "bootstrap",
    )
