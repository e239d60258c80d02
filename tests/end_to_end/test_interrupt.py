# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C ends a calibration cleanly, and what it observed is not lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.end_to_end.conftest import TIMEOUT_S, Cli, environment

#: Enough that the calibration lasts seconds.
ROWS = 6000


@pytest.fixture
def many(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    np.save(folder / "many.npy", rng.normal(size=(ROWS, 3, 16, 16)).astype(np.float32))
    return folder


def interrupted(folder: Path, *arguments: str) -> tuple[int, str]:
    """Starts a command and sends SIGINT once it calibrates; exit code and stderr."""
    command = [sys.executable, "-m", "wia_quant", *arguments]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        seen = ""
        while "calibrating" not in seen:
            line = process.stderr.readline()
            assert line, f"it ended before it calibrated: {seen}"
            seen += line
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, seen + rest


def test_an_interrupted_calibration_says_how_to_go_on_and_goes_on(cli: Cli, many: Path) -> None:
    default = ("calibrate", "model.onnx", "--data", "many.npy", "--samples", str(ROWS))
    code, err = interrupted(many, *default)
    assert code == 130, err
    assert "Traceback" not in err
    assert not (many / "model.wia.onnx").exists()
    assert not (many / "model.calib.json").exists()
    assert "--table model.calib.partial.json" in err
    done = cli(*default, "--table", "model.calib.partial.json", "-o", "resumed.wia.onnx")
    assert done.code == 0, done.err
    whole = cli(*default, "-o", "whole.wia.onnx")
    assert whole.code == 0, whole.err
    assert onnx.load(many / "resumed.wia.onnx").graph == onnx.load(many / "whole.wia.onnx").graph
