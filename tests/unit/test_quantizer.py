# SPDX-License-Identifier: Apache-2.0
"""quantize(): from a model and data to a file, a plan and a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import wia_quant
from tests.quantizing import Array, conv, conv_constants, model, run
from wia_quant.calibration import InterruptedCalibration
from wia_quant.errors import DataError, PolicyError, TableError, UsageError
from wia_quant.files import OutputError
from wia_quant.quantizer import quantize
from wia_quant.table import CalibrationTable


def small() -> onnx.ModelProto:
    """Conv, Relu, Conv, Add, GlobalAveragePool, Flatten, Gemm."""
    rng = np.random.default_rng(3)
    constants = {
        **conv_constants("c1", (8, 3, 3, 3)),
        **conv_constants("c2", (8, 8, 3, 3)),
        "fc.w": rng.standard_normal((5, 8)).astype(np.float32),
        "fc.b": rng.standard_normal(5).astype(np.float32),
    }
    nodes = [
        conv("c1", "x", "a", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], "relu"),
        conv("c2", "b", "c", pads=[1] * 4),
        helper.make_node("Add", ["b", "c"], ["d"], "add"),
        helper.make_node("GlobalAveragePool", ["d"], ["e"], "pool"),
        helper.make_node("Flatten", ["e"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "fc.w", "fc.b"], ["y"], "fc", transB=1),
    ]
    return model(nodes, {"x": ["N", 3, 8, 8]}, ["y"], constants)


def batches(n: int = 8) -> list[dict[str, Array]]:
    return [{"x": np.random.default_rng(i).uniform(-1, 1, (1, 3, 8, 8)).astype(np.float32)} for i in range(n)]


def test_a_small_network_works_on_integers_from_end_to_end() -> None:
    result = quantize(small(), batches(), calibrator="minmax")
    assert all(d.quantized for d in result.plan.decisions)
    floats, integers = run(small(), batches()[0])[0], run(result.model, batches()[0])[0]
    assert np.abs(floats - integers).max() < 0.1 * np.abs(floats).max()


def test_the_file_and_its_table_are_written_and_give_the_same_model_again(tmp_path: Path) -> None:
    first = quantize(small(), batches())
    first.save(tmp_path / "m.wia.onnx")
    again = quantize(small(), batches(), table=tmp_path / "m.calib.json")
    assert onnx.load(tmp_path / "m.wia.onnx").graph == again.model.graph


def test_nothing_is_overwritten_unless_forced(tmp_path: Path) -> None:
    result = quantize(small(), batches())
    result.save(tmp_path / "m.onnx")
    with pytest.raises(OutputError, match="exists"):
        result.save(tmp_path / "m.onnx")
    result.save(tmp_path / "m.onnx", force=True)


def test_the_metadata_says_what_was_done() -> None:
    found = {p.key: p.value for p in quantize(small(), batches()).model.metadata_props}
    assert found["wia.format"] == "1"
    assert found["wia.target"] == "wia-cpu"
    assert '"calibrator":"moving_average"' in found["wia.recipe"]
    assert '"n_batches":8' in found["wia.calibration"]


def test_a_table_of_another_model_is_refused() -> None:
    table = quantize(small(), batches()).table
    other = small()
    other.doc_string = "another"
    with pytest.raises(TableError, match="another model"):
        quantize(other, table=table)


def test_an_interrupted_calibration_goes_on_where_it_stopped() -> None:
    def interrupted():  # type: ignore[no-untyped-def]
        yield from batches()[:3]
        raise KeyboardInterrupt

    with pytest.raises(InterruptedCalibration) as caught:
        quantize(small(), interrupted())
    resumed = quantize(small(), batches(), table=caught.value.table)
    assert resumed.table.ranges == quantize(small(), batches()).table.ranges


@pytest.mark.parametrize(
    ("wrong", "message", "error"),
    [
        ({"scheme": "w3a3"}, "unknown scheme", UsageError),
        ({"calibrator": "guess"}, "unknown calibrator", UsageError),
        ({"target": "toaster"}, "no target", UsageError),
        ({"exclude": ["c7"]}, "matches no node; did you mean .*'c2' or 'c1'", PolicyError),
        ({"workers": 0}, "at least 1", UsageError),
    ],
)
def test_a_wrong_argument_is_one_clear_error(wrong: dict[str, object], message: str, error: type[Exception]) -> None:
    with pytest.raises(error, match=message):
        quantize(small(), batches(), **wrong)  # type: ignore[arg-type]


def test_nan_in_the_data_names_its_tensor() -> None:
    bad = batches()
    bad[2]["x"][0, 0, 0, 0] = np.nan
    with pytest.raises(DataError, match="'x'"):
        quantize(small(), bad)


def test_the_public_name_is_the_same_function() -> None:
    assert wia_quant.quantize is quantize
    assert wia_quant.CalibrationTable is CalibrationTable


def test_a_result_in_a_notebook_is_one_line_not_pages_of_its_graph() -> None:
    result = quantize(small(), batches())
    assert repr(result).startswith("QuantizedModel(plan=Plan(7 of 7 nodes on integers, scheme w8a8")
    assert "table=CalibrationTable(5 tensors, moving_average, 8 batches)" in repr(result)
    assert len(repr(result)) < 500
