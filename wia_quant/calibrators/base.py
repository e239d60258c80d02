# SPDX-License-Identifier: Apache-2.0
"""The Calibrator protocol, and the check that every observed array passes."""

from __future__ import annotations

import math
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from wia_quant.affine import Range
from wia_quant.errors import CalibrationError

Float32Array = npt.NDArray[np.float32]
State = dict[str, Any]  # JSON: str, int, finite float, list and dict of these


class Observer(Protocol):
    """Anything that is shown values batch by batch, in constant memory, and can be merged and stored."""

    @property
    def n_values(self) -> int:
        """How many values were observed."""

    def observe(self, x: npt.NDArray[Any]) -> None:
        """Take in one batch of one tensor: any shape, also [] and empty; any floating type.

        The order of the batches never matters: the same batches give the same state, to the bit.

        Raises:
            CalibrationError: ``x`` holds NaN or infinity; the state is as before.
        """

    def merge(self, other: Self) -> None:
        """Take in all that ``other`` observed, as if it had been shown here; exact.

        Raises:
            CalibrationError: ``other`` has other parameters.
        """

    def state(self) -> State:
        """All of it as JSON values; ``from_state`` gives it back, to the bit."""

    @classmethod
    def from_state(cls, state: State) -> Self:
        """The observer that ``state`` was taken of."""


class Calibrator(Observer, Protocol):
    """Chooses the range of one tensor from the values it is shown.

    A calibrator is constructed with its parameters, all of which have defaults.
    """

    def range(self) -> Range:
        """The range to keep: contains 0.0, lies within what was observed and 0.0.

        Raises:
            CalibrationError: nothing was observed.
        """

    def clipped(self) -> float | None:
        """The share of the observed values outside ``range()``, 0 to 1; None if the state cannot tell."""

    def parameters(self) -> dict[str, float]:
        """The constructor's arguments."""


def flat_float32(x: npt.NDArray[Any]) -> Float32Array:
    """``x`` as a flat float32 array; what float32 cannot hold becomes infinity.

    Raises:
        CalibrationError: ``x`` is not of a floating type.
    """
    if x.dtype.kind != "f":
        raise CalibrationError(f"values of type {x.dtype} are not observed, only floating-point ones")
    if x.dtype != np.float32:
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
    return np.ascontiguousarray(x).reshape(-1)


def extremes_of(flat: Float32Array) -> tuple[float, float]:
    """The smallest and the largest value; 0, 0 of none.

    Raises:
        CalibrationError: NaN or infinity.
    """
    if flat.size == 0:
        return 0.0, 0.0
    lo, hi = float(flat.min()), float(flat.max())  # numpy propagates NaN; Python's min() would drop it
    if not (math.isfinite(lo) and math.isfinite(hi)):
        bad = flat[~np.isfinite(flat)]
        nans = int(np.isnan(bad).sum())
        raise CalibrationError(
            f"{bad.size} of {flat.size} values are not finite ({nans} NaN, {bad.size - nans} infinite)"
        )
    return lo, hi


def no_data() -> CalibrationError:
    """The error of a range asked of a calibrator that observed nothing."""
    return CalibrationError("no value was observed, so there is no range")


def require_same(mine: dict[str, float], other: dict[str, float]) -> None:
    """Raise CalibrationError unless two calibrators about to be merged have the same parameters."""
    if mine != other:
        raise CalibrationError(f"cannot merge calibrators of different parameters: {mine} and {other}")
