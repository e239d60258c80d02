# SPDX-License-Identifier: Apache-2.0
"""What a check of calibration data looks at, and what it may find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.executors import make_executor

Arrays = dict[str, npt.NDArray[Any]]

#: Batches kept whole, for checks that run the model on changed inputs.
N_KEPT: Final = 24
#: ... as long as they fit in this many bytes.
KEPT_BYTES: Final = 256 * 2**20
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
        model: the float model.
        run: runs it: feed -> outputs.
        input_name: the largest floating input: the picture, in a vision model.
        kept: the first batches, whole.
        notes: of every sample.
        preprocess: the specification in force; None for arrays.
    """

    model: bytes
    run: Callable[[Arrays], dict[str, npt.NDArray[Any]]]
    input_name: str
    kept: tuple[Arrays, ...]
    notes: tuple[SampleNotes, ...]
    preprocess: dict[str, Any] | None

    def channel_axis(self) -> int | None:
        """The axis of three colours of a picture batch [N, 3, H, W] or [N, H, W, 3]; None for anything else."""
        shape = self.kept[0][self.input_name].shape
        if len(shape) != 4:
            return None
        return next((axis for axis in (1, 3) if shape[axis] == 3), None)


Check = Callable[[Case], Iterator[Symptom]]


def open_case(model: bytes, batches: Iterable[Any], preprocess: dict[str, Any] | None = None) -> Case:
    """Reads the data once. ``batches`` as ``open_data`` gives them: dicts with ``source`` and ``n_samples``."""
    executor = make_executor("onnxruntime", model, 0)
    kept: list[Arrays] = []
    notes: list[SampleNotes] = []
    n_bytes = 0
    input_name = ""
    for batch in batches:
        arrays: Arrays = dict(batch)
        if not input_name:
            floating = [n for n, x in arrays.items() if np.issubdtype(x.dtype, np.floating)]
            input_name = max(floating or arrays, key=lambda n: arrays[n].size)
        size = sum(x.nbytes for x in arrays.values())
        if len(kept) < N_KEPT and (not kept or n_bytes + size <= KEPT_BYTES):
            kept.append({n: x.copy() for n, x in arrays.items()})
            n_bytes += size
        x = arrays[input_name]
        n = batch.n_samples
        for i in range(n):
            one = x[i] if x.ndim and x.shape[0] == n else x
            source = batch.source if n == 1 else f"{batch.source}[{i}]"
            notes.append(_note(source, one))
    return Case(model, executor.run, input_name, tuple(kept), tuple(notes), preprocess)


def _note(source: str, x: npt.NDArray[Any]) -> SampleNotes:
    reals = x.astype(np.float64).reshape(-1)
    ends = (float(reals.min()), float(reals.max())) if reals.size else (0.0, 0.0)
    digest = sha256(np.ascontiguousarray(x).tobytes()).hexdigest()
    mean, std = (float(reals.mean()), float(reals.std())) if reals.size else (0.0, 0.0)
    return SampleNotes(source, digest, *ends, mean, std, _thumbnail(x))


def _thumbnail(x: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    if x.ndim != 3:
        return np.zeros(0, np.float32)
    grey = x.astype(np.float32).mean(axis=0 if x.shape[0] in (1, 3) else 2)
    if min(grey.shape) < _THUMBNAIL:
        return np.zeros(0, np.float32)
    rows = np.array_split(grey, _THUMBNAIL, axis=0)
    small = np.array([[block.mean() for block in np.array_split(row, _THUMBNAIL, axis=1)] for row in rows])
    return np.asarray(small - small.mean(), np.float32).reshape(-1)
