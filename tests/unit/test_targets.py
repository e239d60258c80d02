# SPDX-License-Identifier: Apache-2.0
"""Targets: what a device accepts limits the plan; a file that is none is refused with the key that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tests.quantizing import conv, conv_constants, decisions, initializers, measured, model, run
from wia_quant.errors import PolicyError, UsageError
from wia_quant.policy import plan
from wia_quant.quantizer import Written, quantize_with_ranges
from wia_quant.rules import check_model
from wia_quant.runtime import Session
from wia_quant.targets.schema import WORDS, target_schema
from wia_quant.targets.target import built_in, load_target


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


def test_both_built_in_targets_load() -> None:
    assert built_in() == ["example-npu", "wia-cpu"]
    assert [load_target(name).name for name in built_in()] == built_in()


def test_the_schema_uses_no_word_that_is_not_understood() -> None:
    def words(schema: object, names: bool = False) -> set[str]:
        if isinstance(schema, list):
            return set().union(*map(words, schema)) if schema else set()
        if not isinstance(schema, dict):
            return set()
        found = set() if names else set(schema)
        for key, value in schema.items():
            if key not in ("enum", "const", "default", "required") or names:
                found |= words(value, key == "properties" and not names)
        return found

    assert words(target_schema()) <= WORDS


def test_every_field_has_a_description() -> None:
    assert all(entry.get("description") for entry in target_schema()["properties"].values())


def why(target: str, node: str, proto: object = None) -> str:
    found = plan(net() if proto is None else proto, target=target)  # type: ignore[arg-type]
    return next(d.reason for d in found.decisions if d.node == node and not d.quantized)


def test_an_operator_the_target_lacks_stays_float_and_says_so(tmp_path: Path) -> None:
    assert why(write(tmp_path, operators={"Conv": {}}), "act") == "target t has no integer HardSwish"


def test_an_attribute_above_its_limit_keeps_the_node_float(tmp_path: Path) -> None:
    operators = {"Conv": {"attributes": {"group": {"max": 2}}}, "HardSwish": {}}
    proto = model(
        [conv("c", "x", "a", group=3), conv("d", "a", "y")],
        {"x": [1, 3, 4, 4]},
        ["y"],
        conv_constants("c", (3, 1, 1, 1)) | conv_constants("d", (128, 3, 1, 1)),
    )
    assert "does not take group 3, at most 2" in why(write(tmp_path, operators=operators), "c", proto)


def test_a_kernel_that_only_the_weight_tells_is_limited_too(tmp_path: Path) -> None:
    operators = {"Conv": {"attributes": {"kernel_shape": {"max": 3}}}}
    constants = conv_constants("c", (8, 3, 5, 5)) | conv_constants("d", (64, 8, 1, 1))
    proto = model([conv("c", "x", "a"), conv("d", "a", "y")], {"x": [1, 3, 9, 9]}, ["y"], constants)
    assert "kernel_shape 5, at most 3" in why(write(tmp_path, operators=operators), "c", proto)


def test_a_tensor_of_too_many_dimensions_or_bytes_keeps_its_operator_float(tmp_path: Path) -> None:
    constants = {
        k: v
        for n, c in (("c", (8, 3)), ("d", (2, 8)), ("e", (300, 2)))
        for k, v in conv_constants(n, (*c, 1, 1)).items()
    }
    nodes = [conv("c", "x", "a"), conv("d", "a", "b"), conv("e", "b", "y", strides=[9, 9])]
    proto = model(nodes, {"x": [1, 3, 9, 9]}, ["y"], constants)
    assert "takes tensors of at most 600 bytes; 'a' has 648" in why(write(tmp_path, max_tensor_size=600), "c", proto)
    limits = {"Conv": {"max_tensor_dims": 3}, "Gemm": {}}
    nodes = [
        conv("c", "x", "a"),
        helper.make_node("Flatten", ["a"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w"], ["y"], "g"),
    ]
    constants = conv_constants("c", (8, 3, 1, 1)) | {"w": np.ones((648, 4), np.float32)}
    proto = model(nodes, {"x": [1, 3, 9, 9]}, ["y"], constants)
    assert "takes at most 3 dimensions; 'x' has 4" in why(write(tmp_path, operators=limits), "c", proto)


def test_what_the_target_never_takes_is_noted(tmp_path: Path) -> None:
    constants = conv_constants("c", (8, 3, 1, 1))
    proto = model([conv("c", "x", "y")], {"x": ["n", 3, 9, 9]}, ["y"], constants)
    found = plan(proto, target=write(tmp_path, dynamic_shapes=False))
    assert any("no dynamic shapes; input 'x' is [?, 3, 9, 9]" in note for note in found.notes)
    found = plan(net(), target=write(tmp_path, float=False, operators={"Conv": {}}))  # type: ignore[arg-type]
    assert any("has no float operators; 2 nodes stay float (Conv, HardSwish)" in note for note in found.notes)


def test_a_model_for_the_example_npu_conforms_to_it_and_runs() -> None:
    result = written("example-npu")
    assert initializers(result.model)["x/zero_point"].dtype == np.uint8
    assert check_model(result.model, load_target("example-npu")) == []
    x = np.random.default_rng(0).standard_normal((1, 3, 4, 4)).astype(np.float32)
    (y,) = Session(result.model.SerializeToString()).run(None, {"x": x})
    np.testing.assert_allclose(y, run(net(), {"x": x})[0], atol=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"schema": 2}, "'schema' must be 1, not 2"),
        ({"schema": True}, "'schema' must be 1"),
        ({"name": ""}, "'name' is empty"),
        ({"name": 5}, "'name' must be a text, not 5"),
        ({"colour": "red"}, "unknown field 'colour'; known are activations"),
        ({"activations": "int3"}, "'activations' is \"int3\"; it may be int8"),
        ({"per_channel": "yes"}, "'per_channel' must be true or false"),
        ({"schemes": ["w8a8", "w2"]}, r"'schemes\[1\]' is \"w2\""),
        ({"schemes": []}, "'schemes' is empty"),
        ({"float_operators": "Conv"}, "'float_operators' must be a list"),
        ({"float_operators": ["Convv"]}, r"'float_operators\[0\]' is 'Convv', which is no ONNX operator"),
        ({"operators": ["Conv"]}, "'operators' must be an object"),
        ({"operators": {"Convv": {}}}, "'operators.Convv' is no ONNX operator"),
        ({"operators": {"Conv": {"rank": 4}}}, "unknown field 'operators.Conv.rank'"),
        ({"operators": {"Conv": {"max_tensor_dims": "4"}}}, "'operators.Conv.max_tensor_dims' must be a whole number"),
        ({"operators": {"Conv": {"attributes": {"stride": {"max": 2}}}}}, "attributes.stride' is no attribute of Conv"),
        ({"operators": {"Conv": {"attributes": {"group": {"max": "2"}}}}}, "attributes.group.max' must be a number"),
        ({"max_tensor_size": 0}, "'max_tensor_size' is 0; the least is 1"),
        ({"max_batch_size": 1.5}, "'max_batch_size' must be a whole number"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, keys: dict[str, object], message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        load_target(write(tmp_path, **keys))


@pytest.mark.parametrize(("text", "message"), [("[]", "the file must be an object"), ("{}", "'schema' is missing")])
def test_a_file_that_is_no_target_says_what_it_lacks(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.json").write_text(text, encoding="utf-8")
    with pytest.raises(PolicyError, match=message):
        load_target(tmp_path / "t.json")


def test_no_json_and_no_file_are_clear_errors(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{", encoding="utf-8")
    with pytest.raises(PolicyError, match="cannot be read as JSON"):
        load_target(tmp_path / "bad.json")
    with pytest.raises(UsageError, match="built in: example-npu, wia-cpu"):
        load_target("wia-gpu")
