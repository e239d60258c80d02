# SPDX-License-Identifier: Apache-2.0
"""Keras 3 trains on each of its backends, in a process of its own, and the file follows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json

import keras
import numpy as np

from tests.keras.models import predict, residual, train
from wia_quant import Session
from wia_quant.affine import INT8, Range, choose_qparams, fake_quantize
from wia_quant.keras import export, observe, quantize_model
from wia_quant.keras.keras3.fake_quantize import FakeQuantize

keras.utils.set_random_seed(0)
model = quantize_model(residual(keras))
x = np.random.default_rng(1).uniform(0, 1, (32, 16, 16, 3)).astype(np.float32)
observe(model, [x[:16], x[16:]])
x = train(keras, model)
(want,) = predict(model, [x])
(got,) = Session(export(model).model.SerializeToString()).run(None, {"image": x})

quantizer, qp = FakeQuantize(), choose_qparams(Range(-1.0, 1.0), INT8)
quantizer.build((None, 1))
for weight, value in ((quantizer.lo, -1.0), (quantizer.hi, 1.0), (quantizer.seen, 1.0)):
    weight.assign([value])
halves = (np.arange(-300, 300, dtype=np.float32) + np.float32(0.5)) * qp.scale
rounded = keras.ops.convert_to_numpy(quantizer(halves)[0])
print(json.dumps({
    "backend": keras.backend.backend(),
    "differ": int((got != want).sum()),
    "halves that differ": int((rounded != fake_quantize(halves, qp)).sum()),
}))
"""


@pytest.mark.parametrize("backend", ["jax", "tensorflow", "torch"])
def test_a_backend_trains_what_the_file_computes(backend: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["backend"] == backend
    assert found["halves that differ"] == 0
    assert found["differ"] == 0
