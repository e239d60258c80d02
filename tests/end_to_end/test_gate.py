# SPDX-License-Identifier: Apache-2.0
"""The gate as a CI job runs it: calibrate, baseline, regress, and the exit code that a job fails by."""

from __future__ import annotations

import json
import re
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from tests.end_to_end.conftest import ROOT, Cli

MEASURED = ("--data", "pictures", "--reference", "model.onnx")


def break_conv2(path: Path, out: Path) -> None:
    proto = onnx.load(path)
    conv2 = next(n for n in proto.graph.node if n.name == "conv2")
    scale_name = next(n.input[1] for n in proto.graph.node if n.output[0] == conv2.input[1])
    scale = next(t for t in proto.graph.initializer if t.name == scale_name)
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(2), scale_name))
    onnx.save(proto, out)


def test_the_gate_passes_the_same_model_and_fails_a_broken_one(cli: Cli, folder: Path) -> None:
    assert cli("calibrate", "model.onnx", "--data", "pictures", "--preprocess", "zero_one").code == 0
    recorded = cli("baseline", "model.wia.onnx", *MEASURED, "-o", "base.json")
    assert recorded.code == 0, recorded.err
    assert json.loads((folder / "base.json").read_text())["layers"]
    same = cli("regress", "--baseline", "base.json", "--current", "model.wia.onnx", *MEASURED, "--max-drop", "0")
    assert same.code == 0, same.out + same.err
    break_conv2(folder / "model.wia.onnx", folder / "broken.onnx")
    reports = ("--junit", "gate.xml", "--markdown", "gate.md", "--json")
    failed = cli("regress", "--baseline", "base.json", "--current", "broken.onnx", *MEASURED, *reports)
    assert failed.code == 3, failed.out + failed.err
    assert json.loads(failed.out)["suspects"][0]["node"] == "conv2"
    assert int(ET.parse(folder / "gate.xml").getroot().attrib["failures"]) > 0
    assert "FAILED" in (folder / "gate.md").read_text()


def test_two_models_are_compared_directly(cli: Cli, folder: Path) -> None:
    assert cli("calibrate", "model.onnx", "--data", "pictures", "--preprocess", "zero_one").code == 0
    break_conv2(folder / "model.wia.onnx", folder / "broken.onnx")
    sides = ("regress", "--baseline", "model.wia.onnx", "--current")
    failed = cli(*sides, "broken.onnx", "--data", "pictures")
    assert failed.code == 3, failed.out + failed.err
    assert "conv2" in failed.out
    assert cli(*sides, "model.wia.onnx", "--data", "pictures").code == 0


def test_the_example_for_github_actions_does_what_it_says(cli: Cli, folder: Path) -> None:
    text = (ROOT / "examples" / "accuracy_gate.yml").read_text(encoding="utf-8")
    assert cli("calibrate", "model.onnx", "--data", "pictures", "--preprocess", "zero_one").code == 0
    commands = re.findall(r"^[# ]*wia-quant (.*)$", text, re.M)
    assert [command.split()[0] for command in commands] == ["baseline", "regress", "report"]
    for command in commands:
        done = cli(*shlex.split(command))
        assert done.code == 0, f"{command}: {done.err}"
    assert all((folder / name).exists() for name in ("base.json", "gate.xml", "gate.md", "report/report.html"))


def test_a_model_without_data_is_a_usage_error(cli: Cli, folder: Path) -> None:
    done = cli("regress", "--baseline", "model.onnx", "--current", "model.onnx")
    assert done.code == 2
    assert "--data" in done.err
