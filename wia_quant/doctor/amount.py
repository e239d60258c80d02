# SPDX-License-Identifier: Apache-2.0
"""Enough samples, and different ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from wia_quant.doctor.base import Case, Symptom

#: Below this the mean of batch ranges still moves by percents from set to set.
FEW: Final = 16
#: Share of repeated samples that is worth a word.
_REPEATED: Final = 0.1
#: Two thumbnails closer than this share of their own contrast show the same picture.
_NEAR: Final = 0.02
#: Near duplicates are searched among the first so many: the search is quadratic.
_SEARCHED: Final = 1000
#: Samples of one even brightness: their spread over the spread inside a sample.
_UNIFORM: Final = 0.05


def find(case: Case) -> Iterator[Symptom]:
    """Too few, the same ones again and again, or all alike."""
    n = len(case.notes)
    if n < FEW:
        yield Symptom("amount", f"only {n} samples", "give a few hundred that look like what the model will meet")
    repeated = n - len(Counter(note.digest for note in case.notes))
    if repeated > _REPEATED * n:
        names = [note.source for note in case.notes]
        message = f"{repeated} of {n} samples repeat another exactly (of {names[0]} ...)"
        yield Symptom("amount", message, "drop the copies: they count no more than one sample")
        return
    thumbnails = [t for note in case.notes[:_SEARCHED] if (t := note.thumbnail).size]
    if len(thumbnails) < 2:
        return
    t = np.stack(thumbnails)
    contrast = np.linalg.norm(t, axis=1)
    squares = np.square(contrast)
    distance = np.sqrt(np.maximum(squares[:, None] + squares[None, :] - 2 * t @ t.T, 0))
    near = distance <= _NEAR * np.maximum(contrast[:, None], 1e-12)
    np.fill_diagonal(near, val=False)
    alike = int(np.triu(near).any(axis=0).sum())
    if alike > _REPEATED * len(t):
        message = f"{alike} of {len(t)} pictures are almost the same as another"
        yield Symptom("amount", message, "choose pictures of different scenes", sure=2 * alike > len(t))
