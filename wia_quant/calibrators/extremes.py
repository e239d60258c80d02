# SPDX-License-Identifier: Apache-2.0
"""The smallest and largest value seen, and how many values: what every calibrator keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from wia_quant.calibrators.base import State


@dataclass
class Extremes:
    """``lo`` and ``hi`` are 0.0 until ``n_values`` is positive."""

    n_values: int = 0
    lo: float = 0.0
    hi: float = 0.0

    def add(self, lo: float, hi: float, n_values: int) -> None:
        """Take in ``n_values`` values that lie in [lo, hi] and reach both ends."""
        if n_values == 0:
            return
        # + 0.0 makes 0.0 of -0.0; which of the two a minimum is depends on the order of the values.
        self.lo = (min(self.lo, lo) if self.n_values else lo) + 0.0
        self.hi = (max(self.hi, hi) if self.n_values else hi) + 0.0
        self.n_values += n_values

    def merge(self, other: Extremes) -> None:
        """Take in what ``other`` saw."""
        self.add(other.lo, other.hi, other.n_values)

    def state(self) -> State:
        """As JSON."""
        return {"n_values": self.n_values, "lo": self.lo, "hi": self.hi}

    @classmethod
    def from_state(cls, state: State) -> Self:
        """From JSON."""
        return cls(int(state["n_values"]), float(state["lo"]), float(state["hi"]))
