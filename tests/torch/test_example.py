# SPDX-License-Identifier: Apache-2.0
"""The example of the README trains, keeps its accuracy and exports."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx

from wia_quant.rules import check_model

ROOT = Path(__file__).parents[2]


def test_the_example_trains_and_exports(tmp_path: Path) -> None:
    path = tmp_path / "digits.wia.onnx"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "examples/torch_qat.py", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}
    assert float(said["float"]) > 0.6  # of ten digits, after seconds of training
    assert float(said["quantized"]) >= float(said["float"]) - 0.02
    assert "values differ" in done.stdout
    assert list(check_model(onnx.load(path))) == []
