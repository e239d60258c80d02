# SPDX-License-Identifier: Apache-2.0
"""Every planned tensor is shown to its calibrator as the float model computes it, whole or cut in pieces."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from wia_quant import observe as observe_module
from wia_quant.calibrators import CALIBRATORS, ChannelExtremes
from wia_quant.calibrators.base import State
from wia_quant.calibrators.minmax import MinMax
from wia_quant.data import Batch
from wia_quant.errors import CalibrationError, DataError, ModelError
from wia_quant.instrument import cut, node_inputs
from wia_quant.observe import Instrumented, Observations, observe

Array = np.ndarray[Any, Any]


def info(name: str, shape: list[Any] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[str],
    weights: dict[str, Array] | None = None,
    *,
    opset: int = 17,
    ir: int = 8,
) -> ModelProto:
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(w, name) for name, w in (weights or {}).items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def weights(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def small_net() -> ModelProto:
    """Two convolutions with a shortcut, a pool, a shape computation, and a linear layer."""
    node = helper.make_node
    return model_of(
        [
            node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
            node("Relu", ["c1"], ["r1"]),
            node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1]),
            node("Add", ["c2", "r1"], ["s"]),
            node("Clip", ["s", "", "six"], ["k"]),
            node("GlobalAveragePool", ["k"], ["p"]),
            node("Shape", ["p"], ["shape"]),
            node("Gather", ["shape", "zero"], ["n"]),
            node("Unsqueeze", ["n", "zero1"], ["n1"]),
            node("Concat", ["n1", "minus1"], ["flat_shape"], axis=0),
            node("Reshape", ["p", "flat_shape"], ["f"]),
            node("Gemm", ["f", "w3"], ["y"], transB=1),
            node("Sigmoid", ["c1"], ["unused"]),
        ],
        [info("x", ["N", 3, "H", "W"])],
        ["y"],
        {
            "w1": weights(4, 3, 3, 3),
            "b1": weights(4),
            "w2": weights(4, 4, 3, 3),
            "six": np.array(6.0, np.float32),
            "zero": np.array(0, np.int64),
            "zero1": np.array([0], np.int64),
            "minus1": np.array([-1], np.int64),
            "w3": weights(5, 4),
        },
    )


TENSORS = ["x", "c1", "r1", "c2", "s", "k", "p", "f", "y"]


def pictures(n: int, *shape: int) -> list[dict[str, Array]]:
    return [
        {"x": np.random.default_rng(i).standard_normal((1 + i % 2, 3, *shape)).astype(np.float32)} for i in range(n)
    ]


class Keep:
    """An observer that keeps everything: what a test compares."""

    def __init__(self) -> None:
        self.values: list[Array] = []

    @property
    def n_values(self) -> int:
        return sum(v.size for v in self.values)

    def observe(self, x: Array) -> None:
        self.values.append(x.copy())

    def merge(self, other: Keep) -> None:
        self.values += other.values

    def state(self) -> State:
        return {}

    @classmethod
    def from_state(cls, state: State) -> Keep:
        return cls()


def kept(model: Any, tensors: list[str], batches: Any, **options: Any) -> dict[str, list[Array]]:
    seen = observe(model, tensors, batches, Keep, **options)
    return {name: one.values for name, one in seen.items()}  # type: ignore[attr-defined]


# ---- the values -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 3000, 1 << 30], ids=["every tensor alone", "a few together", "whole"])
def test_shows_what_the_reference_computes(budget: int) -> None:
    model, batches = small_net(), pictures(3, 8, 9)
    seen = kept(model, TENSORS, batches, budget=budget)
    assert set(seen) == set(TENSORS)
    reference = ReferenceEvaluator(_with_outputs(model, TENSORS))
    for i, batch in enumerate(batches):
        expected = dict(zip([t for t in TENSORS if t != "x"], reference.run(None, batch), strict=True)) | batch
        for name in TENSORS:
            assert seen[name][i].shape == np.asarray(expected[name]).shape
            np.testing.assert_allclose(seen[name][i], expected[name], rtol=1e-5, atol=1e-5)


def _with_outputs(model: ModelProto, tensors: list[str]) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.output[:]
    copy.graph.output.extend(onnx.ValueInfoProto(name=t) for t in tensors if t != "x")
    return copy


def test_cutting_changes_no_bit() -> None:
    model, batches = small_net(), pictures(4, 16, 16)
    whole, cut_up = kept(model, TENSORS, batches), kept(model, TENSORS, batches, budget=1)
    for name in TENSORS:
        assert all(np.array_equal(a, b) for a, b in zip(whole[name], cut_up[name], strict=True))


def test_the_model_is_not_changed() -> None:
    model = small_net()
    before = model.SerializeToString(deterministic=True)
    observe(model, TENSORS, pictures(2, 8, 8), MinMax, budget=1)
    assert model.SerializeToString(deterministic=True) == before


def test_a_path_and_bytes_serve_as_well_as_a_model(tmp_path: Path) -> None:
    model, batches = small_net(), pictures(2, 8, 8)
    onnx.save(model, tmp_path / "m.onnx")
    expected = observe(model, TENSORS, batches, MinMax).state()
    assert observe(tmp_path / "m.onnx", TENSORS, batches, MinMax).state() == expected
    assert observe(str(tmp_path / "m.onnx"), TENSORS, batches, MinMax).state() == expected
    assert observe(model.SerializeToString(), TENSORS, batches, MinMax).state() == expected


@pytest.mark.parametrize("name", CALIBRATORS)
def test_every_calibrator_gets_its_range(name: str) -> None:
    seen = observe(small_net(), TENSORS, pictures(3, 8, 8), CALIBRATORS[name])
    ranges = {tensor: one.range() for tensor, one in seen.items()}  # type: ignore[attr-defined]
    assert ranges["r1"].lo == 0.0
    assert 0.0 < ranges["k"].hi <= 6.0
    assert seen.n_batches == 3


def test_shapes_may_vary_from_batch_to_batch() -> None:
    batches = [*pictures(2, 8, 8), *pictures(2, 31, 17), *pictures(1, 3, 3)]
    seen = kept(small_net(), ["s"], batches, budget=1)
    assert [v.shape for v in seen["s"]] == [(1, 4, 8, 8), (2, 4, 8, 8), (1, 4, 31, 17), (2, 4, 31, 17), (1, 4, 3, 3)]


def test_channels_can_be_observed_apart() -> None:
    seen = observe(small_net(), ["c1"], pictures(3, 8, 8), ChannelExtremes)
    values = kept(small_net(), ["c1"], pictures(3, 8, 8))["c1"]
    channels = seen["c1"]
    assert isinstance(channels, ChannelExtremes)
    expected = np.min([v.min(axis=(0, 2, 3)) for v in values], axis=0)
    assert np.array_equal(channels.lo, expected)
    assert ChannelExtremes.from_state(channels.state()).state() == channels.state()


# ---- kinds of tensors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["shape", "n", "n1", "flat_shape"])
@pytest.mark.parametrize("budget", [1, 1 << 30])
def test_integers_are_left_out_with_the_reason(name: str, budget: int) -> None:
    seen = observe(small_net(), [name, "y"], pictures(1, 8, 8), MinMax, budget=budget)
    assert set(seen) == {"y"}
    assert seen.skipped == {name: "it is int64, not floating-point"}


def test_an_integer_input_is_left_out_with_the_reason() -> None:
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    model = model_of([node], [info("ids", ["N"], TensorProto.INT64)], ["y"], {"table": weights(10, 4)})
    seen = observe(model, ["ids", "y"], [{"ids": np.array([3, 4])}], MinMax)
    assert set(seen) == {"y"}
    assert seen.skipped == {"ids": "it is int64, not floating-point"}


def test_the_input_alone_needs_no_run() -> None:
    batches = pictures(2, 8, 8)
    seen = kept(small_net(), ["x"], batches)
    assert all(np.array_equal(a, b["x"]) for a, b in zip(seen["x"], batches, strict=True))


def test_scalars_and_scalar_inputs_are_observed() -> None:
    nodes = [helper.make_node("ReduceMean", ["x"], ["m"], keepdims=0), helper.make_node("Mul", ["m", "f"], ["y"])]
    model = model_of(nodes, [info("x", ["N"]), info("f", [])], ["y"])
    seen = kept(model, ["m", "f", "y"], [{"x": np.ones(3, np.float32), "f": np.array(2.0, np.float32)}])
    assert {name: (v[0].shape, float(v[0])) for name, v in seen.items()} == {
        "m": ((), 1.0),
        "f": ((), 2.0),
        "y": ((), 2.0),
    }


@pytest.mark.parametrize(("kind", "dtype"), [(TensorProto.FLOAT16, np.float16), (TensorProto.DOUBLE, np.float64)])
def test_other_floating_types_are_observed(kind: int, dtype: type) -> None:
    model = model_of([helper.make_node("Neg", ["x"], ["y"])], [info("x", ["N"], kind)], ["y"])
    seen = kept(model, ["x", "y"], [{"x": np.array([1.5, -2.0], dtype)}], budget=1)
    assert seen["y"][0].dtype == dtype
    assert seen["y"][0].tolist() == [-1.5, 2.0]


def test_a_tensor_that_is_empty_gets_no_value_and_no_error() -> None:
    model = model_of(
        [helper.make_node("Compress", ["x", "c"], ["y"], axis=0), helper.make_node("Neg", ["y"], ["z"])],
        [info("x", ["N"]), info("c", ["N"], TensorProto.BOOL)],
        ["z"],
    )
    batches = [{"x": np.ones(3, np.float32), "c": np.zeros(3, bool)}]
    seen = observe(model, ["y", "z"], batches, MinMax, budget=1)
    assert seen["y"].n_values == seen["z"].n_values == 0


def test_an_initializer_without_values_is_no_trouble() -> None:
    node = helper.make_node("Concat", ["x", "nothing"], ["y"], axis=0)
    model = model_of([node], [info("x", ["N"])], ["y"], {"nothing": np.zeros(0, np.float32)})
    assert kept(model, ["y"], [{"x": np.ones(2, np.float32)}])["y"][0].tolist() == [1.0, 1.0]


def test_an_initializer_that_is_an_input_too_keeps_its_value() -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [info("x", ["N"]), info("w", [1])],
        ["y"],
        {"w": np.array([5.0], np.float32)},
        ir=3,
        opset=9,
    )
    assert kept(model, ["y"], [{"x": np.ones(1, np.float32)}])["y"][0].tolist() == [6.0]


def test_nodes_of_one_name_or_none_are_no_trouble() -> None:
    model = small_net()
    for node in model.graph.node:
        node.name = "same"
    assert set(observe(model, TENSORS, pictures(1, 8, 8), MinMax, budget=1)) == set(TENSORS)


def test_a_tensor_asked_for_twice_is_observed_once() -> None:
    seen = kept(small_net(), ["s", "s"], pictures(1, 8, 8))
    assert len(seen["s"]) == 1


def test_what_the_tensors_do_not_need_is_not_run() -> None:
    model = small_net()
    pieces = cut(model, ["r1"], {}, 1)
    assert [[model.graph.node[i].op_type for i in p.nodes] for p in pieces] == [["Conv", "Relu"]]


# ---- control flow and sequences -------------------------------------------------------------------------------


def branching() -> ModelProto:
    """A tensor of the main graph is read only within the branches of an If."""
    node = helper.make_node
    then = helper.make_graph([node("Mul", ["a", "two"], ["t"])], "then", [], [info("t", None)])
    other = helper.make_graph([node("Neg", ["a"], ["e"])], "else", [], [info("e", None)])
    return model_of(
        [
            node("Relu", ["x"], ["a"]),
            node("ReduceSum", ["x"], ["sum"], keepdims=0),
            node("Greater", ["sum", "zero"], ["c"]),
            node("If", ["c"], ["i"], then_branch=then, else_branch=other),
            node("Add", ["i", "x"], ["y"]),
        ],
        [info("x", ["N"])],
        ["y"],
        {"two": np.array(2.0, np.float32), "zero": np.array(0.0, np.float32)},
    )


@pytest.mark.parametrize("budget", [1, 1 << 30])
def test_what_only_a_branch_reads_reaches_it_across_a_cut(budget: int) -> None:
    batches = [{"x": np.array([1.0, -0.5], np.float32)}, {"x": np.array([-3.0, 1.0], np.float32)}]
    seen = kept(branching(), ["a", "i", "y"], batches, budget=budget)
    assert [v.tolist() for v in seen["i"]] == [[2.0, 0.0], [-0.0, -1.0]]
    assert [v.tolist() for v in seen["y"]] == [[3.0, -0.5], [-3.0, 0.0]]


@pytest.mark.parametrize("budget", [1, 1 << 30])
def test_tensors_within_branches_are_observed_when_their_branch_is_taken(budget: int) -> None:
    batches = [{"x": np.array([1.0, -0.5], np.float32)}, {"x": np.array([-3.0, 1.0], np.float32)}]
    model = branching()
    before = model.SerializeToString(deterministic=True)
    seen = kept(model, ["t", "e", "y"], batches, budget=budget)
    assert [v.tolist() for v in seen["t"]] == [[2.0, 0.0], []]
    assert [v.tolist() for v in seen["e"]] == [[], [-0.0, -1.0]]
    assert [v.tolist() for v in seen["y"]] == [[3.0, -0.5], [-3.0, 0.0]]
    assert model.SerializeToString(deterministic=True) == before


def test_a_branch_never_taken_has_no_value() -> None:
    seen = observe(branching(), ["t", "e"], [{"x": np.ones(2, np.float32)}], MinMax)
    assert (seen["t"].n_values, seen["e"].n_values) == (2, 0)


def test_tensors_of_one_name_in_both_branches_share_their_values() -> None:
    model = branching()
    (conditional,) = [n for n in model.graph.node if n.op_type == "If"]
    for attribute in conditional.attribute:
        attribute.g.node[0].output[0] = attribute.g.output[0].name = "same"
    batches = [{"x": np.array([1.0], np.float32)}, {"x": np.array([-3.0], np.float32)}]
    seen = observe(model, ["same"], batches, MinMax)
    assert seen["same"].n_values == 2


def test_a_branch_within_a_branch_is_observed() -> None:
    node = helper.make_node
    deep = helper.make_graph([node("Mul", ["a", "two"], ["deep"])], "deep", [], [info("deep", None)])
    flat = helper.make_graph([node("Identity", ["a"], ["flat"])], "flat", [], [info("flat", None)])
    inner = node("If", ["c"], ["inner"], then_branch=deep, else_branch=flat)
    then = helper.make_graph([inner], "then", [], [info("inner", None)])
    model = branching()
    (conditional,) = [n for n in model.graph.node if n.op_type == "If"]
    for attribute in conditional.attribute:
        if attribute.name == "then_branch":
            attribute.g.CopyFrom(then)
    seen = kept(model, ["deep", "inner", "flat"], [{"x": np.array([3.0], np.float32)}], budget=1)
    assert {name: [v.tolist() for v in values] for name, values in seen.items()} == {
        "deep": [[6.0]],
        "inner": [[6.0]],
        "flat": [[]],
    }


def test_a_tensor_within_another_operators_graph_is_refused() -> None:
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["inside"])], "b", [], [info("inside", None)])
    node = helper.make_node("Repeat", ["x"], ["y"], domain="my.own", body=body)
    model = model_of([node], [info("x", ["N"])], ["y"])
    with pytest.raises(CalibrationError, match="'inside' is within Repeat"):
        observe(model, ["inside"], [{"x": np.ones(1, np.float32)}], MinMax)


def test_a_loop_runs_across_a_cut() -> None:
    node = helper.make_node
    body = helper.make_graph(
        [node("Add", ["carried", "step"], ["next"]), node("Identity", ["go"], ["go_on"])],
        "body",
        [info("n", [], TensorProto.INT64), info("go", [], TensorProto.BOOL), info("carried", None)],
        [info("go_on", [], TensorProto.BOOL), info("next", None)],
    )
    model = model_of(
        [
            node("Relu", ["x"], ["start"]),
            node("Mul", ["x", "x"], ["step"]),
            node("Loop", ["times", "", "start"], ["end"], body=body),
            node("Neg", ["end"], ["y"]),
        ],
        [info("x", ["N"])],
        ["y"],
        {"times": np.array(3, np.int64)},
    )
    seen = kept(model, ["start", "step", "end", "y", "next"], [{"x": np.array([2.0], np.float32)}], budget=1)
    assert seen["end"][0].tolist() == [14.0]
    assert seen["next"][0].tolist() == [[6.0], [10.0], [14.0]]


def test_every_step_of_a_scan_is_observed() -> None:
    node = helper.make_node
    body = helper.make_graph(
        [node("Add", ["sum", "element"], ["next"]), node("Mul", ["next", "next"], ["square"])],
        "body",
        [info("sum", [1]), info("element", [1])],
        [info("next", [1]), info("square", [1])],
    )
    scan = node("Scan", ["zero", "x"], ["total", "squares"], body=body, num_scan_inputs=1, scan_output_axes=[0])
    model = model_of([scan], [info("x", ["N", 1])], ["total", "squares"], {"zero": np.zeros(1, np.float32)})
    seen = kept(model, ["next", "squares"], [{"x": np.array([[1.0], [2.0]], np.float32)}])
    assert seen["next"][0].tolist() == [[1.0], [3.0]]
    assert seen["squares"][0].tolist() == [[1.0], [9.0]]


@pytest.mark.parametrize("budget", [1, 1 << 30])
def test_a_sequence_is_not_cut_through(budget: int) -> None:
    node = helper.make_node
    model = model_of(
        [
            node("Relu", ["x"], ["a"]),
            node("SplitToSequence", ["a"], ["pieces"], axis=0, keepdims=1),
            node("Neg", ["x"], ["b"]),
            node("ConcatFromSequence", ["pieces"], ["c"], axis=0),
            node("Add", ["b", "c"], ["y"]),
        ],
        [info("x", ["N"])],
        ["y"],
    )
    seen = kept(model, ["a", "b", "c", "y"], [{"x": np.array([1.0, -2.0], np.float32)}], budget=budget)
    assert seen["c"][0].tolist() == [1.0, 0.0]
    assert seen["y"][0].tolist() == [0.0, 2.0]


def test_the_names_a_branch_makes_itself_are_not_read_from_outside() -> None:
    (conditional,) = [n for n in branching().graph.node if n.op_type == "If"]
    assert node_inputs(conditional) == {"c", "a", "two"}


# ---- size -----------------------------------------------------------------------------------------------------


def test_weights_in_a_file_are_found(tmp_path: Path) -> None:
    batches = pictures(2, 8, 8)
    expected = observe(small_net(), TENSORS, batches, MinMax).state()
    path = tmp_path / "sub" / "m.onnx"
    path.parent.mkdir()
    onnx.save(small_net(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    assert observe(path, TENSORS, batches, MinMax, budget=1).state() == expected


def test_a_missing_file_of_weights_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small_net(), path, save_as_external_data=True, location="m.data", size_threshold=0)
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match=r"m\.onnx: the weights '\w+' cannot be read"):
        observe(path, TENSORS, pictures(1, 8, 8), MinMax)


def test_large_weights_go_through_a_file_and_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = pictures(2, 8, 8)
    expected = observe(small_net(), TENSORS, batches, MinMax).state()
    monkeypatch.setattr(observe_module, "EXTERNAL_FROM", 0)
    monkeypatch.setattr(observe_module, "_SMALL", 17)
    model = small_net()
    before = model.SerializeToString(deterministic=True)
    assert observe(model, TENSORS, batches, MinMax, budget=1).state() == expected
    assert model.SerializeToString(deterministic=True) == before


def test_no_temporary_file_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(observe_module, "EXTERNAL_FROM", 0)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    observe(small_net(), TENSORS, pictures(1, 8, 8), MinMax)
    with pytest.raises(DataError):
        observe(small_net(), TENSORS, [], MinMax)
    assert list(tmp_path.iterdir()) == []


def test_the_pieces_hold_the_budget() -> None:
    model = small_net()
    n_bytes = dict.fromkeys(TENSORS, 100)
    pieces = cut(model, TENSORS[1:], n_bytes, 250)
    assert [len(p.shown) for p in pieces] == [2, 2, 2, 2]
    assert sorted(name for p in pieces for name in p.shown) == sorted(TENSORS[1:])
    made = {name for p in pieces for i in p.nodes for name in model.graph.node[i].output}
    assert "unused" not in made


# ---- what goes wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
def test_what_is_not_finite_is_named_with_tensor_and_sample(bad: float) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Sqrt", ["a"], ["y"])]
    model = model_of(nodes, [info("x", ["N"])], ["y"])
    fine, broken = np.array([-1.0], np.float32), np.array([1.0 if np.isnan(bad) else -np.inf], np.float32)
    batches = [Batch({"x": fine}, "cat.jpg", 1), Batch({"x": broken}, "dog.jpg", 1)]
    with pytest.raises(CalibrationError, match=r"tensor '[ay]' on dog\.jpg: 1 of 1 values are not finite"):
        observe(model, ["a", "y"], batches, MinMax)


def test_a_tensor_that_is_not_there_is_named() -> None:
    with pytest.raises(CalibrationError, match="tensor 'nowhere' is not in the model"):
        observe(small_net(), ["s", "nowhere"], pictures(1, 8, 8), MinMax)


def test_a_batch_without_an_input_is_named() -> None:
    with pytest.raises(DataError, match="batch 0: no data for input 'x'"):
        observe(small_net(), ["s"], [{"y": np.zeros(1, np.float32)}], MinMax)


def test_a_batch_that_does_not_run_is_named() -> None:
    batches = [Batch({"x": np.zeros((1, 4, 8, 8), np.float32)}, "four.npz", 1)]
    with pytest.raises(DataError, match=r"four\.npz: the model does not run on it: .*"):
        observe(small_net(), ["s"], batches, MinMax)


def test_no_batch_is_an_error() -> None:
    with pytest.raises(DataError, match="no batch of data"):
        observe(small_net(), ["s"], [], MinMax)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x08\x08\x12"], ids=["empty", "text", "cut"])
def test_a_file_that_is_no_model_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises((ModelError, CalibrationError)):
        observe(tmp_path / "m.onnx", ["s"], pictures(1, 8, 8), MinMax)


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.onnx: cannot be read"):
        observe(tmp_path / "absent.onnx", ["s"], pictures(1, 8, 8), MinMax)


def test_an_operator_that_onnxruntime_lacks_is_named() -> None:
    node = helper.make_node("NoSuchOperator", ["x"], ["y"], domain="my.own")
    model = model_of([node], [info("x", ["N"])], ["y"])
    model.opset_import.append(helper.make_opsetid("my.own", 1))
    with pytest.raises(ModelError, match=r"onnxruntime does not take the model: .*NoSuchOperator"):
        observe(model, ["y"], [{"x": np.ones(1, np.float32)}], MinMax)


# ---- progress, interruption, going on --------------------------------------------------------------------------


def test_progress_tells_batches_and_total() -> None:
    told: list[tuple[int, int | None, str]] = []
    observe(small_net(), ["s"], pictures(3, 8, 8), MinMax, n_batches=3, progress=lambda *a: told.append(a))
    assert told == [(1, 3, "calibrating"), (2, 3, "calibrating"), (3, 3, "calibrating")]


def test_it_goes_on_where_it_was() -> None:
    batches = pictures(4, 8, 8)
    half = observe(small_net(), TENSORS, batches[:2], CALIBRATORS["percentile"])
    resumed = Observations.from_state(half.state(), CALIBRATORS["percentile"])
    observe(small_net(), TENSORS, batches, CALIBRATORS["percentile"], into=resumed)
    assert resumed.state() == observe(small_net(), TENSORS, batches, CALIBRATORS["percentile"]).state()


def test_an_interrupt_falls_between_two_batches() -> None:
    class Interrupting(MinMax):
        def observe(self, x: Array) -> None:
            signal.raise_signal(signal.SIGINT)
            super().observe(x)

    def batches() -> Iterator[dict[str, Array]]:
        yield from pictures(3, 8, 8)

    seen = Observations()
    with pytest.raises(KeyboardInterrupt):
        observe(small_net(), TENSORS, batches(), Interrupting, into=seen)
    assert seen.n_batches == 1
    assert seen.state()["observers"] == observe(small_net(), TENSORS, pictures(1, 8, 8), MinMax).state()["observers"]


def test_values_are_not_copied_on_their_way() -> None:
    with Instrumented(small_net(), ["c1", "r1"]) as instrumented:
        for _, value in instrumented.run(pictures(1, 8, 8)[0]):
            assert not value.flags.owndata
