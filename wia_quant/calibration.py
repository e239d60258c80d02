# SPDX-License-Identifier: Apache-2.0
"""The whole of a calibration: data -> observation -> table; saved as it goes, gone on with later."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Final, Protocol, cast

from onnx import ModelProto

from wia_quant.calibrators import CALIBRATORS, Calibrator
from wia_quant.data import Batch, Summary
from wia_quant.errors import TableError, UsageError
from wia_quant.observe import Observations, observe
from wia_quant.shards import observe_in_workers
from wia_quant.table import CalibrationTable

Progress = Callable[[int, int | None, str], None]

#: Seconds between two savings of an unfinished table.
SAVE_EVERY: Final = 30.0


class Batches(Protocol):
    """What ``open_data`` gives, or what stands for it."""

    @property
    def n_batches(self) -> int | None:
        """How many batches there will be, if that is known."""

    @property
    def summary(self) -> Summary:
        """What was read so far."""

    def __iter__(self) -> Iterator[Batch]:
        """The batches, from the first."""


class InterruptedCalibration(KeyboardInterrupt):
    """Ctrl-C during calibration; ``table`` has what was observed so far and can be gone on from."""

    def __init__(self, table: CalibrationTable) -> None:
        super().__init__(f"interrupted after {table.n_batches} batches")
        self.table = table


def calibrate(
    model: str | Path | bytes | ModelProto,
    tensors: Collection[str],
    dataset: Batches,
    calibrator: str = "moving_average",
    *,
    model_sha256: str,
    begun: CalibrationTable | None = None,
    save: Callable[[CalibrationTable], None] | None = None,
    save_every: float = SAVE_EVERY,
    workers: int = 1,
    progress: Progress | None = None,
) -> CalibrationTable:
    """The ranges of the tensors on the data.

    Args:
        model: the float model.
        tensors: names of tensors of its main graph.
        dataset: from ``open_data``.
        calibrator: a name of CALIBRATORS.
        model_sha256: what the table is to be known by.
        begun: the table of an interrupted calibration of the same model and data, to go on from.
        save: called every ``save_every`` seconds with the unfinished table.
        save_every: seconds.
        workers: processes that observe.
        progress: called as ``progress(batches done, total, "calibrating")``.

    Raises:
        TableError: ``begun`` is of another model, calibrator or data.
        InterruptedCalibration: Ctrl-C; has the table so far.
        UsageError, CalibrationError, DataError, ModelError: as ``observe`` and ``open_data``.
    """
    if calibrator not in CALIBRATORS:
        raise UsageError(f"unknown calibrator {calibrator!r}; there are {', '.join(CALIBRATORS)}")
    seen = Observations() if begun is None else _restored(begun, calibrator, model_sha256)
    batches = _Recorded(dataset, begun)
    saved = time.monotonic()

    def table(*, complete: bool) -> CalibrationTable:
        return CalibrationTable.of(
            cast(dict[str, Calibrator], seen),
            model_sha256=model_sha256,
            calibrator=calibrator,
            data=batches.summary(seen.n_batches, complete=complete),
            n_batches=seen.n_batches,
            complete=complete,
            skipped=seen.skipped,
        )

    def after_batch(done: int, total: int | None, what: str) -> None:
        nonlocal saved
        if save and time.monotonic() - saved >= save_every:
            save(table(complete=False))
            saved = time.monotonic()
        if progress:
            progress(done, total, what)

    run: Callable[..., Observations] = observe
    extra: dict[str, Any] = {}
    if workers != 1:
        run, extra = observe_in_workers, {"workers": workers}
    try:
        run(model, tensors, batches, CALIBRATORS[calibrator], progress=after_batch, into=seen, **extra)
    except KeyboardInterrupt:
        if seen.n_batches == 0:
            raise
        raise InterruptedCalibration(table(complete=False)) from None
    return table(complete=True)


def _restored(begun: CalibrationTable, calibrator: str, model_sha256: str) -> Observations:
    begun.require_model(model_sha256)
    if begun.calibrator != calibrator:
        raise TableError(
            f"the interrupted table is of calibrator {begun.calibrator!r}; go on with it, not {calibrator!r}"
        )
    seen = Observations()
    seen.update(begun.restored())
    seen.n_batches = begun.n_batches
    seen.skipped = dict(begun.skipped)
    return seen


class _Recorded:
    """The batches of a dataset; remembers what the summary said after each, and checks where to go on."""

    def __init__(self, dataset: Batches, begun: CalibrationTable | None) -> None:
        self._dataset, self._begun = dataset, begun
        self._after: list[tuple[int, str]] = []  # samples used, digest

    @property
    def n_batches(self) -> int | None:
        return self._dataset.n_batches

    def __iter__(self) -> Iterator[Batch]:
        self._after.clear()
        for batch in self._dataset:
            self._after.append((self._dataset.summary.used, self._dataset.summary.digest))
            if self._begun is not None and len(self._after) == self._begun.n_batches:
                self._check(self._begun)
            yield batch
        if self._begun is not None and len(self._after) < self._begun.n_batches:
            raise TableError(
                f"the interrupted calibration saw {self._begun.n_batches} batches, and the data gives only "
                f"{len(self._after)}: it is not the data it began with"
            )

    def summary(self, n_batches: int, *, complete: bool) -> dict[str, Any]:
        """The dataset's summary as it was after ``n_batches``."""
        summary = self._dataset.summary.to_json()
        if not complete and n_batches <= len(self._after):
            used, digest = self._after[n_batches - 1]
            summary |= {"batches": n_batches, "used": used, "digest": digest}
        return summary

    def _check(self, begun: CalibrationTable) -> None:
        summary = self._dataset.summary
        if (begun.data.get("digest"), begun.data.get("preprocess")) != (summary.digest, summary.preprocess):
            raise TableError(
                "the interrupted calibration saw other data, samples, seed or preprocessing than these: give the "
                "same again, or begin anew without its table"
            )
