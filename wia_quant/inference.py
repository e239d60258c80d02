# SPDX-License-Identifier: Apache-2.0
"""Run a model on data: what it answered for each sample, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant import files
from wia_quant.data import open_data
from wia_quant.recipe import recorded_preprocess
from wia_quant.runtime import Session

ProgressCallback = Callable[[int, int | None, str], None]

#: How many of the largest values of a vector are named.
TOP: Final = 5


@dataclass(frozen=True)
class Answer:
    """What the model said of one batch.

    Attributes:
        sample: where the batch is from: a file, "file[row]" ...
        output: the name of the output.
        shape: of the output.
        top: the indices of the largest values of a vector of classes with the values; empty for other shapes.
        lo, hi, mean: over the whole output.
        latency_ms: of the whole run of the batch.
    """

    sample: str
    output: str
    shape: tuple[int, ...]
    top: tuple[tuple[int, float], ...]
    lo: float
    hi: float
    mean: float
    latency_ms: float


@dataclass(frozen=True)
class Run:
    """Every answer, and the latencies in the middle."""

    answers: tuple[Answer, ...]
    median_ms: float
    p90_ms: float
    data: Mapping[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def run_model(
    model: Path,
    data: Path | None,
    *,
    out: Path | None = None,
    force: bool = False,
    preprocess: str | Mapping[str, Any] | None = None,
    samples: int = 300,
    seed: int = 0,
    threads: int = 1,
    isa: str | None = None,
    strict: bool = False,
    progress: ProgressCallback | None = None,
) -> Run:
    """Run ``model`` in libwia on ``data``.

    Args:
        model: any ONNX model within libwia's operators.
        data: as for ``open_data``.
        out: an .npz for the outputs: output name -> the outputs of all samples, one after the other.
        force: overwrite ``out``.
        preprocess: a preset or a JSON file; by default what the model records.
        samples: how many at most.
        seed: of the choice of samples.
        threads: of libwia.
        isa: the instruction set libwia may use at most.
        strict: a broken picture is an error.
        progress: told about the samples done.
    """
    if out is not None:
        files.check_writable([out], force=force)
    session = Session(str(model), threads=threads, isa=isa)
    names = [output.name for output in session.get_outputs()]
    answers: list[Answer] = []
    latencies: list[float] = []
    kept: dict[str, list[npt.NDArray[np.generic]]] = {name: [] for name in names}
    if preprocess is None:
        preprocess = recorded_preprocess(session.get_metadata())
    dataset = open_data(data, session.get_inputs(), preprocess=preprocess, samples=samples, seed=seed, strict=strict)
    for batch in dataset:
        start = time.perf_counter()
        outputs = session.run(None, batch)
        latencies.append((time.perf_counter() - start) * 1e3)
        for name, value in zip(names, outputs, strict=True):
            answers.append(_answer(batch.source, name, value, latencies[-1]))
            if out is not None:
                kept[name].append(value)
        if progress is not None:
            progress(len(latencies), dataset.n_batches, "running")
    if out is not None:
        with files.replacing(out, force=force) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **{name: np.concatenate(values) for name, values in kept.items()})
    return Run(
        tuple(answers),
        median_ms=float(np.median(latencies)),
        p90_ms=float(np.percentile(latencies, 90)),
        data=dataset.summary.to_json(),
    )


def _answer(sample: str, name: str, value: npt.NDArray[np.generic], latency_ms: float) -> Answer:
    numbers = np.asarray(value, dtype=np.float64)
    top: tuple[tuple[int, float], ...] = ()
    if numbers.ndim == 2 and numbers.shape[0] == 1 and numbers.shape[1] > 1:
        best = np.argsort(-numbers[0], kind="stable")[:TOP]
        top = tuple((int(i), float(numbers[0, i])) for i in best)
    empty = numbers.size == 0
    return Answer(
        sample=sample,
        output=name,
        shape=tuple(numbers.shape),
        top=top,
        lo=0.0 if empty else float(numbers.min()),
        hi=0.0 if empty else float(numbers.max()),
        mean=0.0 if empty else float(numbers.mean()),
        latency_ms=latency_ms,
    )
