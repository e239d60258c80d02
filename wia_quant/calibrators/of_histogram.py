# SPDX-License-Identifier: Apache-2.0
"""What the calibrators that choose from a histogram have in common: all but the choice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy.typing as npt

from wia_quant.affine import Range
from wia_quant.calibrators.base import State, no_data, require_same
from wia_quant.calibrators.histogram import Histogram


class OfHistogram(ABC):
    """A Calibrator whose state is a histogram; a subclass says which range it chooses."""

    def __init__(self) -> None:
        self._histogram = Histogram()

    @abstractmethod
    def _choose(self, h: Histogram) -> Range:
        """The range to keep of a histogram with at least one value."""

    @property
    def n_values(self) -> int:
        return self._histogram.seen.n_values

    def observe(self, x: npt.NDArray[Any]) -> None:
        self._histogram.observe(x)

    def range(self) -> Range:
        if self._histogram.seen.n_values == 0:
            raise no_data()
        return self._choose(self._histogram)

    def clipped(self) -> float | None:
        kept = self.range()
        return self._histogram.outside(kept.lo, kept.hi)

    def parameters(self) -> dict[str, float]:
        return {}

    def merge(self, other: Self) -> None:
        require_same(self.parameters(), other.parameters())
        self._histogram.merge(other._histogram)

    def state(self) -> State:
        return self.parameters() | self._histogram.state()

    @classmethod
    def from_state(cls, state: State) -> Self:
        parameters = cls().parameters()
        new = cls(**{name: float(state[name]) for name in parameters})
        new._histogram = Histogram.from_state(state)
        return new
