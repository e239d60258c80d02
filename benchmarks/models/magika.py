# SPDX-License-Identifier: Apache-2.0
"""magika: tells a file's type from its first and last bytes."""

from __future__ import annotations

import json
import shutil
import sysconfig
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.models.base import Feeds, Model, Outputs, package_folder, stored

PER_SUFFIX = 12
LARGEST = 1 << 22


def folder() -> Path:
    """Where the package keeps its model."""
    return package_folder("magika") / "models" / "standard_v3_3"


def write(path: Path) -> None:
    """The package's own file, untouched."""
    shutil.copyfile(folder() / "model.onnx", path)


@cache
def files() -> tuple[Path, ...]:
    """Files of many kinds from Python, the installed packages and the system, at most 12 of an ending."""
    roots = [Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib")), Path("/usr/share/doc")]
    roots += [
        Path("/usr/share/perl"),
        Path("/usr/share/mime"),
        Path("/usr/share/fonts"),
        Path("/usr/include"),
    ]
    counts: Counter[str] = Counter()
    found = []
    for root in roots:
        for path in sorted(root.rglob("*")) if root.is_dir() else []:
            if counts[path.suffix] < PER_SUFFIX and path.is_file() and 64 < path.stat().st_size < LARGEST:
                counts[path.suffix] += 1
                found.append(path)
    return tuple(found)


@cache
def config() -> dict[str, int]:
    """The package's preprocessing: sizes, padding."""
    return json.loads((folder() / "config.min.json").read_text())  # type: ignore[no-any-return]


def feeds(path: Path) -> Feeds:
    """int32 [1, 2048]: 1024 bytes from the first that is no blank, 1024 to the last that is none, padded."""
    c = config()
    with path.open("rb") as file:
        first = file.read(c["block_size"]).lstrip()[: c["beg_size"]]
        file.seek(max(0, path.stat().st_size - c["block_size"]))
        last = file.read(c["block_size"]).rstrip()[-c["end_size"] :]
    x = np.full(c["beg_size"] + c["end_size"], c["padding_token"], dtype=np.int32)
    x[: len(first)] = list(first)
    x[len(x) - len(last) :] = list(last)
    return {"bytes": x[None]}


@cache
def calibration() -> Sequence[Feeds]:
    """Every third file."""
    return stored("magika.calibration", lambda: [feeds(path) for path in files()[0::3]][:200])


@cache
def evaluation() -> Sequence[Feeds]:
    """The others."""
    return stored("magika.evaluation", lambda: [feeds(path) for i, path in enumerate(files()) if i % 3][:400])


def metrics(reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> dict[str, float]:
    """How often the label is the float model's, and the mean distance of the winning score."""
    wanted = np.concatenate([np.asarray(out[0]) for out in reference])
    got = np.concatenate([np.asarray(out[0]) for out in candidate])
    label = wanted.argmax(1)
    rows = np.arange(len(label))
    return {
        "agreement": float(np.mean(got.argmax(1) == label)),
        "score_distance": float(np.mean(np.abs(got[rows, label] - wanted[rows, label]))),
    }


MODEL = Model(
    "magika", write, calibration, timing=lambda: feeds(Path(__file__)), evaluation=evaluation, metrics=metrics
)
