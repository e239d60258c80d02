# SPDX-License-Identifier: Apache-2.0
"""Targets: what a device accepts limits the plan; a file that is none is refused with the key that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.quantizing import conv, conv_constants, decisions, initializers, measured, model
from wia_quant.errors import PolicyError, UsageError
from wia_quant.policy import plan
from wia_quant.quantizer import Written, quantize_with_ranges
from wia_quant.targets.target import load_target


def write(tmp_path: Path, **keys: object) -> str:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schema": 1, "name": "t", **keys}), encoding="utf-8")
    return str(path)


def net() -> Written | object:
    constants = conv_constants("c", (4, 3, 1, 1)) | conv_constants("d", (4, 4, 1, 1))
    nodes = [conv("c", "x", "a"), helper.make_node("HardSwish", ["a"], ["b"], "act"), conv("d", "b", "y")]
    return model(nodes, {"x": [1, 3, 4, 4]}, ["y"], constants)


def written(target: str) -> Written:
    proto = net()
    samples = [{"x": np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32)}]
    return quantize_with_ranges(proto, measured(proto, samples), target=target)  # type: ignore[arg-type]


def test_the_built_in_target_has_the_defaults() -> None:
    assert load_target("wia-cpu") == load_target("wia-cpu")
    assert load_target("wia-cpu").activations.name == "int8"


def test_seven_bit_weights_on_request(tmp_path: Path) -> None:
    found = initializers(written(write(tmp_path, weights="int7_narrow")).model)
    assert np.abs(found["c.w/quantized"]).max() == 63


def test_uint8_activations_on_request(tmp_path: Path) -> None:
    assert initializers(written(write(tmp_path, activations="uint8")).model)["x/zero_point"].dtype == np.uint8


def test_one_scale_a_weight_on_request(tmp_path: Path) -> None:
    assert initializers(written(write(tmp_path, per_channel=False)).model)["c.w/scale"].shape == ()


def test_an_operator_the_target_wants_float_stays_float_and_says_so(tmp_path: Path) -> None:
    result = written(write(tmp_path, float_operators=["HardSwish"]))
    assert not decisions(result)["act"]
    assert "target t wants it float" in next(d.reason for d in result.plan.decisions if d.node == "act")


def test_a_scheme_the_target_cannot_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot run scheme 'w8a8'; it has w8"):
        plan(net(), target=write(tmp_path, schemes=["w8"]))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"schema": 2}, "schema"),
        ({"name": ""}, "name"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"activations": "int3"}, "'activations' is 'int3'"),
        ({"per_channel": "yes"}, "per_channel"),
        ({"schemes": ["w8a8", "w2"]}, "'schemes' has 'w2'"),
        ({"float_operators": "Conv"}, "must be a list"),
    ],
)
def test_a_wrong_key_is_named(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load_target(write(tmp_path, **keys))


def test_no_json_and_no_file_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    with pytest.raises(PolicyError, match="cannot be read as JSON"):
        load_target(tmp_path / "bad.json")
    with pytest.raises(UsageError, match="built in: wia-cpu"):
        load_target("wia-gpu")
