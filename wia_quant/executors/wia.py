# SPDX-License-Identifier: Apache-2.0
"""libwia, the runtime that the numbers of a report are about."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from wia_quant import __version__
from wia_quant.executors.base import Arrays
from wia_quant.runtime import Session


class WiaExecutor:
    """A wia session; integers are exact on every CPU, so the instruction set is not part of its identity."""

    def __init__(self, model: bytes, threads: int) -> None:
        self._session = Session(model, threads=threads)
        self._names = [o.name for o in self._session.get_outputs()]

    def run(self, feed: Arrays) -> dict[str, npt.NDArray[Any]]:
        return dict(zip(self._names, self._session.run(None, dict(feed)), strict=True))

    def inputs(self) -> object:
        return self._session.get_inputs()

    def describe(self) -> dict[str, Any]:
        return {"name": "wia", "version": __version__, "isa": "any", "threads": "any"}
