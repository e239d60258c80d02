# SPDX-License-Identifier: Apache-2.0
"""What a model of the zoo offers: a float ONNX file, samples to calibrate and to judge with, and a metric."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Feeds = dict[str, Array]
Outputs = list[Array]


class MissingDataError(RuntimeError):
    """A package or folder that the model needs is absent; the message says how to get it."""


@dataclass(frozen=True)
class Model:
    """One model of the zoo.

    Attributes:
        name: the key in MODELS and the name of its file in the cache.
        write: writes the float ONNX file at the path.
        calibration: the samples that ranges are taken from.
        evaluation: the samples that metrics are taken on; none of them is a calibration sample.
        metrics: ``(float outputs, candidate outputs) -> {name: value}``, lists of outputs, one per sample.
        timing: one sample of the size that latency is quoted for.
        weights_dominate: True when most of the file is weights that int8 can hold.
    """

    name: str
    write: Callable[[Path], None]
    calibration: Callable[[], Sequence[Feeds]]
    timing: Callable[[], Feeds]
    evaluation: Callable[[], Sequence[Feeds]] | None = None
    metrics: Callable[[Sequence[Outputs], Sequence[Outputs]], dict[str, float]] | None = None
    weights_dominate: bool = True

    def path(self) -> Path:
        """The float ONNX file, made on first use."""
        path = cache() / f"{self.name}.onnx"
        if not path.exists():
            partial = path.with_suffix(".partial")
            self.write(partial)
            partial.rename(path)
        return path


#: Pictures and fonts that samples are made of where the system has them.
OPENCV_DOC: Final = Path("/usr/share/doc/opencv-doc")
FONTS: Final = Path("/usr/share/fonts/truetype/dejavu")
SYSTEM_FOLDERS: Final = (OPENCV_DOC, FONTS)


def cache() -> Path:
    """``$WIA_BENCH_CACHE``, or ~/.cache/wia-quant-bench."""
    folder = Path(os.environ.get("WIA_BENCH_CACHE") or Path.home() / ".cache" / "wia-quant-bench")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def stored(name: str, make: Callable[[], Sequence[Feeds]]) -> list[Feeds]:
    """What ``make`` makes, from the cache after the first time; ``name`` changes when the samples do.

    They are made of this Python's texts and of the system's pictures and fonts: each has samples of its own.
    """
    path = cache() / f"{name}.{_surroundings()}.samples.npz"
    if not path.exists():
        arrays = {f"{i}/{key}": value for i, feeds in enumerate(make()) for key, value in feeds.items()}
        partial = path.with_name(path.name.replace(".samples", ".partial"))
        np.savez_compressed(partial, **arrays)  # type: ignore[arg-type]
        partial.rename(path)
    found: dict[int, Feeds] = {}
    with np.load(path) as archive:
        for label in archive.files:
            index, key = label.split("/", 1)
            found.setdefault(int(index), {})[key] = archive[label]
    return [found[index] for index in sorted(found)]


def _surroundings() -> str:
    there = [str(folder) for folder in SYSTEM_FOLDERS if folder.is_dir()]
    return hashlib.sha256(" ".join([platform.python_version(), *there]).encode()).hexdigest()[:8]


def package_folder(package: str) -> Path:
    """Where an installed package lies; it is not imported."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingDataError(f"package {package!r} is not installed; pip install -r benchmarks/requirements.txt")
    return Path(next(iter(spec.submodule_search_locations)))
