# SPDX-License-Identifier: Apache-2.0
"""The Keras example trains, keeps its accuracy and exports; without Keras there is one clear error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from wia_quant.rules import Severity, check_model

ROOT = Path(__file__).parents[2]


def test_the_example_trains_and_exports(tmp_path: Path) -> None:
    path = tmp_path / "digits.wia.onnx"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch"}
    command = [sys.executable, "examples/keras_qat.py", str(path)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = {line.split()[0]: line.split()[1] for line in done.stdout.splitlines()}
    assert float(said["float"]) > 0.6  # of ten digits, after seconds of training
    assert float(said["quantized"]) >= float(said["float"]) - 0.02
    assert "values differ" in done.stdout
    assert [f for f in check_model(onnx.load(path)) if f.severity is not Severity.NOTE] == []


@pytest.mark.parametrize(
    ("hidden", "statement", "extra"),
    [
        (("keras", "tf_keras"), "import wia_quant.keras", "wia-quant[keras]"),
        (("ai_edge_litert",), "from wia_quant.tflite import to_onnx; to_onnx(b'    TFL3')", "wia-quant[tflite]"),
        (("tensorflow_model_optimization",), "import wia_quant.keras as wq; wq.WiaQuantizeScheme", "wia-quant[keras]"),
    ],
    ids=["no Keras", "no LiteRT", "no tensorflow-model-optimization"],
)
def test_a_missing_package_is_one_error_that_names_the_extra(
    hidden: tuple[str, ...], statement: str, extra: str
) -> None:
    code = f"""
import importlib.util, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in {hidden!r} else find(name, *a)
for name in {hidden!r}:
    sys.modules[name] = None
import wia_quant
from wia_quant.errors import MissingExtraError
try:
    {statement.replace("; ", chr(10) + "    ")}
except MissingExtraError as error:
    print(error)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "torch"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert f"pip install '{extra}'" in done.stdout
