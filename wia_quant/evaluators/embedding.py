# SPDX-License-Identifier: Apache-2.0
"""Embeddings of sentence or picture pairs. Target: (pair id, score); the two samples of a pair share the id."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from wia_quant.errors import DataError
from wia_quant.evaluators.base import Sample, Scored, only_output
from wia_quant.evaluators.metric import Z95, Metric


class Embedding:
    """Spearman's rank correlation of the pairs' cosines with their scores, as STS benchmarks have it."""

    def __init__(self) -> None:
        self._open: dict[str, npt.NDArray[np.float64]] = {}
        self._cosines: list[float] = []
        self._targets: list[float] = []

    def score(self, sample: Sample) -> Scored:
        pair, score = _pair_and_score(sample)
        vector = np.asarray(only_output(sample), dtype=np.float64).reshape(-1)
        return Scored({}, "", {"pair": pair, "score": score, "vector": vector.tolist()})

    def add(self, scored: Scored) -> None:
        pair, vector = scored.kept["pair"], np.asarray(scored.kept["vector"], dtype=np.float64)
        if pair not in self._open:
            self._open[pair] = vector
            return
        self._cosines.append(cosine(self._open.pop(pair), vector))
        self._targets.append(scored.kept["score"])

    def metrics(self) -> tuple[Metric, ...]:
        n = len(self._cosines)
        value = spearman(self._cosines, self._targets)
        if n <= 3 or not abs(value) < 1:
            return (Metric("spearman", value, value, value, n),)
        # Fisher's z; its standard error for ranks is that of Bonett and Wright (2000).
        z, error = math.atanh(value), math.sqrt((1 + value * value / 2) / (n - 3))
        lo, hi = math.tanh(z - Z95 * error), math.tanh(z + Z95 * error)
        return (Metric("spearman", value, lo, hi, n, method="fisher"),)

    def details(self) -> Mapping[str, object]:
        return {"unpaired": sorted(self._open)}


def cosine(a: npt.NDArray[np.float64], b: npt.NDArray[np.float64]) -> float:
    """Cosine of the angle between two vectors; 0 when either is zero."""
    length = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / length if length else 0.0


def spearman(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Pearson's correlation of the ranks, ties sharing their mean rank; NaN for fewer than two or constant."""
    ranks = [_ranks(np.asarray(v, dtype=np.float64)) for v in (a, b)]
    if ranks[0].size < 2 or any(np.ptp(r) == 0 for r in ranks):
        return math.nan
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def _pair_and_score(sample: Sample) -> tuple[str, float]:
    target = sample.target
    if not (isinstance(target, list | tuple) and len(target) == 2 and isinstance(target[1], int | float)):
        raise DataError(f"sample '{sample.name}': label {target!r} is not [pair id, score]; check --labels")
    return str(target[0]), float(target[1])
