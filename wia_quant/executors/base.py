# SPDX-License-Identifier: Apache-2.0
"""What runs a model for an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy.typing as npt

Arrays = Mapping[str, npt.NDArray[Any]]


class Executor(Protocol):
    """A loaded model."""

    def run(self, feed: Arrays) -> dict[str, npt.NDArray[Any]]:
        """All outputs by name. Raises a WiaError for inputs that do not fit."""
        ...

    def inputs(self) -> object:
        """The inputs as ``data.open_data`` takes them."""
        ...

    def describe(self) -> dict[str, Any]:
        """``name``, ``version``, ``isa``, ``threads``: what two evaluations must share to be compared."""
        ...
