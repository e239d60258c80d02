# SPDX-License-Identifier: Apache-2.0
"""What a check of calibration data looks at, and what it may find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.data import Batch
from wia_quant.doctor.changes import Domain
from wia_quant.errors import DataError
from wia_quant.executors.ort import OnnxRuntimeExecutor

Arrays = dict[str, npt.NDArray[Any]]

#: Batches kept whole, for checks that run the model on changed inputs.
N_KEPT: Final = 128
#: ... as long as they fit in this many bytes.
KEPT_BYTES: Final = 64 * 2**20
#: Values of a sample that its mean and deviation are taken of.
_LOOKED_AT: Final = 20_000
#: Side of the thumbnail that near duplicates are told by.
_THUMBNAIL: Final = 8


@dataclass(frozen=True)
class Symptom:
    """One thing that is wrong, or may be, with the data.

    Attributes:
        check: the name of the check in CHECKS.
        message: what was seen, with its figures.
        remedy: what to do.
        sure: False for a hint: the data may still be right.
    """

    check: str
    message: str
    remedy: str
    sure: bool = True


@dataclass(frozen=True)
class SampleNotes:
    """What is remembered of every sample of an input: a few numbers.

    Attributes:
        source: the file or row it came from.
        digest: of its bytes.
        lo: smallest value.
        hi: largest value.
        mean: of all values.
        std: of all values.
        thumbnail: 8 x 8 means for pictures, normalised to mean 0; empty otherwise.
    """

    source: str
    digest: str
    lo: float
    hi: float
    mean: float
    std: float
    thumbnail: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """A model and its data, as the checks see them.

    Attributes:
        run: runs the model: feed -> outputs.
        input_name: the largest floating input: the picture, in a vision model.
        kept: the first batches, whole.
        notes: of every sample.
    """

    run: Callable[[Arrays], dict[str, npt.NDArray[Any]]]
    input_name: str
    kept: tuple[Arrays, ...]
    notes: tuple[SampleNotes, ...]

    def channel_axis(self) -> int | None:
        """The axis of three colours of a picture batch [N, 3, H, W] or [N, H, W, 3]; None for anything else."""
        domain = self.domain()
        return domain.channels if domain is not None and domain.n_channels == 3 else None

    def domain(self) -> Domain | None:
        """The values and axes of pictures [N, C, H, W] or [N, H, W, C], C being 1 or 3; None for anything else."""
        x = self.kept[0][self.input_name]
        if x.ndim != 4 or not np.issubdtype(x.dtype, np.floating):
            return None
        axis = next((a for c in (3, 1) for a in (1, 3) if x.shape[a] == c), None)
        if axis is None:
            return None
        lo, hi = min(n.lo for n in self.notes), max(n.hi for n in self.notes)
        return Domain(lo, hi, axis, x.shape[axis])

    def kept_samples(self) -> int:
        """Samples of the kept batches."""
        return sum(batch[self.input_name].shape[0] for batch in self.kept)


Check = Callable[[Case], Iterator[Symptom]]


class Notebook:
    """Takes notes of batches as they go by; a few numbers a sample."""

    def __init__(self) -> None:
        self.input_name = ""
        self.notes: list[SampleNotes] = []

    def add(self, batch: Batch) -> None:
        """Note the samples of ``batch``; those that only fill it up are left out."""
        if not self.input_name:
            self.input_name = largest_input(batch)
        x = batch[self.input_name]
        for i in range(min(batch.n_samples, len(batch.names))):
            one = x[i] if x.ndim and x.shape[0] >= batch.n_samples else x
            self.notes.append(_note(batch.names[i], one))


def largest_input(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """The name of the largest floating input, or of the largest one."""
    floating = [n for n, x in arrays.items() if np.issubdtype(x.dtype, np.floating)]
    return max(floating or arrays, key=lambda n: arrays[n].size)


def open_case(model: bytes, batches: Iterable[Batch]) -> Case:
    """Reads the data once; keeps the first batches.

    Raises:
        DataError: there is no sample.
    """
    notebook, kept, n_bytes = Notebook(), list[Arrays](), 0
    for batch in batches:
        notebook.add(batch)
        size = sum(x.nbytes for x in batch.values())
        if len(kept) < N_KEPT and (not kept or n_bytes + size <= KEPT_BYTES):
            kept.append({n: x.copy() for n, x in batch.items()})
            n_bytes += size
    if not kept:
        raise DataError("no sample: there is nothing to look at")
    return Case(LazyRun(lambda: model), notebook.input_name, tuple(kept), tuple(notebook.notes))


class LazyRun:
    """Runs a float model; loads it when it is first needed, which most data never does."""

    def __init__(self, model: Callable[[], bytes]) -> None:
        self._model = model
        self._executor: OnnxRuntimeExecutor | None = None

    def __call__(self, feed: Arrays) -> dict[str, npt.NDArray[Any]]:
        """The outputs by name."""
        if self._executor is None:
            self._executor = OnnxRuntimeExecutor(self._model(), 0, optimize=True)
        return self._executor.run(feed)


def _note(source: str, x: npt.NDArray[Any]) -> SampleNotes:
    if not x.size:
        return SampleNotes(source, "", 0.0, 0.0, 0.0, 0.0, _thumbnail(x))
    digest = sha256(np.ascontiguousarray(x).data).hexdigest()
    some = x.reshape(-1)[:: max(1, x.size // _LOOKED_AT)]
    mean, std = float(some.mean(dtype=np.float64)), float(some.std(dtype=np.float64))
    return SampleNotes(source, digest, float(x.min()), float(x.max()), mean, std, _thumbnail(x))


def _thumbnail(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if x.ndim != 3:
        return np.zeros(0, np.float32)
    planes = x if x.shape[0] in (1, 3) else x.transpose(2, 0, 1)
    height, width = (side // _THUMBNAIL for side in planes.shape[1:])
    if min(height, width) < 1:
        return np.zeros(0, np.float32)
    whole = planes[:, : height * _THUMBNAIL, : width * _THUMBNAIL]
    blocks = whole.reshape(-1, _THUMBNAIL, height, _THUMBNAIL, width)
    small = blocks.mean(axis=(0, 2, 4), dtype=np.float32)
    return np.asarray(small - small.mean(), np.float32).reshape(-1)
