# SPDX-License-Identifier: Apache-2.0
"""Keep everything: from the smallest to the largest value ever seen."""

from __future__ import annotations

from typing import Any, Self

import numpy.typing as npt

from wia_quant.affine import Range
from wia_quant.calibrators.base import State, extremes_of, flat_float32, no_data
from wia_quant.calibrators.extremes import Extremes


class MinMax:
    """Never clips, so one outlier can cost all the resolution. O(1) memory."""

    def __init__(self) -> None:
        self._seen = Extremes()

    @property
    def n_values(self) -> int:
        return self._seen.n_values

    def observe(self, x: npt.NDArray[Any]) -> None:
        flat = flat_float32(x)
        lo, hi = extremes_of(flat)
        self._seen.add(lo, hi, flat.size)

    def range(self) -> Range:
        if self._seen.n_values == 0:
            raise no_data()
        return Range.around_zero(self._seen.lo, self._seen.hi)

    def clipped(self) -> float | None:
        return 0.0

    def parameters(self) -> dict[str, float]:
        return {}

    def merge(self, other: Self) -> None:
        self._seen.merge(other._seen)

    def state(self) -> State:
        return self._seen.state()

    @classmethod
    def from_state(cls, state: State) -> Self:
        new = cls()
        new._seen = Extremes.from_state(state)
        return new
