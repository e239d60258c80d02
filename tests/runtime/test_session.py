# SPDX-License-Identifier: Apache-2.0
"""Session behaves as onnxruntime's InferenceSession does, and says what is wrong in one line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh
from onnx.reference import ReferenceEvaluator

from wia_quant.errors import ModelError, RuntimeFault, UnsupportedError, UsageError
from wia_quant.runtime import Session

CORPUS = Path(__file__).parent / "corpus"
OPSET = 18


def info(name: str, shape: list[int | str], dtype: int = T.FLOAT) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, dtype, shape)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[onnx.TensorProto] | None = None,
    opset: int = OPSET,
    ir_version: int = 9,
) -> onnx.ModelProto:
    graph = h.make_graph(nodes, "g", inputs, outputs, initializers or [])
    return h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=ir_version)


def relu() -> Session:
    nodes = [h.make_node("Relu", ["x"], ["y"], name="the_relu")]
    return Session(model(nodes, [info("x", ["batch", 3])], [info("y", ["batch", 3])]).SerializeToString())


def floats(shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def run_both(proto: onnx.ModelProto, feed: dict[str, npt.NDArray[np.generic]]) -> None:
    """libwia and onnx.reference agree: integers exactly, floats to a few rounding steps."""
    got = Session(proto.SerializeToString()).run(None, feed)
    wanted = ReferenceEvaluator(proto).run(None, feed)
    for g, w in zip(got, wanted, strict=True):
        assert g.dtype == w.dtype
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=1e-6, atol=1e-6)


# ---- names, types, shapes


def test_ports_are_those_of_onnxruntime() -> None:
    (x,) = relu().get_inputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["batch", 3])
    (y,) = relu().get_outputs()
    assert (y.name, y.type) == ("y", "tensor(float)")


def test_outputs_come_in_the_order_asked_for() -> None:
    nodes = [h.make_node("Relu", ["x"], ["a"]), h.make_node("Neg", ["x"], ["b"])]
    s = Session(model(nodes, [info("x", [1])], [info("a", [1]), info("b", [1])]).SerializeToString())
    x = {"x": np.float32([2])}
    assert [v.tolist() for v in s.run(["b", "a"], x)] == [[-2], [2]]
    assert [v.tolist() for v in s.run(["b"], x)] == [[-2]]
    assert [v.tolist() for v in s.run(None, x)] == [[2], [-2]]


@pytest.mark.parametrize(
    ("feed", "message"),
    [
        ({"z": np.zeros((1, 3), np.float32)}, "input 'z': the model has no such input; it has 'x'"),
        ({}, "input 'x' is missing"),
        ({"x": np.zeros((1, 3))}, "input 'x': expected elements of float32, got float64"),
        ({"x": np.zeros((1, 3), np.int64)}, "input 'x': expected elements of float32, got int64"),
        ({"x": np.zeros(3, np.float32)}, r"input 'x': expected shape \[batch, 3\], got \[3\]"),
        ({"x": np.zeros((2, 4), np.float32)}, r"input 'x': expected shape \[batch, 3\], got \[2, 4\]"),
        ({"x": np.array([["a", "b", "c"]])}, "input 'x': arrays of str.* are not supported"),
    ],
    ids=["unknown", "missing", "float64", "int64", "rank", "size", "strings"],
)
def test_an_input_that_does_not_fit_is_named(feed: dict[str, npt.NDArray[np.generic]], message: str) -> None:
    with pytest.raises(RuntimeFault, match=message):
        relu().run(None, feed)


def test_an_output_that_is_not_there_is_named() -> None:
    with pytest.raises(RuntimeFault, match="output 'q': the model has no such output; it has 'y'"):
        relu().run(["q"], {"x": np.zeros((1, 3), np.float32)})


def test_a_session_goes_on_after_an_error() -> None:
    s = relu()
    with pytest.raises(RuntimeFault):
        s.run(None, {"x": np.zeros((2, 4), np.float32)})
    assert s.run(None, {"x": np.float32([[-1, 0, 1]])})[0].tolist() == [[0, 0, 1]]


def test_arrays_of_any_layout_are_taken() -> None:
    x = floats((6, 5))
    s = relu()
    for view in (x[::2, 1:4], x.T[:3, :3], np.asfortranarray(x[:, :3]), x[:, :3][::-1]):
        np.testing.assert_array_equal(s.run(None, {"x": view})[0], np.maximum(view, 0))
    big_endian = x[:, :3].astype(">f4")
    np.testing.assert_array_equal(s.run(None, {"x": big_endian})[0], np.maximum(x[:, :3], 0))


def test_results_stay_when_the_session_runs_again_or_goes() -> None:
    s = relu()
    first = s.run(None, {"x": np.float32([[1, 2, 3]])})[0]
    s.run(None, {"x": np.float32([[7, 8, 9]])})
    del s
    assert first.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    "make", [lambda p: str(p), lambda p: p, lambda p: p.read_bytes()], ids=["str", "path", "bytes"]
)
def test_models_come_from_paths_and_bytes(make: Callable[[Path], str | bytes]) -> None:
    out = Session(make(CORPUS / "elementwise.onnx")).run(None, {"x": np.float32([[-1, 2, 9]])})
    assert out[0].tolist() == [[0, 2, 6]]


# ---- what cannot be loaded


def test_every_missing_operator_is_listed_at_once() -> None:
    nodes = [
        h.make_node("Relu", ["x"], ["a"]),
        h.make_node("Frobnicate", ["a"], ["b"], name="n1"),
        h.make_node("Frobnicate", ["b"], ["c"], name="n2"),
        h.make_node("Gizmo", ["c"], ["y"], name="n3", domain="com.example"),
    ]
    proto = model(nodes, [info("x", [1])], [info("y", [1])])
    proto.opset_import.append(h.make_opsetid("com.example", 1))
    with pytest.raises(UnsupportedError) as error:
        Session(proto.SerializeToString())
    assert "Frobnicate of domain 'ai.onnx' (2 nodes: 'n1', 'n2')" in str(error.value)
    assert "Gizmo of domain 'com.example' (1 node: 'n3')" in str(error.value)


def test_operators_of_our_own_domain_are_not_taken_from_files() -> None:
    proto = model([h.make_node("QConv", ["x"], ["y"], domain="wia")], [info("x", [1])], [info("y", [1])])
    proto.opset_import.append(h.make_opsetid("wia", 1))
    with pytest.raises(ModelError, match="may not be in a file"):
        Session(proto.SerializeToString())


def test_a_message_may_quote_what_is_not_text() -> None:
    """An attribute's bytes came through as UnicodeDecodeError."""
    node = h.make_node("Resize", ["x", "", "s"], ["y"], name="r")
    node.attribute.append(onnx.AttributeProto(name="mode", type=onnx.AttributeProto.STRING, s=b"\xff\xfe"))
    proto = model(
        [node], [info("x", [1, 1, 2, 2])], [info("y", [1, 1, 4, 4])], [nh.from_array(np.float32([1, 1, 2, 2]), "s")]
    )
    with pytest.raises((ModelError, UnsupportedError), match="Resize 'r'"):
        Session(proto.SerializeToString())


@pytest.mark.parametrize(
    ("source", "message"),
    [("/nowhere/m.onnx", "no such file"), (b"", "not a valid ONNX file"), (b"hello", "not a valid ONNX file")],
    ids=["no-file", "empty", "text"],
)
def test_what_is_no_model_is_a_model_error(source: str | bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Session(source)


def test_the_path_is_in_the_message(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes((CORPUS / "convolution.onnx").read_bytes()[:300])
    with pytest.raises(ModelError, match=r"broken\.onnx: not a valid ONNX file.*truncated"):
        Session(path)


def test_threads_below_one_are_a_usage_error() -> None:
    with pytest.raises(UsageError, match="from 1 to 1024, not 0"):
        Session(CORPUS / "elementwise.onnx", threads=0)


def test_more_memory_than_the_limit_is_an_error() -> None:
    nodes = [h.make_node("Expand", ["x", "shape"], ["e"]), h.make_node("Relu", ["e"], ["y"])]
    proto = model(nodes, [info("x", [1]), info("shape", [1], T.INT64)], [info("y", ["n"])])
    s = Session(proto.SerializeToString(), memory_limit=1 << 20)
    x = np.ones(1, np.float32)
    assert s.run(None, {"x": x, "shape": np.array([1000])})[0].shape == (1000,)
    with pytest.raises(RuntimeFault, match="memory limit of 1048576 bytes"):
        s.run(None, {"x": x, "shape": np.array([1 << 30])})


# ---- external data


def test_external_data_lies_beside_the_model(tmp_path: Path) -> None:
    weights = nh.from_array(floats((64, 64)), "w")
    proto = model([h.make_node("MatMul", ["x", "w"], ["y"])], [info("x", [1, 64])], [info("y", [1, 64])], [weights])
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    x = floats((1, 64), 1)
    got = Session(tmp_path / "m.onnx").run(None, {"x": x})[0]
    np.testing.assert_allclose(got, x @ nh.to_array(weights), rtol=1e-5, atol=1e-5)
    with pytest.raises(ModelError, match=r"tensor 'w': external data 'm\.data'.*model in memory"):
        Session((tmp_path / "m.onnx").read_bytes())
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match=r"m\.onnx: tensor 'w': external data 'm\.data': no such file"):
        Session(tmp_path / "m.onnx")


# ---- shapes


def test_many_shapes_in_turn_do_not_mix() -> None:
    """More shapes than plans are kept, forwards and back."""
    s = Session(CORPUS / "shapes.onnx")
    for n in [*range(1, 13), *range(12, 0, -1), 3, 3, 300]:
        x = floats((n, 6), n)
        np.testing.assert_array_equal(s.run(None, {"x": x})[0], x.reshape(n, 2, 3).transpose(0, 2, 1))


def test_chains_of_shapes_are_computed_when_planning() -> None:
    s = Session(CORPUS / "shapes.onnx")
    s.run(None, {"x": floats((4, 6))})
    kinds = {node["op_type"]: node["kind"] for node in s.describe()["nodes"]}
    assert kinds["Shape"] == kinds["Gather"] == kinds["Concat"] == "folded"
    assert kinds["Reshape"] == "alias"


def test_an_empty_batch_runs() -> None:
    assert relu().run(None, {"x": np.zeros((0, 3), np.float32)})[0].shape == (0, 3)


def test_shapes_that_depend_on_contents() -> None:
    x = floats((7, 3))
    x[::2] = 0
    got = Session(CORPUS / "data_dependent.onnx").run(None, {"x": x})[0]
    np.testing.assert_array_equal(got, np.maximum(x[x != 0], 0))
    none = Session(CORPUS / "data_dependent.onnx").run(None, {"x": np.zeros((2, 3), np.float32)})[0]
    assert none.shape == (0,)


def test_initializers_that_are_also_inputs_are_constants() -> None:
    w = nh.from_array(np.float32([10]), "w")
    nodes = [h.make_node("Add", ["x", "w"], ["y"])]
    proto = model(nodes, [info("x", [1]), info("w", [1])], [info("y", [1])], [w], opset=8, ir_version=3)
    s = Session(proto.SerializeToString())
    assert [i.name for i in s.get_inputs()] == ["x"]
    assert s.run(None, {"x": np.float32([1])})[0].tolist() == [11]


def test_an_input_or_constant_that_is_an_output_is_a_copy() -> None:
    nodes = [h.make_node("Identity", ["x"], ["y"]), h.make_node("Identity", ["w"], ["v"])]
    w = nh.from_array(np.float32([4, 5]), "w")
    outs = [info("y", [2]), info("x", [2]), info("v", [2]), info("w", [2]), info("y", [2])]
    s = Session(model(nodes, [info("x", [2])], outs[:4], [w]).SerializeToString())
    x = np.float32([1, 2])
    first = s.run(None, {"x": x})
    for array in first:
        array += 100
    assert x.tolist() == [1, 2]
    assert [a.tolist() for a in s.run(None, {"x": x})] == [[1, 2], [1, 2], [4, 5], [4, 5]]


def test_two_outputs_of_the_same_memory_are_apart() -> None:
    nodes = [
        h.make_node("Neg", ["x"], ["n"]),
        h.make_node("Reshape", ["n", "s"], ["a"]),
        h.make_node("Identity", ["n"], ["b"]),
    ]
    s = nh.from_array(np.array([4]), "s")
    proto = model(nodes, [info("x", [2, 2])], [info("a", [4]), info("b", [2, 2]), info("n", [2, 2])], [s])
    a, b, n = Session(proto.SerializeToString()).run(None, {"x": np.float32([[1, 2], [3, 4]])})
    a[:] = 0
    assert b.tolist() == n.tolist() == [[-1, -2], [-3, -4]]


def test_memory_is_planned_and_reused() -> None:
    nodes = [h.make_node("MatMul", [f"t{i}", "w"], [f"t{i + 1}"]) for i in range(20)]
    w = nh.from_array(np.eye(64, dtype=np.float32), "w")
    proto = model(nodes, [info("t0", [64, 64])], [info("t20", [64, 64])], [w])
    s = Session(proto.SerializeToString())
    x = floats((64, 64))
    np.testing.assert_array_equal(s.run(None, {"t0": x})[0], x)
    scratch = s.describe()["arena_bytes"] - 2 * x.nbytes
    assert scratch < 3 * x.nbytes, "twenty intermediates lie in the memory of two"


# ---- subgraphs


def loop_model(trips: int | None, cond: bool | None) -> onnx.ModelProto:
    """Doubles x each trip; stops by condition when the sum passes a limit captured from outside."""
    body = h.make_graph(
        [
            h.make_node("Add", ["v", "v"], ["next"]),
            h.make_node("ReduceSum", ["next"], ["sum"], keepdims=0),
            h.make_node("Less", ["sum", "limit"], ["go_on"]),
            h.make_node("Identity", ["next"], ["seen"]),
        ],
        "body",
        [info("i", [], T.INT64), info("c", [], T.BOOL), info("v", [2])],
        [info("go_on", [], T.BOOL), info("next", [2]), info("seen", [2])],
    )
    inputs = ["m" if trips is not None else "", "k" if cond is not None else "", "x"]
    initializers = []
    if trips is not None:
        initializers.append(nh.from_array(np.int64(trips), "m"))
    if cond is not None:
        initializers.append(nh.from_array(np.bool_(cond), "k"))
    nodes = [h.make_node("Loop", inputs, ["last", "all"], body=body, name="the_loop")]
    ins = [info("x", [2]), info("limit", [])]
    return model(nodes, ins, [info("last", [2]), info("all", ["n", 2])], initializers)


@pytest.mark.parametrize(("trips", "cond"), [(3, None), (None, True), (100, True), (0, None), (5, False)])
def test_loops_end_by_trips_or_condition(trips: int | None, cond: bool | None) -> None:
    last, seen, go_on = np.float32([1, 2]), [], cond is not False
    while go_on and (trips is None or len(seen) < trips):
        last = last * 2
        seen.append(last)
        go_on = bool(last.sum() < 50)
    feed = {"x": np.float32([1, 2]), "limit": np.float32(50)}
    got = Session(loop_model(trips, cond).SerializeToString()).run(None, feed)
    np.testing.assert_array_equal(got[0], last)
    np.testing.assert_array_equal(got[1], np.reshape(seen, (-1, 2)))
    assert got[1].dtype == np.float32


def test_a_loop_without_end_is_stopped() -> None:
    s = Session(loop_model(None, None).SerializeToString(), max_loop_iterations=1000)
    with pytest.raises(RuntimeFault, match="Loop 'the_loop': more than 1000 iterations"):
        s.run(None, {"x": np.float32([0, 0]), "limit": np.float32(1)})


@pytest.mark.parametrize("flag", [True, False])
def test_branches_see_outer_values(flag: bool) -> None:
    then = h.make_graph([h.make_node("Add", ["x", "w"], ["t"])], "then", [], [info("t", [2])])
    other = h.make_graph([h.make_node("Identity", ["z"], ["e"])], "else", [], [info("e", [2])])
    nodes = [
        h.make_node("Neg", ["x"], ["z"]),
        h.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other),
        h.make_node("Relu", ["y"], ["r"]),
    ]
    w = nh.from_array(np.float32([10, 20]), "w")
    proto = model(nodes, [info("x", [2]), info("c", [], T.BOOL)], [info("y", [2]), info("r", [2])], [w])
    run_both(proto, {"x": np.float32([1, -2]), "c": np.array(flag)})


def test_a_branch_whose_condition_is_known_takes_the_nodes_place() -> None:
    then = h.make_graph([h.make_node("Add", ["x", "x"], ["t"])], "then", [], [info("t", [2])])
    other = h.make_graph([h.make_node("Frobnicate", ["x"], ["e"])], "else", [], [info("e", [2])])
    other.node[0].op_type = "Sub"
    other.node[0].input.append("x")
    nodes = [h.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    s = Session(
        model(nodes, [info("x", [2])], [info("y", [2])], [nh.from_array(np.bool_(True), "c")]).SerializeToString()
    )
    assert s.run(None, {"x": np.float32([1, 2])})[0].tolist() == [2, 4]
    assert [n["op_type"] for n in s.describe()["nodes"]] == ["Add"]


def corpus_feed(proto: onnx.ModelProto) -> dict[str, npt.NDArray[np.float32]]:
    dims = {p.name: [d.dim_value or 4 for d in p.type.tensor_type.shape.dim] for p in proto.graph.input}
    return {name: floats(tuple(shape), i) for i, (name, shape) in enumerate(dims.items())}


@pytest.mark.parametrize("name", ["scan", "convolution", "elementwise", "quantized"])
def test_the_corpus_is_what_the_reference_computes(name: str) -> None:
    proto = onnx.load(CORPUS / f"{name}.onnx")
    run_both(proto, corpus_feed(proto))


@pytest.mark.parametrize("name", ["control_flow", "function", "rows"])
def test_the_corpus_is_what_onnxruntime_computes(name: str) -> None:
    """Float models with loops without a condition, linked attributes or a 1-D GlobalMaxPool: no onnx.reference."""
    proto = onnx.load(CORPUS / f"{name}.onnx")
    feed = corpus_feed(proto)
    wanted = ort.InferenceSession(proto.SerializeToString()).run(None, feed)
    for got, want in zip(Session(proto.SerializeToString()).run(None, feed), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_every_element_type_comes_through() -> None:
    proto = onnx.load(CORPUS / "types.onnx")
    for port, array in zip(proto.graph.output, Session(CORPUS / "types.onnx").run(None, {}), strict=True):
        assert array.dtype == h.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        np.testing.assert_array_equal(array.astype(np.float32), [1, 0, 1])


# ---- running


def test_threads_and_runs_give_the_same_bytes() -> None:
    x = {"x": floats((1, 3, 8, 8))}
    results = [
        Session(CORPUS / "convolution.onnx", threads=n).run(None, x)[0].tobytes() for n in (1, 2, 4) for _ in range(2)
    ]
    assert len(set(results)) == 1


def test_runs_from_several_threads_take_turns() -> None:
    s = Session(CORPUS / "shapes.onnx", threads=2)
    wrong = []

    def work(n: int) -> None:
        x = floats((n, 6), n)
        for _ in range(50):
            if not np.array_equal(s.run(None, {"x": x})[0], x.reshape(n, 2, 3).transpose(0, 2, 1)):
                wrong.append(n)

    workers = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3, 4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


def test_profiling_times_each_node() -> None:
    s = Session(CORPUS / "convolution.onnx")
    x = {"x": floats((1, 3, 8, 8))}
    with s.profiling():
        s.run(None, x)
        s.run(None, x)
    s.run(None, x)
    entries = s.profile()
    assert entries
    assert all(e["runs"] == 2 and e["total_ns"] > 0 for e in entries)


def test_describe_knows_declared_shapes_before_the_first_run() -> None:
    d = Session(CORPUS / "convolution.onnx").describe()
    assert d["nodes"][-1]["output_shapes"] == ["float32 [1, 5]"]
    assert d["arena_bytes"] > 0
    assert {"isa", "threads", "weight_bytes"} <= set(d)


def test_an_error_while_running_names_the_node() -> None:
    nodes = [h.make_node("Gather", ["x", "i"], ["y"], name="the_gather")]
    proto = model(nodes, [info("x", [3]), info("i", [1], T.INT64)], [info("y", [1])])
    with pytest.raises(RuntimeFault, match="Gather 'the_gather'"):
        Session(proto.SerializeToString()).run(None, {"x": floats((3,)), "i": np.array([7])})
