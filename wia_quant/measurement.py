# SPDX-License-Identifier: Apache-2.0
"""Runs a model over data and measures it: by labels, or by agreement with the float model."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.data import Batch, Dataset, open_data
from wia_quant.errors import DataError, ModelError, UsageError
from wia_quant.evaluation import Evaluation, SampleResult
from wia_quant.evaluators import make_evaluator
from wia_quant.evaluators.base import Evaluator, Sample
from wia_quant.executors import make_executor
from wia_quant.graph import read_proto
from wia_quant.labels import Labels, labels_of_folders, load_labels
from wia_quant.layers import LayerProbe
from wia_quant.preprocess import Preprocess
from wia_quant.recipe import recorded_preprocess

Progress = Callable[[int, int | None, str], None]
#: The float model runs here: the executor that has every operator.
REFERENCE_EXECUTOR: Final = "onnxruntime"
#: The first runs warm caches and are left out of the latency.
_WARM_UP: Final = 2


def evaluate(
    model: str | Path | bytes,
    data: object,
    *,
    reference: str | Path | bytes | None = None,
    labels: str | Path | Mapping[str, object] | None = None,
    task: str | None = None,
    evaluator: Evaluator | None = None,
    executor: str = "wia",
    layers: int = 0,
    preprocess: str | Path | Mapping[str, Any] | Preprocess | None = None,
    samples: int = 1_000_000_000,
    seed: int = 0,
    threads: int = 1,
    strict: bool = False,
    progress: Progress | None = None,
) -> Evaluation:
    """Measures ``model`` on ``data``.

    Args:
        model: a file or its bytes.
        data: what ``open_data`` takes.
        reference: the float model, run by onnxruntime; needed without labels.
        labels: a .csv or .json file, or {sample: target}. None: the folder's class folders, if it has any.
        task: an evaluator's name or ``module:function``; None: classification with labels, agreement without.
        evaluator: one made by the caller, instead of the task's own.
        executor: "wia", "onnxruntime" or "reference".
        layers: also measure each layer's error, on so many samples; needs ``reference``.
        preprocess: for pictures; None: what the model records, else guessed, and said.
        samples: at most so many.
        seed: of their choice.
        threads: of the executor.
        strict: a broken picture is an error.
        progress: called as ``progress(done, total, what)``.

    Raises:
        ModelError: a model that cannot be loaded.
        DataError: data or labels that do not fit.
        UsageError: an unknown task or executor; agreement without a reference.
    """
    subject = _bytes(model)
    found, task = _labels(labels, data, task)
    if task == "agreement" and reference is None:
        raise UsageError("without labels the model is compared with the float one; give --reference FLOAT or --labels")
    if layers and reference is None:
        raise UsageError("layer errors are differences from the float model; give --reference FLOAT")
    run = make_executor(executor, subject, threads)
    other = None if reference is None else _bytes(reference)
    run_reference = None if other is None else make_executor(REFERENCE_EXECUTOR, other, threads)
    dataset = open_data(
        data,
        run.inputs(),
        preprocess=preprocess or recorded_preprocess(_metadata(subject)),
        samples=samples,
        seed=seed,
        strict=strict,
    )
    probe = None if not layers or other is None else LayerProbe.of(read_proto(subject), read_proto(other))
    judge = evaluator or make_evaluator(task)
    results: list[SampleResult] = []
    times: list[float] = []
    for batch in dataset:
        started = time.perf_counter()
        outputs = run.run(batch)
        times.append((time.perf_counter() - started) * 1000 / max(1, batch.n_samples))
        expected = None if run_reference is None else run_reference.run(batch)
        if probe is not None and len(results) < layers:
            probe.observe([batch])
        for sample in _samples(batch, outputs, expected, found):
            scored = judge.observe(sample)
            results.append(SampleResult(sample.name, scored.scores, scored.prediction))
        if progress:
            progress(len(results), dataset.n_batches, "evaluating")
    return Evaluation(
        task=task if evaluator is None else type(evaluator).__name__,
        model=_identity(model, subject),
        reference={} if reference is None or other is None else _identity(reference, other),
        executor=run.describe(),
        data=_data(dataset, len(results)),
        metrics=judge.metrics(),
        samples=tuple(results),
        layers=() if probe is None else probe.errors(),
        details=dict(judge.details()),
        latency_ms=_latency(times),
    )


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
    for i in range(n):
        name = batch.source if n == 1 else f"{batch.source}[{i}]"
        yield Sample(
            name,
            {k: _row(v, i, n) for k, v in outputs.items()},
            None if labels is None else labels[name],
            None if expected is None else {k: _row(v, i, n) for k, v in expected.items()},
        )


def _row(y: npt.NDArray[Any], i: int, n: int) -> npt.NDArray[Any]:
    """Sample ``i`` of an output; an output without a batch axis belongs to the whole batch."""
    return y[i] if y.ndim and y.shape[0] == n else y


def _bytes(model: str | Path | bytes) -> bytes:
    if isinstance(model, bytes):
        return model
    try:
        return Path(model).read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {model}: {error.strerror}") from error


def _identity(model: str | Path | bytes, content: bytes) -> dict[str, Any]:
    path = "<bytes>" if isinstance(model, bytes) else str(model)
    return {"path": path, "sha256": sha256(content).hexdigest(), "bytes": len(content)}


def _metadata(content: bytes) -> dict[str, str]:
    return {p.key: p.value for p in read_proto(content).metadata_props}


def _data(dataset: Dataset, n: int) -> dict[str, Any]:
    summary = dataset.summary
    return {
        "source": str(summary.source),
        "digest": summary.digest,
        "n_samples": n,
        "skipped": len(summary.skipped),
        "preprocess": summary.preprocess,
        "notes": list(summary.notes),
    }


def _latency(times: list[float]) -> dict[str, float]:
    kept = times[_WARM_UP:] or times
    if not kept:
        raise DataError("no sample was evaluated")
    return {"median": float(np.median(kept)), "p90": float(np.quantile(kept, 0.9))}
