# SPDX-License-Identifier: Apache-2.0
"""A calibration as a whole: interrupted and gone on with, over processes, over a cluster; always the same table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from wia_quant.calibration import InterruptedCalibration, calibrate
from wia_quant.calibrators import CALIBRATORS
from wia_quant.data import open_data
from wia_quant.errors import CalibrationError, DataError, TableError, UsageError
from wia_quant.shards import merge_states, observe_shard
from wia_quant.table import CalibrationTable

ROOT = Path(__file__).parents[2]
SHA = "00" * 32
TENSORS = ["x", "c", "y"]


def net() -> onnx.ModelProto:
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4, 6, 6])],
        [numpy_helper.from_array(weights, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = tmp_path / "pictures"
    folder.mkdir()
    for n in range(20):
        pixels = np.random.default_rng(n).integers(0, 256, (9, 11, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{n:02}.png")
    (folder / "broken.jpg").write_bytes(b"broken")
    return folder


def run(pictures: Path, calibrator: str = "percentile", *, preprocess: str = "raw", **options: Any) -> CalibrationTable:
    data = open_data(pictures, net(), preprocess=preprocess, samples=options.pop("samples", 300))
    return calibrate(net(), TENSORS, data, calibrator, model_sha256=SHA, **options)


def interrupt_at(batch: int) -> Callable[[int, int | None, str], None]:
    def progress(done: int, total: int | None, what: str) -> None:
        if done == batch:
            signal.raise_signal(signal.SIGINT)

    return progress


def interrupted(pictures: Path, calibrator: str = "percentile", at: int = 7, **options: Any) -> CalibrationTable:
    with pytest.raises(InterruptedCalibration, match=f"after {at} batches") as caught:
        run(pictures, calibrator, progress=interrupt_at(at), **options)
    return caught.value.table


def test_the_table_says_what_was_done(pictures: Path) -> None:
    table = run(pictures)
    assert set(table.ranges) == set(TENSORS)
    assert (table.n_batches, table.complete, table.calibrator) == (20, True, "percentile")
    assert table.parameters == {"percentile": 99.99}
    assert table.data["used"] == 20
    assert list(table.data["skipped"]) == ["broken.jpg"]
    assert table.data["preprocess"]["name"] == "raw"
    assert table.tensors["y"].n_values == 20 * 4 * 6 * 6


def test_the_same_calibration_gives_the_same_bytes(pictures: Path) -> None:
    assert run(pictures).to_json() == run(pictures).to_json()


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_an_interrupted_calibration_goes_on_to_the_same_bytes(pictures: Path, tmp_path: Path, calibrator: str) -> None:
    part = interrupted(pictures, calibrator)
    assert (part.complete, part.n_batches, part.data["used"]) == (False, 7, 7)
    part.save(tmp_path / "part.json")
    begun = CalibrationTable.load(tmp_path / "part.json", model_sha256=SHA)
    assert run(pictures, calibrator, begun=begun).to_json() == run(pictures, calibrator).to_json()


def test_it_can_be_interrupted_again(pictures: Path) -> None:
    part = interrupted(pictures, at=5)
    part = interrupted(pictures, at=15, begun=part)
    assert run(pictures, begun=part).to_json() == run(pictures).to_json()


def test_it_is_saved_as_it_goes(pictures: Path, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    run(pictures, save=lambda table: table.save(path, force=True), save_every=0.0)
    last = CalibrationTable.load(path)
    assert not last.complete
    assert run(pictures, begun=last).to_json() == run(pictures).to_json()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preprocess": "zero_one"}, "saw other data, samples, seed or preprocessing"),
        ({"samples": 6}, "the data gives only 6"),
        ({"samples": 12}, "saw other data"),
        ({"calibrator": "mse"}, "is of calibrator 'percentile'"),
        ({"model_sha256": "11" * 32}, "another model"),
    ],
    ids=["preprocessing", "fewer samples", "other samples", "calibrator", "model"],
)
def test_it_does_not_go_on_with_something_else(pictures: Path, options: dict[str, Any], message: str) -> None:
    begun = interrupted(pictures)
    data = open_data(pictures, net(), preprocess=options.get("preprocess", "raw"), samples=options.get("samples", 300))
    with pytest.raises(TableError, match=message):
        calibrate(
            net(),
            TENSORS,
            data,
            options.get("calibrator", "percentile"),
            model_sha256=options.get("model_sha256", SHA),
            begun=begun,
        )


def test_interrupted_before_the_first_batch_there_is_no_table(pictures: Path) -> None:
    def interrupting() -> Iterator[np.ndarray[Any, Any]]:
        raise KeyboardInterrupt
        yield

    data = open_data(pictures, net(), preprocess="raw")
    data._records = lambda _: interrupting()  # type: ignore[assignment, return-value]
    with pytest.raises(KeyboardInterrupt) as caught:
        calibrate(net(), TENSORS, data, model_sha256=SHA)
    assert not isinstance(caught.value, InterruptedCalibration)


def test_an_unknown_calibrator_lists_all(pictures: Path) -> None:
    with pytest.raises(UsageError, match="unknown calibrator 'median'; there are minmax, moving_average"):
        run(pictures, "median")


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_shards_in_any_order_merge_to_the_one_pass(pictures: Path, calibrator: str) -> None:
    batches = list(open_data(pictures, net(), preprocess="raw"))
    states = [observe_shard(net(), TENSORS, batches[i::3], calibrator) for i in (2, 0, 1)]
    states = json.loads(json.dumps(states, allow_nan=False))
    merged = merge_states(states, calibrator)
    expected = run(pictures, calibrator).ranges
    assert {name: one.range() for name, one in merged.items()} == expected


def test_no_shard_is_an_error() -> None:
    with pytest.raises(DataError, match="no shard observed anything"):
        merge_states([])


def test_shards_of_an_unknown_calibrator_are_refused() -> None:
    with pytest.raises(UsageError, match="unknown calibrator"):
        merge_states([], "median")


@pytest.mark.slow
@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_workers_give_the_same_bytes(pictures: Path, calibrator: str) -> None:
    assert run(pictures, calibrator, workers=2).to_json() == run(pictures, calibrator).to_json()


@pytest.mark.slow
def test_a_workers_error_names_the_tensor_and_the_sample() -> None:
    batches = [{"x": np.full((1, 3, 8, 8), v, np.float32)} for v in (1.0, 2.0)]
    model = net()
    model.graph.node.append(helper.make_node("Sqrt", ["negative"], ["root"]))
    model.graph.node.insert(2, helper.make_node("Sub", ["x", "two"], ["negative"]))
    model.graph.initializer.append(numpy_helper.from_array(np.array(2.0, np.float32), "two"))
    data = open_data(batches, net())
    with pytest.raises(CalibrationError, match=r"tensor 'root' on item 0: .* not finite"):
        calibrate(model, ["root"], data, model_sha256=SHA, workers=2)


@pytest.mark.slow
def test_a_worker_that_dies_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    # A script without the guard starts itself again in every worker, which Python refuses: the worker dies.
    onnx.save(net(), tmp_path / "m.onnx")
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import numpy as np\n"
        "from wia_quant.data import open_data\n"
        "from wia_quant.calibration import calibrate\n"
        "from wia_quant.errors import CalibrationError\n"
        "from wia_quant.inputs import ModelInput\n"
        "data = open_data([np.ones((1, 3, 8, 8), np.float32)] * 3, [ModelInput('x', (None, 3, 8, 8), 'float32')])\n"
        "try:\n"
        f"    calibrate({str(tmp_path / 'm.onnx')!r}, ['y'], data, model_sha256='0', workers=2)\n"
        "except CalibrationError as e:\n"
        "    print('caught:', e)\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "caught: a worker process died" in done.stdout
    assert '__name__ == "__main__"' in done.stdout


@pytest.mark.slow
def test_a_dask_cluster_gives_the_ranges_of_one_process(pictures: Path, tmp_path: Path) -> None:
    onnx.save(net(), tmp_path / "m.onnx")
    command = [sys.executable, ROOT / "examples" / "calibrate_with_dask.py", tmp_path / "m.onnx", pictures]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "--preprocess", "raw"], env=environment, check=True, timeout=180)
    over_cluster = CalibrationTable.load(tmp_path / "m.calib.json")
    assert over_cluster.n_batches == over_cluster.data["used"] == 20
    assert [Path(file).name for file in over_cluster.data["skipped"]] == ["broken.jpg"]
    data = open_data(pictures, net(), preprocess="raw")
    alone = calibrate(net(), list(over_cluster.ranges), data, model_sha256=over_cluster.model_sha256)
    assert over_cluster.ranges == alone.ranges
