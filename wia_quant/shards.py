# SPDX-License-Identifier: Apache-2.0
"""Observation in parts: over processes of this machine, or over a Dask or Ray cluster.

Calibrators merge exactly, so the batches may be observed anywhere and in any order: the result is, to the bit,
that of one pass. On an engine of your own, map ``observe_shard`` over lists of batches and give the results to
``merge_states`` (examples/calibrate_with_dask.py does).
"""

from __future__ import annotations

import os
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from wia_quant.calibrators import CALIBRATORS, Calibrator
from wia_quant.calibrators.base import State
from wia_quant.data import Batch
from wia_quant.errors import CalibrationError, DataError, UsageError
from wia_quant.observe import Instrumented, Observations, observe, write_model

Arrays = Mapping[str, npt.NDArray[Any]]
Progress = Callable[[int, int | None, str], None]

#: A shard for a worker process ends with this many batches or bytes.
SHARD_BATCHES: Final = 16
SHARD_BYTES: Final = 16 << 20


def observe_shard(
    model: str | Path | bytes | ModelProto,
    tensors: Collection[str],
    shard: Iterable[Arrays],
    calibrator: str = "moving_average",
    *,
    threads: int = 0,
) -> State:
    """What the tensors hold on the batches of ``shard``, as JSON values that any engine can send.

    Args:
        model: a path that the worker can read, or the bytes of the model.
        tensors: as in ``observe``.
        shard: some of the batches.
        calibrator: a name of CALIBRATORS.
        threads: of onnxruntime.
    """
    return observe(model, tensors, shard, _kind(calibrator), threads=threads).state()


def merge_states(states: Iterable[State], calibrator: str = "moving_average") -> dict[str, Calibrator]:
    """{tensor name: calibrator} of all that the shards observed; give it to ``CalibrationTable.of``."""
    kind = _kind(calibrator)
    merged = Observations()
    for state in states:
        merged.merge(Observations.from_state(state, kind))
    if merged.n_batches == 0:
        raise DataError("no shard observed anything; were the states an iterator that was read before?")
    return merged  # type: ignore[return-value]  # of_state made Calibrators


def observe_in_workers(
    model: str | Path | bytes | ModelProto,
    tensors: Collection[str],
    batches: Iterable[Arrays],
    kind: type[Calibrator],
    *,
    workers: int,
    progress: Progress | None = None,
    n_batches: int | None = None,
    into: Observations | None = None,
) -> Observations:
    """``observe`` over ``workers`` processes; the batches are read here and sent to them.

    As with every use of processes, a script that calls this must keep its work below
    ``if __name__ == "__main__":``.

    Raises:
        CalibrationError: a worker died; else as ``observe``.
    """
    if workers < 1:
        raise UsageError(f"workers is {workers}; at least 1 is needed")
    result = Observations() if into is None else into
    total = n_batches if n_batches is not None else getattr(batches, "n_batches", None)
    threads = max((os.cpu_count() or 1) // workers, 1)
    pending: deque[Future[State]] = deque()
    with tempfile.TemporaryDirectory(prefix="wia-quant-") as folder:
        path = write_model(model, Path(folder))
        pool = ProcessPoolExecutor(
            workers, get_context("spawn"), initializer=_start_worker, initargs=(str(path), tuple(tensors), threads)
        )

        def take(future: Future[State]) -> None:
            result.merge(Observations.from_state(future.result(), kind))
            if progress:
                progress(result.n_batches, total, "calibrating")

        try:
            for shard in _shards(batches, skip=result.n_batches):
                pending.append(pool.submit(_observe_in_worker, shard, kind))
                # Each worker has one shard in hand and one waiting; more would only fill the memory.
                while len(pending) > 2 * workers:
                    take(pending.popleft())
            while pending:
                take(pending.popleft())
        except BrokenProcessPool as e:
            raise CalibrationError(
                f"a worker process died: out of memory? use fewer than {workers} workers (and call this only below "
                '`if __name__ == "__main__":` in a script)'
            ) from e
        finally:
            pool.shutdown(cancel_futures=True)
    if result.n_batches == 0:
        raise DataError("no batch of data: nothing was observed")
    return result


def _kind(calibrator: str) -> type[Calibrator]:
    if calibrator not in CALIBRATORS:
        raise UsageError(f"unknown calibrator {calibrator!r}; there are {', '.join(CALIBRATORS)}")
    return CALIBRATORS[calibrator]


def _shards(batches: Iterable[Arrays], skip: int) -> Iterator[list[tuple[dict[str, npt.NDArray[Any]], str]]]:
    """Lists of (arrays, where they are from)."""
    shard: list[tuple[dict[str, npt.NDArray[Any]], str]] = []
    n_bytes = 0
    for n, batch in enumerate(batches):
        if n < skip:
            continue
        shard.append((dict(batch), batch.source if isinstance(batch, Batch) else f"batch {n}"))
        n_bytes += sum(np.asarray(a).nbytes for a in batch.values())
        if len(shard) == SHARD_BATCHES or n_bytes >= SHARD_BYTES:
            yield shard
            shard, n_bytes = [], 0
    if shard:
        yield shard


#: The model of this worker process.
_instrumented: Instrumented | None = None


def _start_worker(model: str, tensors: tuple[str, ...], threads: int) -> None:
    global _instrumented
    # An interrupt goes to the whole group; the parent alone answers it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _instrumented = Instrumented(model, tensors, threads=threads)


def _observe_in_worker(shard: list[tuple[dict[str, npt.NDArray[Any]], str]], kind: type[Calibrator]) -> State:
    if _instrumented is None:
        raise RuntimeError("the worker was not started")
    result = Observations()
    for arrays, where in shard:
        _instrumented.show(arrays, where, kind, result)
        result.n_batches += 1
    return result.state()
