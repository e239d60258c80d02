# SPDX-License-Identifier: Apache-2.0
"""The mean over the batches of their smallest and of their largest value, 0 being in each."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy.typing as npt

from wia_quant.affine import Range
from wia_quant.calibrators.base import State, extremes_of, flat_float32, no_data
from wia_quant.calibrators.extremes import Extremes


class MovingAverage:
    """Clips the extremes of unusual batches; a good default for activations. O(1) memory.

    All batches weigh the same, whenever they come, so the order and the split over workers do not matter.
    The sums are exact: each is a short list of floats that add up to it without rounding.
    """

    def __init__(self) -> None:
        self._seen = Extremes()
        self._n_batches = 0
        self._lo_sum: list[float] = []
        self._hi_sum: list[float] = []

    @property
    def n_values(self) -> int:
        return self._seen.n_values

    def observe(self, x: npt.NDArray[Any]) -> None:
        flat = flat_float32(x)
        lo, hi = extremes_of(flat)
        if flat.size == 0:
            return
        self._seen.add(lo, hi, flat.size)
        self._n_batches += 1
        # Each batch's range contains 0, or one batch far above it would cut off what others have below.
        self._lo_sum = _exact_sum([*self._lo_sum, min(lo, 0.0)])
        self._hi_sum = _exact_sum([*self._hi_sum, max(hi, 0.0)])

    def range(self) -> Range:
        if self._n_batches == 0:
            raise no_data()
        return Range.around_zero(math.fsum(self._lo_sum) / self._n_batches, math.fsum(self._hi_sum) / self._n_batches)

    def clipped(self) -> float | None:
        return None

    def parameters(self) -> dict[str, float]:
        return {}

    def merge(self, other: Self) -> None:
        self._seen.merge(other._seen)
        self._n_batches += other._n_batches
        self._lo_sum = _exact_sum(self._lo_sum + other._lo_sum)
        self._hi_sum = _exact_sum(self._hi_sum + other._hi_sum)

    def state(self) -> State:
        return self._seen.state() | {
            "n_batches": self._n_batches,
            "lo_sum": list(self._lo_sum),
            "hi_sum": list(self._hi_sum),
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        new = cls()
        new._seen = Extremes.from_state(state)
        new._n_batches = int(state["n_batches"])
        new._lo_sum = [float(v) for v in state["lo_sum"]]
        new._hi_sum = [float(v) for v in state["hi_sum"]]
        return new


def _exact_sum(terms: list[float]) -> list[float]:
    """The shortest list of floats, largest first, whose sum is exactly that of ``terms``."""
    exact: list[float] = []
    while rest := math.fsum([*terms, *(-e for e in exact)]):
        exact.append(rest)
    return exact
