# SPDX-License-Identifier: Apache-2.0
"""The same ranges from either half of the data: what calibration finds does not hang on which samples it saw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from wia_quant.doctor.base import Case, Symptom

#: Ratio of the halves' mean spreads from which they are two kinds of data.
_RATIO: Final = 1.5
#: Standard errors that the halves' means may differ by.
_ERRORS: Final = 5.0
#: Samples in each half from which the comparison says something.
_LEAST: Final = 16


def find(case: Case) -> Iterator[Symptom]:
    """First half against second half of the samples' ranges and means."""
    n = len(case.notes)
    if n < 2 * _LEAST:
        return
    spread = np.array([note.hi - note.lo for note in case.notes])
    mean = np.array([note.mean for note in case.notes])
    std = float(np.mean([note.std for note in case.notes])) or 1.0
    first, second = slice(0, n // 2), slice(n // 2, n)
    a, b = float(spread[first].mean()), float(spread[second].mean())
    if max(a, b) > _RATIO * max(min(a, b), 1e-30):
        message = f"the first half of the samples spans {a:.3g} on average, the second {b:.3g}"
        yield Symptom("halves", message, "the data is of two kinds: is all of it what the model will meet?")
        return
    distance = abs(float(mean[first].mean() - mean[second].mean()))
    error = float(np.hypot(mean[first].std(), mean[second].std())) / np.sqrt(n / 2)
    if distance > _ERRORS * error and distance > std / 2:
        message = f"the halves' means are {mean[first].mean():.3g} and {mean[second].mean():.3g}"
        yield Symptom("halves", message, "the data is of two kinds: is all of it what the model will meet?")
