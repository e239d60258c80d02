# SPDX-License-Identifier: Apache-2.0
"""The calibration table: what is written comes back, and what is wrong in a file is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from wia_quant.affine import Range
from wia_quant.calibrators import CALIBRATORS, Calibrator
from wia_quant.errors import CalibrationError, TableError
from wia_quant.files import OutputError
from wia_quant.table import FORMAT, CalibrationTable, TensorRange

SHA = "ab" * 32


def calibrators(name: str) -> dict[str, Calibrator]:
    made = {tensor: CALIBRATORS[name]() for tensor in ("b", "a/ü", 'quote"d')}
    for i, one in enumerate(made.values()):
        one.observe(np.random.default_rng(i).standard_normal(1000).astype(np.float32))
    return made


def table(name: str = "percentile", **options: Any) -> CalibrationTable:
    return CalibrationTable.of(
        calibrators(name),
        model_sha256=SHA,
        calibrator=name,
        data={"digest": "00", "used": 3, "preprocess": {"mean": [0.485]}},
        n_batches=3,
        **options,
    )


def edited(**changes: Any) -> str:
    return json.dumps(json.loads(table().to_json()) | changes)


@pytest.mark.parametrize("name", CALIBRATORS)
def test_what_is_saved_comes_back(name: str, tmp_path: Path) -> None:
    original = table(name, skipped={"ids": "it is int64"}, complete=False)
    original.save(tmp_path / "t.json")
    assert CalibrationTable.load(tmp_path / "t.json", model_sha256=SHA) == original


@pytest.mark.parametrize("name", CALIBRATORS)
def test_the_calibrators_come_back_with_their_states(name: str) -> None:
    read = CalibrationTable.from_json(table(name).to_json()).restored()
    assert {n: c.state() for n, c in read.items()} == {n: c.state() for n, c in calibrators(name).items()}


def test_the_same_table_gives_the_same_bytes() -> None:
    assert table().to_json() == table().to_json()
    assert CalibrationTable.from_json(table().to_json()).to_json() == table().to_json()


def test_the_text_is_plain_json_with_a_line_for_each_tensor() -> None:
    text = table().to_json()
    root = json.loads(text)
    assert list(root)[:3] == ["format", "version", "model_sha256"]
    assert list(root["tensors"]) == sorted(root["tensors"])
    lines = [line for line in text.splitlines() if '"lo"' in line and '"hi"' in line and '"clipped"' in line]
    assert len(lines) >= 3
    assert all(ord(c) < 128 or c == "ü" for c in text)


def test_ranges_written_by_hand_count(tmp_path: Path) -> None:
    root = json.loads(table().to_json())
    root["tensors"]["b"] = {"lo": -1, "hi": 2.5}
    root["tensors"]["new"] = {"lo": 0, "hi": 6}
    (tmp_path / "t.json").write_text(json.dumps(root))
    read = CalibrationTable.load(tmp_path / "t.json")
    assert read.ranges["b"] == Range(-1.0, 2.5)
    assert read.tensors["new"] == TensorRange(Range(0.0, 6.0))


def test_a_table_needs_little_more_than_ranges() -> None:
    text = json.dumps(
        {
            "format": FORMAT,
            "version": 1,
            "model_sha256": SHA,
            "calibrator": "minmax",
            "tensors": {"x": {"lo": 0, "hi": 1}},
        }
    )
    assert CalibrationTable.from_json(text).ranges == {"x": Range(0.0, 1.0)}


def test_an_existing_file_is_only_replaced_by_force(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("precious")
    with pytest.raises(OutputError, match="exists"):
        table().save(path)
    assert path.read_text() == "precious"
    table().save(path, force=True)
    assert CalibrationTable.load(path) == table()
    assert [p.name for p in tmp_path.iterdir()] == ["t.json"]


def test_a_tensor_without_a_value_is_listed_with_the_reason() -> None:
    made = calibrators("mse") | {"never": CALIBRATORS["mse"]()}
    one = CalibrationTable.of(made, model_sha256=SHA, calibrator="mse", data={}, n_batches=1)
    assert "never" not in one.tensors
    assert "never held a value" in one.skipped["never"]


def test_a_table_without_states_is_small_and_cannot_be_gone_on_from() -> None:
    small = CalibrationTable.from_json(table().without_states().to_json())
    assert small.ranges == table().ranges
    with pytest.raises(TableError, match="no calibrator state of tensor 'a/ü'"):
        small.restored()


def test_a_table_of_another_model_is_refused(tmp_path: Path) -> None:
    table().save(tmp_path / "t.json")
    with pytest.raises(TableError, match=r"t\.json: the table belongs to another model \(sha256 abababababab"):
        CalibrationTable.load(tmp_path / "t.json", model_sha256="cd" * 32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("\x00\x01", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a calibration table"),
        ("null", "not a calibration table"),
        ('{"TENSOR_NAME": [1, 2]}', "not a calibration table"),
        (edited(version=2), "version 2 of the table; this program reads version 1"),
        (edited(version=None), "version None"),
        (edited(calibrator="median"), "calibrator 'median' is none of minmax"),
        (edited(calibrator=None), "calibrator is missing, not str"),
        (edited(tensors=None), "tensors is missing, not dict"),
        (edited(tensors=[1]), r"tensors is \[1\], not dict"),
        (edited(tensors={"x": 3}), "tensor 'x': must be an object"),
        (edited(tensors={"x": {"lo": 0}}), "tensor 'x': hi is None, not a finite number"),
        (edited(tensors={"x": {"lo": "0", "hi": 1}}), "tensor 'x': lo is '0'"),
        (edited(tensors={"x": {"lo": True, "hi": 1}}), "tensor 'x': lo is True"),
        (edited(tensors={"x": {"lo": 0.5, "hi": 1}}), r"tensor 'x': range \[0.5, 1.0\] does not contain 0.0"),
        (edited(tensors={"x": {"lo": 1, "hi": -1}}), "tensor 'x': range"),
        (edited(tensors={"x": {"lo": 0, "hi": 10**400}}), "tensor 'x': hi is"),
        (edited(tensors={"x": {"lo": 0, "hi": 1, "n_values": -1}}), "tensor 'x': n_values is -1"),
        (edited(tensors={"x": {"lo": 0, "hi": 1, "clipped": 7}}), "tensor 'x': clipped is 7"),
        (edited().replace('"n_batches": 3', '"n_batches": NaN'), r"not JSON \(NaN is not a number\)"),
        (edited(n_batches="3"), "n_batches is '3', not int"),
        (edited(n_batches=-3), "n_batches is -3"),
        (edited(model_sha256=5), "model_sha256 is 5, not str"),
        (edited(complete=1), "complete is 1, not bool"),
        (edited(states=[]), r"states is \[\], not dict"),
        (edited(skipped={"x": 1}), "skipped of 'x' is 1"),
        (edited(parameters={"percentile": "99"}), "parameter 'percentile' is '99'"),
    ],
    ids=lambda v: str(v)[:40],
)
def test_what_is_wrong_in_a_file_is_named(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(TableError, match=rf"t\.json: {message}"):
        CalibrationTable.load(tmp_path / "t.json")


def test_a_file_that_is_not_there_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"absent\.json: cannot be read"):
        CalibrationTable.load(tmp_path / "absent.json")
    with pytest.raises(TableError, match="cannot be read"):
        CalibrationTable.load(tmp_path)
    (tmp_path / "t.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TableError, match="not text"):
        CalibrationTable.load(tmp_path / "t.json")


@pytest.mark.parametrize(
    "state",
    [{}, {"n_values": "x"}, None, 3, {"percentile": 200}, {"counts": "A", "exponent": 1, "first": 0, "n_bins": 4}],
    ids=str,
)
def test_a_broken_state_is_named(state: Any) -> None:
    root = json.loads(table().to_json())
    root["states"]["b"] = state
    with pytest.raises(TableError, match=r"state of tensor 'b' is broken|states of 'b'"):
        CalibrationTable.from_json(json.dumps(root)).restored()


@pytest.mark.parametrize("missing", ["exponent", "first", "n_bins", "counts", "lo", "percentile"])
def test_a_state_lacking_a_part_is_named(missing: str) -> None:
    root = json.loads(table().to_json())
    del root["states"]["b"][missing]
    with pytest.raises(TableError, match="state of tensor 'b' is broken"):
        CalibrationTable.from_json(json.dumps(root)).restored()


def test_a_calibrator_that_has_values_and_no_range_is_not_hidden() -> None:
    class Failing:
        n_values = 5

        def parameters(self) -> dict[str, float]:
            return {}

        def range(self) -> Range:
            raise CalibrationError("out of luck")

    with pytest.raises(CalibrationError, match="tensor 'x': out of luck"):
        CalibrationTable.of(
            {"x": Failing()},  # type: ignore[dict-item]
            model_sha256=SHA,
            calibrator="minmax",
            data={},
            n_batches=1,
        )
