# SPDX-License-Identifier: Apache-2.0
"""Regression: mean absolute and root mean square error. Target: numbers of the output's size."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from wia_quant.errors import DataError
from wia_quant.evaluators.base import Sample, Scored, Scores, only_output
from wia_quant.evaluators.metric import Metric, mean


class Regression:
    """Errors of the first output, averaged over its elements, then over samples."""

    def __init__(self) -> None:
        self._scores = Scores()

    def score(self, sample: Sample) -> Scored:
        y = np.asarray(only_output(sample), dtype=np.float64).reshape(-1)
        target = np.asarray(sample.target, dtype=np.float64).reshape(-1) if sample.target is not None else None
        if target is None or target.size != y.size:
            found = "none" if target is None else f"{target.size}"
            raise DataError(f"sample '{sample.name}': {y.size} target numbers expected, {found} found")
        scores = {"mae": float(np.abs(y - target).mean()), "mse": float(np.square(y - target).mean())}
        return Scored(scores, f"{y[0]:.4g}")

    def add(self, scored: Scored) -> None:
        self._scores.add(scored.scores)

    def metrics(self) -> tuple[Metric, ...]:
        mae = mean("mae", self._scores.by_name.get("mae", []), higher_is_better=False)
        mse = mean("mse", self._scores.by_name.get("mse", []), higher_is_better=False)
        value, lo, hi = (math.sqrt(v) for v in (mse.value, mse.lo, mse.hi))
        rmse = Metric("rmse", value, lo, hi, mse.n, "", False, mse.method)
        return (mae, rmse)

    def details(self) -> Mapping[str, object]:
        return {}
