# SPDX-License-Identifier: Apache-2.0
"""The smallest and largest value of each channel: an observer for algorithms, not a calibrator."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt

from wia_quant.calibrators.base import State, extremes_of, flat_float32
from wia_quant.errors import CalibrationError


class ChannelExtremes:
    """``lo`` and ``hi``, both float32 [channels] along ``axis``; empty until a value was observed."""

    def __init__(self, axis: int = 1) -> None:
        self._axis = axis
        self._n_values = 0
        self.lo = np.zeros(0, dtype=np.float32)
        self.hi = np.zeros(0, dtype=np.float32)

    @property
    def n_values(self) -> int:
        return self._n_values

    def observe(self, x: npt.NDArray[Any]) -> None:
        if not -x.ndim <= self._axis < x.ndim:
            raise CalibrationError(f"a tensor of rank {x.ndim} has no axis {self._axis}")
        flat = flat_float32(x)
        extremes_of(flat)
        if flat.size == 0:
            return
        others = tuple(i for i in range(x.ndim) if i != self._axis % x.ndim)
        shaped = flat.reshape(x.shape)
        self._add(shaped.min(axis=others), shaped.max(axis=others), flat.size)

    def merge(self, other: Self) -> None:
        if other._n_values:
            self._add(other.lo, other.hi, other._n_values)

    def state(self) -> State:
        return {
            "axis": self._axis,
            "n_values": self._n_values,
            "lo": [float(v) for v in self.lo],
            "hi": [float(v) for v in self.hi],
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        new = cls(int(state["axis"]))
        new._n_values = int(state["n_values"])
        new.lo = np.array(state["lo"], dtype=np.float32)
        new.hi = np.array(state["hi"], dtype=np.float32)
        return new

    def _add(self, lo: npt.NDArray[np.float32], hi: npt.NDArray[np.float32], n_values: int) -> None:
        if self._n_values and lo.shape != self.lo.shape:
            raise CalibrationError(f"{lo.size} channels along axis {self._axis}, {self.lo.size} before")
        self.lo = np.minimum(self.lo, lo) if self._n_values else lo
        self.hi = np.maximum(self.hi, hi) if self._n_values else hi
        self._n_values += n_values
