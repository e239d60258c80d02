# SPDX-License-Identifier: Apache-2.0
"""silero-vad: tells speech from silence; most of it lives in the branches of If nodes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.models.base import Feeds, Model, Outputs, package_folder

RATE, WINDOW = 16000, 576  # 512 new samples after 64 of the window before


def write(path: Path) -> None:
    """The package's own file, untouched."""
    shutil.copyfile(package_folder("silero_vad") / "data" / "silero_vad.onnx", path)


def sounds(n: int, seed: int) -> list[Feeds]:
    """Windows of a buzzing, voice-like tone or none over noise; the state starts anew each time."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        t = np.arange(WINDOW) / RATE
        pitch = rng.uniform(90, 250)
        voice = sum(np.sin(2 * np.pi * pitch * k * t + rng.uniform(0, 6)) / k for k in range(1, 12))
        x = rng.choice([0.0, 0.05, 0.2]) * voice + rng.normal(0, rng.uniform(0.001, 0.05), WINDOW)
        made.append(
            {
                "input": x.astype(np.float32)[None],
                "state": np.zeros((2, 1, 128), dtype=np.float32),
                "sr": np.array(RATE, dtype=np.int64),
            }
        )
    return made


def metrics(reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> dict[str, float]:
    """The largest and mean distance of the probability of speech."""
    distance = [float(np.abs(a[0] - b[0]).max()) for a, b in zip(reference, candidate, strict=True)]
    return {"largest_distance": max(distance), "mean_distance": float(np.mean(distance))}


MODEL = Model(
    "silero_vad", write, calibration=lambda: sounds(64, 0), timing=lambda: sounds(1, 2)[0],
    evaluation=lambda: sounds(64, 1), metrics=metrics, weights_dominate=False,
)  # fmt: skip
