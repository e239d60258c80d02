# SPDX-License-Identifier: Apache-2.0
"""The demo does what it says: a real model reads real pictures in int8 as it did in float."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.end_to_end.conftest import environment

#: The demo promises about a minute; a busy machine and a slow network get more.
TIMEOUT_S = 600


@pytest.mark.slow
def test_the_demo_reads_in_int8_what_float_reads(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "wia_quant", "demo", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert len(result["lines"]) == 40
    assert result["float_accuracy"] > 0.95
    assert result["agreement"] > 0.95
    assert result["size_ratio"] <= 0.30
    assert result["latency_ratio"] > 0
    for path in result["files"].values():
        assert (tmp_path / path).exists()
    onnx.checker.check_model(onnx.load(tmp_path / "wia-demo" / "model.wia.onnx"), full_check=True)
    assert json.loads((tmp_path / "wia-demo" / "result.json").read_text(encoding="utf-8")) == result
