# SPDX-License-Identifier: Apache-2.0
"""SavedModel folders of either Keras are quantized: by their layers, or through tf2onnx where they hold none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import wia_quant
from tests.keras.models import framework, predict, randomize, residual

ROOT = Path(__file__).parents[2]
KERAS_3 = """
import sys
import keras
import numpy as np
from tests.keras.models import predict, randomize, residual

model = randomize(residual(keras))
model.export(sys.argv[1], verbose=False)
np.savez(sys.argv[2], y=predict(model, [np.load(sys.argv[2])["x"]])[0])
"""


def pictures() -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 1, (32, 16, 16, 3)).astype(np.float32)


def quantized(folder: Path, x: np.ndarray) -> np.ndarray:
    found = wia_quant.quantize(folder, data={"image": x})
    assert {"Conv", "QuantizeLinear"} <= {node.op_type for node in found.model.graph.node}
    (y,) = found.session().run(None, {"image": x})
    return np.asarray(y)


@pytest.mark.parametrize("kind", ["save", "export"])
def test_a_folder_of_tf_keras_is_quantized(kind: str, tmp_path: Path) -> None:
    model, x = randomize(residual(framework("tf_keras"))), pictures()
    if kind == "save":
        model.save(tmp_path / "net", save_format="tf")
    else:
        model.export(str(tmp_path / "net"))
    (want,) = predict(model, [x])
    assert np.abs(quantized(tmp_path / "net", x) - want).max() <= 0.05 * np.abs(want).max()


def test_a_folder_that_keras_3_exported_is_quantized(tmp_path: Path) -> None:
    x, data = pictures(), tmp_path / "data.npz"
    np.savez(data, x=x)
    # In a process of its own: only Keras 3 on TensorFlow writes SavedModels.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": "tensorflow", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KERAS_3, str(tmp_path / "net"), str(data)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    want = np.load(data)["y"]
    assert np.abs(quantized(tmp_path / "net", x) - want).max() <= 0.05 * np.abs(want).max()
