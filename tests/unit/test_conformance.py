# SPDX-License-Identifier: Apache-2.0
"""``wia_quant.check`` and ``wia_quant.examine``: for notebooks and pytest; on paths, bytes and messages."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

import wia_quant
from tests.contract.test_check_rules import clean_model, mismatched_scale, wide_weight
from tests.unit.test_doctor import batches, classifier, pictures, right
from wia_quant.errors import DataError, ModelError, UsageError


def test_a_clean_model_is_ok_however_it_is_given(tmp_path: Path) -> None:
    onnx.save(clean_model(), tmp_path / "m.onnx")
    for model in (clean_model(), clean_model().SerializeToString(), tmp_path / "m.onnx", str(tmp_path / "m.onnx")):
        assert wia_quant.check(model).ok
    assert str(wia_quant.check(clean_model())) == "0 errors, 0 notes"


def test_a_note_is_ok_and_an_error_is_not() -> None:
    noted, broken = clean_model(), clean_model()
    wide_weight(noted)
    mismatched_scale(broken)
    assert wia_quant.check(noted).ok
    assert len(wia_quant.check(noted).findings) == 1
    assert not wia_quant.check(broken).ok
    assert "error: activation-grid: DequantizeLinear 'r_dequantize'" in str(wia_quant.check(broken))


def test_a_target_is_named_in_the_result() -> None:
    found = wia_quant.check(clean_model(), target="example-npu")
    assert not found.ok
    assert json.loads(json.dumps(found.to_dict()))["target"] == "example-npu"
    with pytest.raises(UsageError, match="built in"):
        wia_quant.check(clean_model(), target="no-such")


def test_a_file_that_is_no_model_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError, match=r"m\.onnx"):
        wia_quant.check(tmp_path / "m.onnx")


def test_right_data_is_ok_and_wrong_data_says_what_to_do() -> None:
    assert wia_quant.examine(classifier(), batches(right(pictures()))).symptoms == ()
    found = wia_quant.examine(classifier(), batches(pictures()))
    assert not found.ok
    assert "use the preset tf" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["data"]["used"] == 60


def test_no_data_is_a_clear_error() -> None:
    with pytest.raises((DataError, UsageError)):
        wia_quant.examine(classifier(), None)
    with pytest.raises((DataError, UsageError)):
        wia_quant.examine(classifier(), [])
