# SPDX-License-Identifier: Apache-2.0
"""``wia-quant check``: exit code, JSON and text; against a target; what --fix writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import ModelProto

from tests.contract.test_check_rules import clean_model, mismatched_scale, repeat_name, wide_weight
from tests.end_to_end.conftest import Cli


@pytest.fixture
def save(folder: Path) -> Callable[..., str]:
    """Writes the clean QDQ model, with a defect."""

    def write(seed: Callable[[ModelProto], None] | None = None) -> str:
        model = clean_model()
        if seed is not None:
            seed(model)
        onnx.save(model, folder / "q.onnx")
        return "q.onnx"

    return write


def test_a_clean_model_exits_0(cli: Cli, save: Callable[..., str]) -> None:
    done = cli("check", save())
    assert done.code == 0, done.err
    assert "conforms: 0 errors, 0 notes" in done.out


def test_a_note_alone_does_not_fail(cli: Cli, save: Callable[..., str]) -> None:
    done = cli("check", save(wide_weight), "--json")
    assert done.code == 0
    assert json.loads(done.out)["conforming"] is True
    assert [f["severity"] for f in json.loads(done.out)["findings"]] == ["note"]


def test_an_error_exits_4(cli: Cli, save: Callable[..., str]) -> None:
    assert cli("check", save(mismatched_scale)).code == 4


def test_a_model_of_another_target_exits_4_and_says_why(cli: Cli, save: Callable[..., str]) -> None:
    done = cli("check", save(), "--target", "example-npu", "--json")
    assert done.code == 4
    found = json.loads(done.out)
    assert found["target"] == "example-npu"
    assert {f["rule"] for f in found["findings"]} == {"target-activation"}
    assert all(f["node"] and f["tensor"] and f["remedy"] for f in found["findings"])


def test_a_bad_target_file_is_one_line_that_names_the_field(cli: Cli, folder: Path, save: Callable[..., str]) -> None:
    (folder / "t.json").write_text('{"schema": 1, "name": "t", "operators": {"Conv": {"max_dims": 4}}}')
    done = cli("check", save(), "--target", "t.json")
    assert done.code == 1
    assert done.err.count("\n") <= 2
    assert "operators.Conv.max_dims" in done.err


def test_calibrate_for_the_example_npu_gives_a_file_that_it_takes(cli: Cli) -> None:
    plan = cli("calibrate", "model.onnx", "--plan", "--target", "example-npu")
    assert plan.code == 0, plan.err
    assert cli("calibrate", "model.onnx", "--data", "pictures", "--target", "example-npu", "-o", "npu.onnx").code == 0
    done = cli("check", "npu.onnx", "--target", "example-npu", "--json")
    assert done.code == 0, done.out
    assert json.loads(done.out)["findings"] == []


def test_fix_writes_a_file_that_conforms(cli: Cli, save: Callable[..., str]) -> None:
    done = cli("check", save(repeat_name), "--fix", "mended.onnx")
    assert done.code == 0
    assert "mended 1 x names" in done.out
    assert json.loads(cli("check", "mended.onnx", "--json").out)["findings"] == []
