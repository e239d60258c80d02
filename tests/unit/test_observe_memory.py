# SPDX-License-Identifier: Apache-2.0
"""Calibration needs little more memory than inference, and no more for more samples."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from wia_quant.calibrators import CALIBRATORS

ROOT = Path(__file__).parents[2]
LAYERS, CHANNELS, SIDE = 40, 8, 160

CHILD = """
import sys
from pathlib import Path
import numpy as np
path, what, n = sys.argv[1], sys.argv[2], int(sys.argv[3])
batches = ({"x": np.full((1, 8, 160, 160), i % 5, np.float32)} for i in range(n))
if what == "inference":
    import onnxruntime
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    for batch in batches:
        session.run(None, batch)
else:
    from wia_quant.calibrators import CALIBRATORS
    from wia_quant.observe import observe
    seen = observe(path, [f"t{i}" for i in range(40)], batches, CALIBRATORS[what])
    for one in seen.values():
        one.range()
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(int(status["VmHWM"].split()[0]) // 1024)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty layers of 0.8 MB each: 33 MB of observed tensors a sample."""
    weights = np.random.default_rng(0).standard_normal((CHANNELS, 1, 3, 3)).astype(np.float32)
    names = ["x", *(f"t{i}" for i in range(LAYERS))]
    nodes = [
        helper.make_node("Conv", [names[i], "w"], [names[i + 1]], group=CHANNELS, pads=[1, 1, 1, 1])
        if i % 2
        else helper.make_node("Tanh", [names[i]], [names[i + 1]])
        for i in range(LAYERS)
    ]
    shape = [1, CHANNELS, SIDE, SIDE]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(names[-1], TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "w")],
    )
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@cache
def peak_mb(model: Path, what: str, samples: int) -> int:
    command = [sys.executable, "-c", CHILD, model, what, str(samples)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_memory_is_near_that_of_inference(model: Path, calibrator: str) -> None:
    assert peak_mb(model, calibrator, 32) < peak_mb(model, "inference", 32) + 64


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", ["moving_average", "percentile"])
def test_memory_does_not_grow_with_the_samples(model: Path, calibrator: str) -> None:
    assert peak_mb(model, calibrator, 160) < peak_mb(model, calibrator, 32) + 8
