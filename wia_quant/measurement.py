# SPDX-License-Identifier: Apache-2.0
"""Runs a model over data and measures it: by labels, or by agreement with the float model."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypedDict

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto

from wia_quant.data import Batch, Dataset, open_data
from wia_quant.errors import DataError, UsageError
from wia_quant.evaluation import Evaluation, LayerError, SampleResult
from wia_quant.evaluators import make_evaluator
from wia_quant.evaluators.base import Evaluator, Sample
from wia_quant.executors import make_executor
from wia_quant.executors.base import Executor
from wia_quant.graph import metadata_of, read_proto
from wia_quant.journal import Entry, Journal
from wia_quant.labels import Labels, labels_of_folders, load_labels
from wia_quant.layers import probe_layers
from wia_quant.preprocess import Preprocess
from wia_quant.qdq import is_quantized
from wia_quant.recipe import recorded_preprocess

Progress = Callable[[int, int | None, str], None]
#: A model: a file, its bytes, or what onnx.load gives.
Source = str | Path | bytes | ModelProto
#: More than there are.
ALL_SAMPLES: Final = 1_000_000_000
#: The float model runs here: the executor that has every operator.
REFERENCE_EXECUTOR: Final = "onnxruntime"
#: The first runs warm caches and are left out of the latency.
_WARM_UP: Final = 2


class Options(TypedDict, total=False):
    """What ``evaluate`` takes by name and ``baseline`` and ``regress`` hand on as it is; described there."""

    labels: str | Path | Mapping[str, object] | None
    evaluator: Evaluator | None
    executor: str
    batch: int
    workers: int
    threads: int
    strict: bool
    progress: Progress | None


class AllOptions(Options, total=False):
    """And what a comparison takes from the evaluation that it is given."""

    task: str | None
    preprocess: str | Path | Mapping[str, Any] | Preprocess | None
    samples: int
    seed: int
    journal: str | Path | None


def evaluate(
    model: Source,
    data: object,
    *,
    reference: Source | None = None,
    labels: str | Path | Mapping[str, object] | None = None,
    task: str | None = None,
    evaluator: Evaluator | None = None,
    executor: str = "wia",
    layers: int = 0,
    preprocess: str | Path | Mapping[str, Any] | Preprocess | None = None,
    samples: int = ALL_SAMPLES,
    seed: int = 0,
    batch: int = 1,
    workers: int = 1,
    threads: int = 1,
    strict: bool = False,
    journal: str | Path | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measures ``model`` on ``data``.

    Pictures are read while the model runs on those before; the result does not depend on ``workers``.

    Args:
        model: a file, its bytes, or a ModelProto.
        data: what ``open_data`` takes.
        reference: the float model, run by onnxruntime; needed without labels.
        labels: a .csv or .json file, or {sample: target}. None: the folder's class folders, if it has any.
        task: an evaluator's name or ``module:function``; None: classification with labels, agreement without.
        evaluator: one made by the caller, instead of the task's own.
        executor: "wia", "onnxruntime" or "reference".
        layers: also measure each layer's error, on so many samples; needs ``reference``. A float model has none.
        preprocess: for pictures; None: what the model records, else guessed, and said.
        samples: at most so many.
        seed: of their choice.
        batch: samples that the model is given at once; more than 1 only where its batch axis is free.
        workers: copies of the model that run at the same time.
        threads: of each.
        strict: a broken picture is an error.
        journal: a file that what was measured is kept in until the end; where it is there already, the interrupted
            run goes on from it.
        progress: called as ``progress(done, total, what)``.

    Raises:
        ModelError: a model that cannot be loaded.
        DataError: data or labels that do not fit.
        UsageError: an unknown task or executor; agreement without a reference; a journal of another run.
    """
    proto, subject = _content(model)
    found, task = _labels(labels, data, task)
    if task == "agreement" and evaluator is None and reference is None:
        raise UsageError("without labels the model is compared with the float one; give --reference FLOAT or --labels")
    if layers and reference is None:
        raise UsageError("layer errors are differences from the float model; give --reference FLOAT")
    if batch < 1 or workers < 1:
        raise UsageError(f"batch is {batch} and workers is {workers}; at least 1 of each is needed")
    copies = [make_executor(executor, subject, threads) for _ in range(workers)]
    other_proto, other = (None, b"") if reference is None else _content(reference)
    compared = other_proto is not None and (task == "agreement" or evaluator is not None)
    judge = evaluator or make_evaluator(task, metadata_of(proto))
    dataset = open_data(
        data,
        copies[0].inputs(),
        preprocess=preprocess or recorded_preprocess(metadata_of(proto)),
        samples=samples,
        seed=seed,
        strict=strict,
        readers=workers,
    )
    run = _Run(copies, make_executor(REFERENCE_EXECUTOR, other, threads) if compared else None, judge, found)
    shown: list[Batch] = []
    identity: dict[str, Any] = {
        "model": _identity(model, subject),
        "reference": {} if reference is None else _identity(reference, other),
        "executor": copies[0].describe(),
        "task": task if evaluator is None else type(evaluator).__name__,
    }
    kept = None
    if journal is not None:
        described = {"source": str(dataset.summary.source), "samples": samples, "seed": seed, "batch": batch}
        labelled = {"labels": None if found is None else found.digest, "preprocess": dataset.summary.preprocess}
        kept = Journal(journal, identity | described | labelled)
    results: list[SampleResult] = []
    times: list[float] = []
    done = False
    try:
        for entry in _in_order(_keeping(_grouped(dataset, batch), shown, layers), dataset, run, kept):
            times.append(entry.ms)
            for name, scored in zip(entry.names, entry.scored, strict=True):
                judge.add(scored)
                results.append(SampleResult(name, scored.scores, scored.prediction))
            if progress:
                progress(len(results), dataset.n_samples, "evaluating")
        done = True
    finally:
        if kept is not None:
            kept.close(done=done)
    errors: tuple[LayerError, ...] = ()
    if layers and other_proto is not None and is_quantized(proto):
        errors = probe_layers(proto, other_proto, shown, progress, threads).errors()
    return Evaluation(
        **identity,
        data=_data(dataset, len(results), samples),
        metrics=judge.metrics(),
        samples=tuple(results),
        layers=errors,
        details=dict(judge.details()),
        latency_ms=_latency(times),
    )


@dataclass(frozen=True)
class _Run:
    """What one batch goes through, in whichever thread."""

    copies: Sequence[Executor]
    reference: Executor | None
    judge: Evaluator
    labels: Labels | None

    def worker(self) -> Callable[[Batch, str], Entry]:
        """A function that borrows a copy of the model for each batch."""
        free: SimpleQueue[Executor] = SimpleQueue()
        for copy in self.copies:
            free.put(copy)

        def measure(batch: Batch, digest: str) -> Entry:
            executor = free.get()
            try:
                started = time.perf_counter()
                outputs = executor.run(batch)
                ms = (time.perf_counter() - started) * 1000 / max(1, batch.n_samples)
            finally:
                free.put(executor)
            expected = None if self.reference is None else self.reference.run(batch)
            scored = tuple(self.judge.score(s) for s in _samples(batch, outputs, expected, self.labels))
            return Entry(digest, batch.names, scored, ms)

        return measure


def _in_order(batches: Iterable[Batch], dataset: Dataset, run: _Run, journal: Journal | None) -> Iterator[Entry]:
    """Every batch's entry in the order of the data; a few batches are read ahead of those that run."""
    before = deque(() if journal is None else journal.entries)
    waiting: deque[Future[Entry]] = deque()
    measure = run.worker()

    def next_entry() -> Entry:
        entry = waiting.popleft().result()
        if journal is not None:
            journal.append(entry)
        return entry

    with ThreadPoolExecutor(len(run.copies), "wia-evaluate") as pool:
        try:
            for batch in batches:
                if before:
                    entry = before.popleft()
                    if (entry.digest, entry.names) != (dataset.summary.digest, batch.names):
                        raise DataError(f"the data has changed since {journal and journal.path} was begun; remove it")
                    yield entry
                    continue
                waiting.append(pool.submit(measure, batch, dataset.summary.digest))
                if len(waiting) > 2 * len(run.copies):
                    yield next_entry()
            while waiting:
                yield next_entry()
        finally:
            for future in waiting:
                future.cancel()


def _grouped(dataset: Dataset, size: int) -> Iterator[Batch]:
    """The dataset's batches joined to ``size`` samples where their shapes allow it."""
    held: list[Batch] = []
    for batch in dataset:
        if held and (_form(batch) != _form(held[0]) or sum(b.n_samples for b in held) >= size):
            yield _joined(held)
            held = []
        held.append(batch)
        if sum(b.n_samples for b in held) >= size:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _form(batch: Batch) -> dict[str, tuple[int, ...]]:
    return {name: array.shape[1:] for name, array in batch.items()}


def _joined(batches: Sequence[Batch]) -> Batch:
    if len(batches) == 1:
        return batches[0]
    arrays = {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
    names = [name for b in batches for name in b.names]
    return Batch(arrays, ", ".join(b.source for b in batches), sum(b.n_samples for b in batches), names)


def _keeping(batches: Iterable[Batch], shown: list[Batch], n: int) -> Iterator[Batch]:
    """The batches, those that hold the first ``n`` samples added to ``shown``."""
    for batch in batches:
        if sum(b.n_samples for b in shown) < n:
            shown.append(batch)
        yield batch


def _labels(
    labels: str | Path | Mapping[str, object] | None, data: object, task: str | None
) -> tuple[Labels | None, str]:
    found: Labels | None
    if isinstance(labels, Mapping):
        found = Labels(labels, "labels")
    elif labels is not None:
        found = load_labels(labels)
    elif isinstance(data, str | Path) and task != "agreement":
        found = labels_of_folders(data)
    else:
        found = None
    return found, task or ("agreement" if found is None else "classification")


def _samples(
    batch: Batch,
    outputs: Mapping[str, npt.NDArray[Any]],
    expected: Mapping[str, npt.NDArray[Any]] | None,
    labels: Labels | None,
) -> Iterator[Sample]:
    n = batch.n_samples
    for i, name in enumerate(batch.names):
        yield Sample(
            name,
            {k: _row(v, i, n, k) for k, v in outputs.items()},
            None if labels is None else labels[name],
            None if expected is None else {k: _row(v, i, n, k) for k, v in expected.items()},
        )


def _row(y: npt.NDArray[Any], i: int, n: int, output: str) -> npt.NDArray[Any]:
    """Sample ``i`` of an output; of a batch of one an output without a batch axis is that sample's."""
    if y.ndim and y.shape[0] == n:
        return np.asarray(y[i])
    if n == 1 or not y.ndim:
        return y
    raise UsageError(
        f"output '{output}' is {list(y.shape)} for a batch of {n}: which rows are whose cannot be told; use --batch 1"
    )


def _content(model: Source) -> tuple[ModelProto, bytes]:
    """The model with its external data, and its bytes: the file's own where it is whole."""
    if isinstance(model, ModelProto):
        return model, model.SerializeToString()
    proto = read_proto(model)
    if isinstance(model, bytes):
        return proto, model
    with contextlib.suppress(OSError):
        raw = Path(model).read_bytes()
        if not any(t.data_location == TensorProto.EXTERNAL for t in read_proto(raw).graph.initializer):
            return proto, raw
    return proto, proto.SerializeToString()


def _identity(model: Source, content: bytes) -> dict[str, Any]:
    path = str(model) if isinstance(model, str | Path) else "<memory>"
    return {"path": path, "sha256": sha256(content).hexdigest(), "bytes": len(content)}


def _data(dataset: Dataset, n: int, requested: int) -> dict[str, Any]:
    summary = dataset.summary
    return {
        "source": str(summary.source),
        "digest": summary.digest,
        "n_samples": n,
        "requested": requested,
        "seed": summary.seed,
        "skipped": len(summary.skipped),
        "preprocess": summary.preprocess,
        "notes": list(summary.notes),
    }


def _latency(times: list[float]) -> dict[str, float]:
    kept = times[_WARM_UP:] or times
    if not kept:
        raise DataError("no sample was evaluated")
    return {"median": float(np.median(kept)), "p90": float(np.quantile(kept, 0.9))}
