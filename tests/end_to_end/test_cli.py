# SPDX-License-Identifier: Apache-2.0
"""What a user can do with the command line, from a float model to answers in int8."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.end_to_end.conftest import Cli, environment, snapshot

DEFAULT = ("calibrate", "model.onnx", "--data", "pictures")


@pytest.fixture
def quantized(cli: Cli, folder: Path) -> Path:
    """model.wia.onnx, made by the default command."""
    done = cli(*DEFAULT)
    assert done.code == 0, done.err
    return folder / "model.wia.onnx"


def test_calibrate_writes_a_model_that_others_load_and_a_table(quantized: Path) -> None:
    onnx.checker.check_model(onnx.load(quantized), full_check=True)
    session = onnxruntime.InferenceSession(quantized, providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.zeros((1, 3, 16, 16), np.float32)})[0].shape == (1, 10)
    assert json.loads((quantized.parent / "model.calib.json").read_text(encoding="utf-8"))


def test_calibrate_leaves_the_float_model_alone(cli: Cli, folder: Path) -> None:
    before = (folder / "model.onnx").read_bytes()
    assert cli(*DEFAULT).code == 0
    assert (folder / "model.onnx").read_bytes() == before


def test_the_same_command_writes_the_same_bytes(cli: Cli, folder: Path) -> None:
    assert cli(*DEFAULT, "-o", "a.wia.onnx").code == 0
    assert cli(*DEFAULT, "-o", "b.wia.onnx").code == 0
    assert (folder / "a.wia.onnx").read_bytes() == (folder / "b.wia.onnx").read_bytes()


def test_the_only_model_of_the_folder_is_taken_and_said(cli: Cli, folder: Path) -> None:
    done = cli("calibrate", "--data", "pictures")
    assert done.code == 0
    assert "using model.onnx" in done.err
    assert (folder / "model.wia.onnx").is_file()


def test_a_quantized_model_beside_it_does_not_count(cli: Cli, quantized: Path) -> None:
    done = cli("calibrate", "--data", "pictures", "--force")
    assert done.code == 0
    assert "using model.onnx" in done.err


def test_the_table_can_be_used_instead_of_data(cli: Cli, quantized: Path, folder: Path) -> None:
    done = cli("calibrate", "model.onnx", "--table", "model.calib.json", "-o", "again.wia.onnx")
    assert done.code == 0, done.err
    assert "without data" in done.err
    first, second = onnx.load(quantized).graph, onnx.load(folder / "again.wia.onnx").graph
    assert first.node == second.node
    # Weights and biases are also corrected on data, which a table does not hold; ranges are not.
    scales = {name for node in first.node if node.op_type == "QuantizeLinear" for name in node.input[1:]}
    kept = [[t for t in graph.initializer if t.name in scales] for graph in (first, second)]
    assert len(kept[0]) == len(scales)
    assert kept[0] == kept[1]


def test_force_overwrites(cli: Cli, quantized: Path) -> None:
    quantized.write_text("something else")
    assert cli(*DEFAULT, "--force").code == 0
    onnx.checker.check_model(onnx.load(quantized))


def test_plan_names_every_node_and_writes_nothing(cli: Cli, folder: Path) -> None:
    before = snapshot(folder)
    done = cli("calibrate", "model.onnx", "--plan", "--exclude", "head", "--json")
    assert done.code == 0, done.err
    decisions = {d["node"]: d for d in json.loads(done.out)["decisions"]}
    assert {"conv1", "conv2", "skip", "mean", "head"} <= decisions.keys()
    assert decisions["conv1"]["quantized"]
    assert not decisions["head"]["quantized"]
    assert all(d["reason"] for d in decisions.values())
    assert snapshot(folder) == before


def test_an_excluded_node_stays_float(cli: Cli) -> None:
    done = cli(*DEFAULT, "--exclude", "type:Gemm", "--exclude", "skip", "--json")
    assert done.code == 0, done.err
    float_nodes = {d["node"] for d in json.loads(done.out)["decisions"] if not d["quantized"]}
    assert {"head", "skip"} <= float_nodes


def test_a_broken_picture_is_named_and_skipped(cli: Cli, folder: Path) -> None:
    (folder / "pictures" / "broken.png").write_bytes(b"\x89PNG\r\n but no more")
    done = cli(*DEFAULT)
    assert done.code == 0
    assert "broken.png" in done.err + done.out


def test_synthetic_data_are_said(cli: Cli) -> None:
    done = cli("calibrate", "model.onnx", "--synthetic", "--samples", "8")
    assert done.code == 0, done.err
    assert "synthetic" in done.err + done.out


def test_run_answers_for_every_picture(cli: Cli, quantized: Path, folder: Path) -> None:
    done = cli("run", "model.wia.onnx", "--data", "pictures", "--json", "-o", "out.npz")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert len(result["answers"]) == 6
    assert result["median_ms"] > 0
    assert np.load(folder / "out.npz")["y"].shape == (6, 10)


def test_run_prepares_pictures_as_the_model_says(cli: Cli, folder: Path) -> None:
    spec = {"color": "bgr", "mean": [127.5], "std": [60.0]}
    (folder / "spec.json").write_text(json.dumps(spec))
    assert cli(*DEFAULT, "--preprocess", "spec.json").code == 0
    run = ("run", "model.wia.onnx", "--data", "pictures", "--json")
    recorded, given, other = (
        json.loads(cli(*run, *more).out) for more in ((), ("--preprocess", "spec.json"), ("--preprocess", "raw"))
    )
    assert spec.items() <= recorded["data"]["preprocess"].items()
    tops = [[answer["top"] for answer in result["answers"]] for result in (recorded, given, other)]
    assert tops[0] == tops[1]
    assert tops[0] != tops[2]


def test_a_reader_that_stops_is_no_error(folder: Path) -> None:
    command = f"{sys.executable} -m wia_quant inspect model.onnx --json | true"
    done = subprocess.run(
        command, shell=True, cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_bench_compares_with_onnxruntime_in_one_run(cli: Cli, quantized: Path) -> None:
    threads = ("--threads", "1", "--threads", "2")
    done = cli("bench", "model.wia.onnx", "--against", "model.onnx", "--runs", "3", *threads, "--json")
    assert done.code == 0, done.err
    timings = json.loads(done.out)["timings"]
    engines = ["libwia", "onnxruntime", "onnxruntime"]
    assert [t["engine"] for t in timings] == engines * 2
    assert [t["threads"] for t in timings] == [1, 1, 1, 2, 2, 2]
    assert all(0 < t["median_ms"] <= t["p90_ms"] and t["ratio"] > 0 for t in timings)


def test_inspect_shows_scales_and_the_kernel_of_each_node(cli: Cli, quantized: Path) -> None:
    done = cli("inspect", "model.wia.onnx", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["metadata"]["wia.format"] == "1"
    assert {s["tensor"] for s in found["scales"] if not s["weight"]} >= {"x"}
    assert found["runtime"]["nodes"]
    assert found["problem"] is None


def test_inspect_takes_a_float_model(cli: Cli) -> None:
    done = cli("inspect", "model.onnx", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["operators"]["Conv"] == 2


def test_devices_lists_the_cpu(cli: Cli) -> None:
    done = cli("devices", "--json")
    assert done.code == 0, done.err
    assert len(json.loads(done.out)["devices"]) >= 1


@pytest.mark.parametrize(
    "arguments",
    [
        (*DEFAULT, "--force"),
        ("run", "model.wia.onnx", "--data", "pictures"),
        ("bench", "model.wia.onnx", "--runs", "2"),
        ("inspect", "model.wia.onnx"),
        ("devices",),
    ],
    ids=lambda a: a[0],
)
def test_people_get_a_table_on_stdout(cli: Cli, quantized: Path, arguments: tuple[str, ...]) -> None:
    done = cli(*arguments)
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) > 2


def test_the_version_is_printed(cli: Cli) -> None:
    done = cli("--version")
    assert (done.code, done.out.split()[0]) == (0, "wia-quant")


def test_calibrate_warns_of_data_that_cannot_be_right(cli: Cli, folder: Path) -> None:
    done = cli(*DEFAULT)
    assert "warning: only 6 samples; give a few hundred" in done.err
    done = cli(*DEFAULT, "--force", "--json")
    assert [s["check"] for s in json.loads(done.out)["symptoms"]] == ["amount"]
