# SPDX-License-Identifier: Apache-2.0
"""Mistakes that once destroyed a file, printed a traceback or passed in silence: one test each, named after them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import get_type_hints

import numpy as np
import onnx
import pytest

from tests.end_to_end.conftest import snapshot
from tests.tiny import small_net
from wia_quant import Session, evaluate
from wia_quant.cli.app import COMMANDS, invoke
from wia_quant.cli.overwriting import WRITTEN
from wia_quant.errors import RuntimeFault

NESTED = "[" * 200_000


@pytest.fixture
def ready(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder as the current one, with data.npy and int8.onnx too."""
    monkeypatch.chdir(folder)
    np.save("data.npy", np.random.default_rng(0).normal(size=(4, 3, 16, 16)).astype(np.float32))
    assert invoke(["calibrate", "model.onnx", "--data", "data.npy", "-o", "int8.onnx"]) == 0
    assert invoke(["evaluate", "int8.onnx", "--reference", "model.onnx", "--data", "data.npy", "-o", "res.json"]) == 0
    return folder


@pytest.mark.parametrize(
    "line",
    [
        "calibrate model.onnx --data data.npy -o model.onnx",
        "calibrate model.onnx --data data.npy -o data.npy",
        "calibrate model.onnx --data pictures -o pictures/0.png",
        "run model.onnx --data data.npy -o model.onnx",
        "run model.onnx --data data.npy -o data.npy",
        "evaluate int8.onnx --reference model.onnx --data data.npy -o int8.onnx",
        "evaluate int8.onnx --reference model.onnx --data data.npy -o model.onnx",
        "baseline int8.onnx --reference model.onnx --data data.npy -o model.onnx",
        "regress --baseline res.json --current res.json --markdown res.json",
        "regress --baseline res.json --current res.json --junit res.json",
        "check int8.onnx --fix int8.onnx",
    ],
)
def test_force_overwrote_what_the_command_reads(ready: Path, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = snapshot(ready)
    capsys.readouterr()
    assert invoke([*line.split(), "--force"]) == 2
    assert "is what this command reads" in capsys.readouterr().err
    assert snapshot(ready) == before


def test_force_replaced_a_pipe(ready: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    assert invoke(["run", "model.onnx", "--data", "data.npy", "-o", "pipe", "--force"]) == 2
    assert "no ordinary file" in capsys.readouterr().err


def test_every_path_that_a_command_writes_is_known() -> None:
    """A parameter whose help says that it is written is among WRITTEN."""
    for name, function in COMMANDS.items():
        for parameter, hint in get_type_hints(function, include_extras=True).items():
            text = next((str(one.help).lower() for one in getattr(hint, "__metadata__", ()) if one.help), "")
            writes = any(word in text for word in ("write", "where everything goes", "the record", "the onnx file;"))
            if writes and "Path" in str(hint):
                assert parameter in WRITTEN, (name, parameter)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("calibrate model.onnx --data pictures --preprocess nested.json", "nested.json: not JSON"),
        ("calibrate model.onnx --data pictures --preprocess huge.json", "huge.json"),
        ("evaluate model.onnx --data pictures --labels nested.json", "nested.json is not JSON"),
        ("regress --baseline nested.json --current res.json", "nested.json is not JSON"),
        ("regress --baseline numbers.json --current res.json", "numbers.json"),
        ("regress --baseline res.json --current res.json --max-drop nan", "--max-drop nan"),
        ("regress --baseline res.json --current res.json --max-drop -5", "--max-drop -5"),
        ("regress --baseline res.json --current res.json --max-drop 1e999", "--max-drop 1e999"),
        ("run model.onnx --data data.npy --threads 99999999999999999999", "threads must be from 1 to 1024"),
        ("evaluate model.onnx --data data.npy --labels labels.json --task os:getcwd", "os:getcwd"),
        ("run shapeless.onnx --data data.npy", "'x' has no shape"),
        ("evaluate shapeless.onnx --reference model.onnx --data data.npy", "has no shape"),
        ("report nowhere.onnx --reference model.onnx --data data.npy -o made", "nowhere.onnx"),
    ],
)
def test_a_mistake_ended_in_a_traceback_or_passed(
    ready: Path, line: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("nested.json").write_text(NESTED)
    Path("huge.json").write_text(json.dumps({"size": 10**400, "scale": 10**400}))
    Path("numbers.json").write_text(json.dumps(json.loads(Path("res.json").read_text()) | {"metrics": [5]}))
    Path("labels.json").write_text(json.dumps({f"data.npy[{i}]": 0 for i in range(4)}))
    shapeless = small_net()
    shapeless.graph.input[0].type.tensor_type.ClearField("shape")
    onnx.save(shapeless, "shapeless.onnx")
    before = snapshot(ready)
    capsys.readouterr()
    assert invoke(line.split()) in (1, 2)
    error = capsys.readouterr().err
    assert says in error
    assert "internal fault" not in error
    assert "Traceback" not in error
    assert snapshot(ready) == before
    assert not Path("made").exists()


def test_a_name_that_is_not_utf8(ready: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = b"b\xff.onnx".decode("utf-8", "surrogateescape")
    Path(name).write_bytes(Path("int8.onnx").read_bytes())
    assert invoke(["run", name, "--data", "data.npy"]) == 1
    assert "not UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("given", [None, [np.zeros(3)], {"x": [[1], [1, 2]]}])
def test_run_raised_what_python_raises(ready: Path, given: object) -> None:
    session = Session("int8.onnx")
    with pytest.raises(RuntimeFault):
        session.run(None, given)  # type: ignore[arg-type]


def test_output_names_were_taken_letter_by_letter(ready: Path) -> None:
    session = Session("int8.onnx")
    with pytest.raises(RuntimeFault, match="give a list of names"):
        session.run("y", {"x": np.zeros((1, 3, 16, 16), np.float32)})


def test_a_session_and_an_evaluation_show_themselves_in_a_line(ready: Path) -> None:
    assert "tensor(float)" in repr(Session("int8.onnx"))
    found = evaluate("int8.onnx", "data.npy", reference="model.onnx")
    assert len(repr(found)) < 1000
    assert found.metrics[0].name in repr(found)


def test_weights_that_kernels_hold_are_counted(ready: Path) -> None:
    weights = Session("int8.onnx").describe()["weight_bytes"]
    stored = sum(
        onnx.numpy_helper.to_array(t).nbytes for t in onnx.load("int8.onnx").graph.initializer if len(t.dims) > 1
    )
    assert weights >= stored


def test_a_table_in_a_file_had_trailing_blanks(ready: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert invoke(["inspect", "int8.onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert all(line == line.rstrip() for line in lines)
