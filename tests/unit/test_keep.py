# SPDX-License-Identifier: Apache-2.0
"""Kept: the first batches of a stream stay at hand, in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest

from tests.quantizing import Array
from wia_quant import keep
from wia_quant.data import open_data
from wia_quant.inputs import ModelInput
from wia_quant.keep import Kept

INPUTS = (ModelInput("x", (None, 4), np.float32),)


def stream(n: int):  # type: ignore[no-untyped-def]
    """A source that can be read only once."""
    return ({"x": np.full((1, 4), i, np.float32)} for i in range(n))


def values(kept: Kept) -> list[float]:
    return [float(b["x"][0, 0]) for b in kept.batches()]


def test_what_streamed_by_once_can_be_looked_at_again() -> None:
    kept = Kept(open_data(stream(5), INPUTS))
    assert len(list(kept)) == 5
    assert values(kept) == [0, 1, 2, 3, 4]


def test_batches_are_read_when_nobody_has_read_them() -> None:
    assert values(Kept(open_data(stream(3), INPUTS))) == [0, 1, 2]


@pytest.mark.parametrize(("limit", "value"), [("MAX_BATCHES", 2), ("MAX_BYTES", 40)])
def test_no_more_is_kept_than_allowed(monkeypatch: pytest.MonkeyPatch, limit: str, value: int) -> None:
    monkeypatch.setattr(keep, limit, value)
    kept = Kept(open_data(stream(9), INPUTS))
    assert len(list(kept)) == 9
    assert values(kept) == [0, 1]


def test_one_batch_is_kept_however_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "MAX_BYTES", 1)
    kept = Kept(open_data(stream(2), INPUTS))
    list(kept)
    assert values(kept) == [0]


def test_arrays_that_are_reused_by_their_source_stay_as_they_were() -> None:
    buffer: Array = np.zeros((1, 4), np.float32)

    def reusing():  # type: ignore[no-untyped-def]
        for i in range(3):
            buffer[:] = i
            yield {"x": buffer}

    kept = Kept(open_data(reusing(), INPUTS))
    list(kept)
    assert values(kept) == [0, 1, 2]
