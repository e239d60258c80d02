# SPDX-License-Identifier: Apache-2.0
"""Folds: fewer nodes, the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.quantizing import Array, conv, conv_constants, model, run
from wia_quant.folding import fold
from wia_quant.graph import Model, load
from wia_quant.opset import raise_opset

RNG = np.random.default_rng(5)


def floats(*shape: int) -> Array:
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, dtype=np.int64)


BN = {"g": floats(4), "be": floats(4), "m": floats(4), "v": floats(4)}


def bn(x: str, y: str, name: str = "bn") -> onnx.NodeProto:
    return helper.make_node("BatchNormalization", [x, "g", "be", "m", "v"], [y], name)


@dataclass(frozen=True)
class Case:
    """``nodes`` on "x"; after folding the op_types are ``left``."""

    name: str
    nodes: Sequence[onnx.NodeProto]
    left: Sequence[str]
    constants: dict[str, Array] = field(default_factory=dict)
    shape: Sequence[int | str] = (2, 3, 6, 6)
    opset: int = 17


CONV = conv_constants("c", (4, 3, 3, 3))
CASES = [
    Case("Conv and BatchNormalization", [conv("c", "x", "a"), bn("a", "y")], ["Conv"], CONV | BN),
    Case(
        "Conv without bias and BatchNormalization",
        [helper.make_node("Conv", ["x", "c.w"], ["a"], "c"), bn("a", "y")],
        ["Conv"],
        {"c.w": CONV["c.w"]} | BN,
    ),
    Case(
        "Conv, scale, shift",
        [conv("c", "x", "a"), helper.make_node("Mul", ["s", "a"], ["b"]), helper.make_node("Add", ["b", "t"], ["y"])],
        ["Conv"],
        CONV | {"s": floats(1), "t": floats(4, 1, 1)},
    ),
    Case(
        "Conv subtracted from a constant and divided",
        [conv("c", "x", "a"), helper.make_node("Sub", ["t", "a"], ["b"]), helper.make_node("Div", ["b", "s"], ["y"])],
        ["Conv"],
        CONV | {"t": floats(1, 4, 1, 1), "s": np.float32(3)},
    ),
    Case(
        "ConvTranspose with groups, bias and BatchNormalization",
        [
            helper.make_node("ConvTranspose", ["x", "w"], ["a"], "c", group=2, strides=[2, 2]),
            helper.make_node("Add", ["a", "t"], ["b"]),
            bn("b", "y"),
        ],
        ["ConvTranspose"],
        {"w": floats(4, 2, 2, 2), "t": floats(1, 4, 1, 1)} | BN,
        (2, 4, 6, 6),
    ),
    Case(
        "Gemm, transB, alpha, beta, scalar bias and BatchNormalization",
        [helper.make_node("Gemm", ["x", "w", "t"], ["a"], "c", transB=1, alpha=0.5, beta=2.0), bn("a", "y")],
        ["Gemm"],
        {"w": floats(4, 3), "t": floats(1)} | BN,
        (5, 3),
    ),
    Case(
        "MatMul, bias and scale",
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], "c"),
            helper.make_node("Add", ["t", "a"], ["b"]),
            helper.make_node("Mul", ["b", "s"], ["y"]),
        ],
        ["MatMul", "Add"],
        {"w": floats(3, 4), "t": floats(4), "s": floats(4)},
        (2, 5, 3),
    ),
    Case(
        "MatMul and BatchNormalization",
        [helper.make_node("MatMul", ["x", "w"], ["a"], "c"), bn("a", "y")],
        ["MatMul", "Add"],
        {"w": floats(3, 4)} | BN,
        (5, 3),
    ),
    Case(
        "BatchNormalization alone becomes a depthwise Conv",
        [helper.make_node("Relu", ["x"], ["a"]), bn("a", "y")],
        ["Relu", "Conv"],
        BN,
        (2, 4, 3, 3),
    ),
    Case(
        "a scale over another axis than the channels stays",
        [conv("c", "x", "a"), helper.make_node("Mul", ["a", "s"], ["y"], "m")],
        ["Conv", "Mul"],
        CONV | {"s": floats(4)},
        (2, 3, 6, 6),
    ),
    Case(
        "a product read twice is not scaled",
        [conv("c", "x", "a"), helper.make_node("Mul", ["a", "s"], ["b"]), helper.make_node("Add", ["a", "b"], ["y"])],
        ["Conv", "Mul", "Add"],
        CONV | {"s": floats(1)},
    ),
    Case(
        "zero padding before a Conv",
        [helper.make_node("Pad", ["x", "p"], ["a"]), conv("c", "a", "y", pads=[1, 0, 0, 0])],
        ["Conv"],
        CONV | {"p": ints(0, 0, 0, 1, 0, 0, 1, 2)},
    ),
    Case(
        "padding with another value stays",
        [helper.make_node("Pad", ["x", "p", "v"], ["a"]), conv("c", "a", "y")],
        ["Pad", "Conv"],
        CONV | {"p": ints(0, 0, 1, 1, 0, 0, 1, 1), "v": np.float32(1)},
    ),
    Case(
        "padding of channels stays",
        [helper.make_node("Pad", ["x", "p"], ["a"]), conv("c", "a", "y")],
        ["Pad", "Conv"],
        {**conv_constants("c", (4, 4, 3, 3)), "p": ints(0, 1, 0, 0, 0, 0, 0, 0)},
    ),
    Case(
        "a padding that is computed",
        [
            helper.make_node(
                "ConstantOfShape", ["four"], ["z"], value=helper.make_tensor("v", TensorProto.INT64, [1], [0])
            ),
            helper.make_node("Concat", ["half", "z"], ["p8"], axis=0),
            helper.make_node("Reshape", ["p8", "m2"], ["p2"]),
            helper.make_node("Slice", ["p2", "start", "end", "ax", "step"], ["r"]),
            helper.make_node("Transpose", ["r"], ["t"], perm=[1, 0]),
            helper.make_node("Reshape", ["t", "m1"], ["p"]),
            helper.make_node("Cast", ["p"], ["pi"], to=TensorProto.INT64),
            helper.make_node("Pad", ["x", "pi"], ["a"]),
            conv("c", "a", "y"),
        ],
        ["Conv"],
        CONV
        | {"four": ints(4), "half": ints(1, 1, 1, 1), "m2": ints(-1, 2), "m1": ints(-1)}
        | {"start": ints(-1), "end": ints(-9), "ax": ints(0), "step": ints(-1)},
    ),
    Case(
        "a target shape with a dynamic batch",
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Gather", ["s", "zero"], ["n"]),
            helper.make_node("Unsqueeze", ["n", "ax"], ["n1"]),
            helper.make_node("Concat", ["n1", "rest"], ["t"], axis=0),
            helper.make_node("Reshape", ["x", "t"], ["y"], "r"),
        ],
        ["Flatten"],
        {"zero": np.int64(0), "ax": ints(0), "rest": ints(-1)},
        ("N", 3, 6, 6),
    ),
    Case(
        "a mean of the picture and its vector, as torch writes them",
        [
            helper.make_node("ReduceMean", ["x", "hw"], ["m"], "m", keepdims=1),
            helper.make_node("Reshape", ["m", "t"], ["y"], "r", allowzero=1),
        ],
        ["GlobalAveragePool", "Flatten"],
        {"hw": ints(-1, 2), "t": ints(-1, 3)},
        ("N", 3, 6, 6),
        opset=18,
    ),
    Case(
        "a mean over one axis, and a Reshape that moves values between samples",
        [
            helper.make_node("ReduceMean", ["x", "w"], ["m"], "m", keepdims=1),
            helper.make_node("Reshape", ["m", "t"], ["y"], "r"),
        ],
        ["ReduceMean", "Reshape"],
        {"w": ints(3), "t": ints(-1, 9)},
        ("N", 3, 6, 6),
        opset=18,
    ),
    Case(
        "arithmetic on dimensions",
        [
            helper.make_node("Shape", ["x"], ["s"]),
            helper.make_node("Slice", ["s", "two", "four", "zero"], ["hw"]),
            helper.make_node("Mul", ["hw", "two"], ["hw2"]),
            helper.make_node("Div", ["hw2", "two"], ["same"]),
            helper.make_node("Slice", ["s", "zero", "two", "zero"], ["nc"]),
            helper.make_node("Concat", ["nc", "same"], ["t"], axis=0),
            helper.make_node("Resize", ["x", "", "", "t"], ["a"], "resize"),
            helper.make_node("Relu", ["a"], ["y"]),
        ],
        ["Resize", "Relu"],
        {"zero": ints(0), "two": ints(2), "four": ints(4)},
    ),
    Case(
        "Identity and Dropout",
        [
            helper.make_node("Identity", ["x"], ["a"]),
            helper.make_node("Dropout", ["a"], ["b"]),
            helper.make_node("Relu", ["b"], ["c"]),
            helper.make_node("Identity", ["c"], ["y"]),
        ],
        ["Relu"],
    ),
    Case(
        "a weight behind Transpose and Cast from float16",
        [
            helper.make_node("Cast", ["h"], ["w32"], to=TensorProto.FLOAT),
            helper.make_node("Transpose", ["w32"], ["w"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", "w"], ["y"], "c"),
        ],
        ["MatMul"],
        {"h": floats(4, 3).astype(np.float16)},
        (5, 3),
    ),
    Case(
        "Constant nodes of every kind",
        [
            helper.make_node("Constant", [], ["k"], value_float=2.0),
            helper.make_node("Constant", [], ["l"], value_floats=[1.0] * 6),
            helper.make_node("Mul", ["x", "k"], ["a"]),
            helper.make_node("Add", ["a", "l"], ["y"]),
        ],
        ["Mul", "Add"],
    ),
]


def folded(proto: onnx.ModelProto, keep: frozenset[str] = frozenset()) -> Model:
    loaded = raise_opset(load(proto), 13)
    fold(loaded, keep)
    return loaded


@pytest.fixture(params=CASES, ids=lambda c: c.name)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def build(case: Case) -> onnx.ModelProto:
    return model(case.nodes, {"x": case.shape}, ["y"], case.constants, opset=case.opset)


def test_it_folds_to_what_it_should(case: Case) -> None:
    assert [n.op_type for _, n in folded(build(case)).nodes()] == list(case.left)


def test_it_computes_the_same(case: Case) -> None:
    proto = build(case)
    shape = [2 if isinstance(d, str) else d for d in case.shape]
    feeds = {"x": RNG.standard_normal(shape).astype(np.float32)}
    before, after = run(proto, feeds)[0], run(folded(proto).to_proto(), feeds)[0]
    # Two roundings of weight and bias, and sums in another order.
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=1e-4)


def test_names_of_inputs_and_outputs_stay(case: Case) -> None:
    proto, after = build(case), folded(build(case)).to_proto()
    assert [i.name for i in after.graph.input] == [i.name for i in proto.graph.input]
    assert [o.name for o in after.graph.output] == [o.name for o in proto.graph.output]


def test_a_node_to_keep_is_left_alone() -> None:
    proto = build(CASES[0])
    assert [n.op_type for _, n in folded(proto, frozenset({"bn"})).nodes()] == ["Conv", "BatchNormalization"]


def test_initializers_that_are_also_inputs_become_constants() -> None:
    proto = build(CASES[0])
    proto.graph.input.append(helper.make_tensor_value_info("c.w", TensorProto.FLOAT, [4, 3, 3, 3]))
    after = folded(proto)
    assert [i.name for i in after.main.inputs] == ["x"]
    assert [n.op_type for _, n in after.nodes()] == ["Conv"]


def test_a_large_constant_is_not_spelled_out() -> None:
    nodes = [
        helper.make_node("Expand", ["k", "s"], ["big"]),
        helper.make_node("Add", ["x", "big"], ["y"], "add"),
    ]
    proto = model(nodes, {"x": [1, 1]}, ["y"], {"k": floats(1), "s": ints(1000, 1000)})
    assert [n.op_type for _, n in folded(proto).nodes()] == ["Expand", "Add"]


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12, 13, 18, 21])
def test_every_opset_from_seven_on_is_raised_only_as_far_as_needed(opset: int) -> None:
    nodes = [
        conv("c", "x", "a"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Reshape", ["b", "s"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=1),
    ]
    proto = model(nodes, {"x": [1, 3, 6, 6]}, ["y"], CONV | {"s": ints(1, -1)}, opset=opset, ir_version=10)
    raised = folded(proto)
    assert raised.opset == max(opset, 13)
    feeds = {"x": RNG.standard_normal((1, 3, 6, 6)).astype(np.float32)}
    np.testing.assert_allclose(run(raised.to_proto(), feeds)[0], run(proto, feeds)[0], rtol=1e-5, atol=1e-6)


def test_softmax_over_the_last_axis_stays_one_node_when_raised() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Softmax", ["t"], ["y"], "s", axis=2),
    ]
    after = folded(model(nodes, {"x": ["a", "b", "c"]}, ["y"], opset=11))
    assert [n.op_type for _, n in after.nodes()] == ["Transpose", "Softmax"]


def test_a_replaced_node_keeps_its_name() -> None:
    nodes = [
        helper.make_node("Upsample", ["x", "s"], ["u"], "up", mode="nearest"),
        helper.make_node("Relu", ["u"], ["y"]),
    ]
    after = folded(model(nodes, {"x": [1, 1, 2, 2]}, ["y"], {"s": np.array([1, 1, 2, 2], np.float32)}, opset=9))
    assert [(n.op_type, n.name) for _, n in after.nodes()] == [("Resize", "up"), ("Relu", "Relu_1")]
