# SPDX-License-Identifier: Apache-2.0
"""A folder with a small model and pictures, and the command line as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

from tests.tiny import small_net

ROOT = Path(__file__).parents[2]
#: Longer than any command on the small model takes, on a busy machine.
TIMEOUT_S = 120


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


Cli = Callable[..., Done]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1"}


def draw(pictures: Path, count: int, side: int = 16) -> None:
    """``count`` pictures of noise."""
    rng = np.random.default_rng(0)
    pictures.mkdir(exist_ok=True)
    for index in range(count):
        pixels = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(pictures / f"{index}.png")


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder`` with what is in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """model.onnx and pictures/ with six pictures of its size."""
    onnx.save(small_net(), tmp_path / "model.onnx")
    draw(tmp_path / "pictures", 6)
    return tmp_path


@pytest.fixture
def cli(folder: Path) -> Cli:
    """Runs ``wia-quant`` in ``folder``."""

    def run(*arguments: str | Path) -> Done:
        command = [sys.executable, "-m", "wia_quant", *map(str, arguments)]
        done = subprocess.run(
            command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run
