# SPDX-License-Identifier: Apache-2.0
"""How long a model takes, in libwia and in onnxruntime, measured in turns so that both meet the same machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime

from wia_quant.errors import DataError, ModelError, RuntimeFault, UsageError
from wia_quant.runtime import Session

Feeds = Mapping[str, npt.NDArray[np.generic]]
ProgressCallback = Callable[[int, int | None, str], None]

#: Bytes of one random input at most: a slip in --shape, not a benchmark, asks for more.
MAX_INPUT_BYTES: Final = 2**31

#: Rounds before the clock counts: caches, page faults, lazy set-up.
WARM_UP: Final = 5

#: A run that took so many times its CPU time was kept waiting.
BUSY: Final = 1.5

_NUMPY_OF: Final = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(int16)": np.int16,
    "tensor(uint16)": np.uint16,
    "tensor(int32)": np.int32,
    "tensor(uint32)": np.uint32,
    "tensor(int64)": np.int64,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
}


@dataclass(frozen=True)
class Timing:
    """One engine at one number of threads.

    Attributes:
        engine: "libwia" or "onnxruntime".
        model: the file it ran.
        threads: how many it was given.
        median_ms: the middle of the wall times of one run.
        p90_ms: nine of ten runs were not slower.
        cpu_ms: the median of the CPU time of one run, all threads together.
        runs: how many were timed, after WARM_UP more.
        ratio: this median by that of libwia at the same number of threads; above 1, libwia is faster.
        cpu_ratio: the same of the CPU times, which other programs on the machine disturb less.
    """

    engine: str
    model: str
    threads: int
    median_ms: float
    p90_ms: float
    cpu_ms: float
    runs: int
    ratio: float
    cpu_ratio: float


@dataclass(frozen=True)
class Benchmark:
    """What was measured, and on what.

    Attributes:
        timings: libwia first, for each number of threads.
        inputs: input name -> "float32[1,3,224,224]".
        notes: what could not be compared and why.
    """

    timings: tuple[Timing, ...]
    inputs: Mapping[str, str]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def benchmark(
    model: Path,
    *,
    against: Path | None = None,
    feeds: Sequence[Feeds] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    threads: Sequence[int] = (1,),
    runs: int = 50,
    isa: str | None = None,
    seed: int = 0,
    progress: ProgressCallback | None = None,
) -> Benchmark:
    """Time ``model`` in libwia and onnxruntime, and ``against`` (its float form, say) in onnxruntime.

    Args:
        model: what libwia runs.
        against: one more model for onnxruntime to run on the same inputs.
        feeds: inputs to run in turn; made at random where there are none.
        shapes: input name -> shape, for inputs whose shape the model leaves open.
        threads: each number is measured.
        runs: timed runs of each engine.
        isa: the instruction set libwia may use at most.
        seed: of the random inputs.
        progress: told about the runs done.

    Raises:
        UsageError: an input's shape is open and neither ``feeds`` nor ``shapes`` gives it.
        DataError: ``feeds`` is empty.
    """
    for file in filter(None, (model, against)):
        if not file.is_file():
            raise ModelError(f"{file}: no such file")
    first = Session(str(model), threads=threads[0], isa=isa)
    data = list(feeds) if feeds is not None else [random_feeds(first.get_inputs(), shapes or {}, seed)]
    if not data:
        raise DataError("no sample to measure with; give --data with at least one usable file")
    notes: list[str] = []
    timings: list[Timing] = []
    for index, count in enumerate(threads):
        engines: list[tuple[str, Path, Callable[[Feeds], object]]] = []
        session = first if index == 0 else Session(str(model), threads=count, isa=isa)
        engines.append(("libwia", model, _libwia_caller(session)))
        engines[0][2](data[0])  # inputs that the model cannot take are told about by libwia, first
        for file in [model] + ([against] if against is not None else []):
            try:
                caller = _onnxruntime_caller(file, count)
                caller(data[0])
                engines.append(("onnxruntime", file, caller))
            except RuntimeFault as error:
                notes.append(str(error))
        timings += _in_turns(engines, data, count, runs, progress)
    if any(t.median_ms > BUSY * t.cpu_ms for t in timings):
        notes.append("the machine is busy: runs waited for the processor; compare the CPU times")
    return Benchmark(
        tuple(timings),
        {name: f"{x.dtype}{list(x.shape)}".replace(" ", "") for name, x in data[0].items()},
        tuple(dict.fromkeys(notes)),
    )


def onnxruntime_session(model: Path, threads: int) -> onnxruntime.InferenceSession:
    """onnxruntime at its default settings but for the number of threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def random_feeds(inputs: Sequence[Any], shapes: Mapping[str, Sequence[int]], seed: int) -> dict[str, Any]:
    """Uniform reals in [-1, 1) or small integers for every input; a batch that the model leaves open is 1.

    Raises:
        UsageError: another dimension is open and not in ``shapes``; ``shapes`` names no input, or has a shape that
            its input does not take; an input would be larger than MAX_INPUT_BYTES.
    """
    unknown = set(shapes) - {one.name for one in inputs}
    if unknown:
        known = ", ".join(one.name for one in inputs)
        raise UsageError(f"--shape names '{sorted(unknown)[0]}', but the inputs are: {known}")
    rng = np.random.default_rng(seed)
    made = {}
    for one in inputs:
        shape = list(shapes.get(one.name) or one.shape or [])
        if shape and not isinstance(shape[0], int):
            shape[0] = 1
        if not all(isinstance(n, int) and n > 0 for n in shape):
            raise UsageError(
                f"input '{one.name}' has the open shape {one.shape}; give --data PATH or a shape such as "
                f"--shape {one.name}={','.join(str(n) if isinstance(n, int) else '32' for n in shape)}"
            )
        _check_given(one, shapes.get(one.name))
        dtype = np.dtype(_NUMPY_OF[one.type])
        if (n_bytes := math.prod(shape) * dtype.itemsize) > MAX_INPUT_BYTES:
            raise UsageError(
                f"input '{one.name}' of shape {shape} would take {n_bytes / 2**30:.3g} GiB; bench makes random inputs "
                f"of {MAX_INPUT_BYTES / 2**30:.3g} GiB at most: give a smaller --shape"
            )
        if dtype.kind == "f":
            made[one.name] = rng.uniform(-1, 1, shape).astype(dtype)
        else:
            # 0 and 1 are valid wherever integers are indices, tokens or masks.
            made[one.name] = rng.integers(0, 2, shape).astype(dtype)
    return made


def _check_given(one: Any, given: Sequence[int] | None) -> None:
    """A shape of --shape has the axes of its input, and the lengths that the model fixes."""
    if given is None or one.shape is None:
        return
    fixed = [(n, wanted) for n, wanted in zip(given, one.shape, strict=False) if isinstance(wanted, int)]
    if len(given) != len(one.shape) or any(n != wanted for n, wanted in fixed):
        takes = ", ".join(str(n) if isinstance(n, int) else str(n or "?") for n in one.shape)
        example = ",".join(
            str(wanted if isinstance(wanted, int) else given[i] if i < len(given) else 1)
            for i, wanted in enumerate(one.shape)
        )
        raise UsageError(
            f"--shape {one.name}={','.join(map(str, given))} does not fit: the model takes [{takes}]; "
            f"for example --shape {one.name}={example}"
        )


def _libwia_caller(session: Session) -> Callable[[Feeds], object]:
    return lambda feeds: session.run(None, dict(feeds))


def _onnxruntime_caller(file: Path, threads: int) -> Callable[[Feeds], object]:
    """Runs ``file``; RuntimeFault in one line where onnxruntime refuses the model or an input."""
    try:
        session = onnxruntime_session(file, threads)
    except Exception as error:  # onnxruntime's exceptions share no public base
        raise RuntimeFault(f"onnxruntime cannot load {file.name}: {str(error).splitlines()[0]}") from None

    def call(feeds: Feeds) -> object:
        try:
            return session.run(None, dict(feeds))
        except Exception as error:
            raise RuntimeFault(f"onnxruntime cannot run {file.name}: {str(error).splitlines()[0]}") from None

    return call


def _in_turns(
    engines: Sequence[tuple[str, Path, Callable[[Feeds], object]]],
    data: Sequence[Feeds],
    threads: int,
    runs: int,
    progress: ProgressCallback | None,
) -> list[Timing]:
    """Each round runs every engine once on the same sample, in an order that rotates."""
    wall = np.zeros((len(engines), runs))
    cpu = np.zeros((len(engines), runs))
    for turn in range(-WARM_UP, runs):
        for place in range(len(engines)):
            which = (place + turn) % len(engines)
            feeds = data[turn % len(data)]
            wall_start, cpu_start = time.perf_counter(), time.process_time()
            engines[which][2](feeds)
            if turn >= 0:
                cpu[which, turn] = time.process_time() - cpu_start
                wall[which, turn] = time.perf_counter() - wall_start
        if progress is not None and turn >= 0:
            progress(turn + 1, runs, f"measure, {threads} thread{'s' if threads > 1 else ''}")
    medians, cpu_medians = np.median(wall, axis=1) * 1e3, np.median(cpu, axis=1) * 1e3
    return [
        Timing(
            engine=engine,
            model=model.name,
            threads=threads,
            median_ms=float(medians[i]),
            p90_ms=float(np.percentile(wall[i], 90) * 1e3),
            cpu_ms=float(cpu_medians[i]),
            runs=runs,
            ratio=float(medians[i] / medians[0]),
            cpu_ratio=float(cpu_medians[i] / max(cpu_medians[0], 1e-6)),
        )
        for i, (engine, model, _) in enumerate(engines)
    ]
