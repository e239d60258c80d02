# SPDX-License-Identifier: Apache-2.0
"""Every operator of the table between two convolutions: valid, two executors agree, close to float, reproducible."""
# ruff: noqa: E501 (the table of cases: one line each)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.quantizing import Array, conv, conv_constants, decisions, model, quantized, run
from wia_quant.operators import OPERATORS, Kind


@dataclass(frozen=True)
class Case:
    """``nodes`` make "b" of "a" [2, 4, 8, 8] (and of "a2", another convolution's output).

    Attributes:
        gain: the most by which the nodes amplify an error of their inputs (largest norm).
        shape: the shape of "b" but for its batch, when it is not [4, 8, 8].
        integer: whether the named operator works on integers here.
    """

    op: str
    nodes: Sequence[onnx.NodeProto]
    gain: float = 1.0
    constants: dict[str, Array] = field(default_factory=dict)
    shape: tuple[int, ...] = (4, 8, 8)
    integer: bool = True
    opset: int = 21
    reference: bool = True
    name: str = ""


def node(
    op: str, inputs: Sequence[str] = ("a",), outputs: Sequence[str] = ("b",), **attributes: object
) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), list(outputs), "op", **attributes)


def unary(op: str, gain: float, opset: int = 21, integer: bool = True, **attributes: object) -> Case:
    return Case(op, [node(op, **attributes)], gain, opset=opset, integer=integer)


W = np.random.default_rng(7)
I64 = np.int64
RELU = helper.make_node("Relu", ["a"], ["r"], "relu")  # so that a constant behind it does not fold into the Conv

#: onnx.reference has no DequantizeLinear before; what these models use means the same in both.
OLDEST_REFERENCE = 19

CASES = [
    Case("Conv", [conv("op", "a", "b", pads=[1] * 4)], 9.0, conv_constants("op", (4, 4, 3, 3)), name="Conv 3x3"),
    Case("Conv", [conv("op", "a", "b", pads=[1] * 4, group=4)], 9.0, conv_constants("op", (4, 1, 3, 3)), name="depthwise"),
    Case("Conv", [conv("op", "a", "b", pads=[2] * 4, group=2, dilations=[2, 2])], 9.0, conv_constants("op", (4, 2, 3, 3)), name="groups"),
    Case(
        "ConvTranspose",
        [node("ConvTranspose", ["a", "op.w", "op.b"], strides=[1, 1])],
        9.0,
        {"op.w": (W.standard_normal((4, 4, 1, 1)) / 2).astype("f"), "op.b": W.uniform(-1, 1, 4).astype("f")},
    ),
    Case(
        "ConvTranspose",
        [node("ConvTranspose", ["a", "op.w", "op.b"], group=2)],
        9.0,
        {"op.w": (W.standard_normal((4, 2, 1, 1)) / 2).astype("f"), "op.b": W.uniform(-1, 1, 4).astype("f")},
        reference=False,  # its ConvTranspose has no groups
        name="ConvTranspose groups",
    ),
    Case("MatMul", [node("MatMul", ["a", "w"])], 9.0, {"w": (W.standard_normal((8, 8)) / 3).astype("f")}, name="MatMul weight"),
    Case("MatMul", [node("MatMul", ["a", "a2"])], 60.0, name="MatMul of activations"),
    Case("Add", [node("Add", ["a", "a2"])], 2.0),
    Case("Add", [RELU, node("Add", ["r", "c"])], 1.0, {"c": W.standard_normal((1, 4, 1, 1)).astype("f")}, name="Add constant"),
    Case("Sub", [node("Sub", ["a", "a2"])], 2.0),
    Case("Mul", [node("Mul", ["a", "a2"])], 12.0),
    Case("Mul", [RELU, node("Mul", ["r", "c"])], 2.0, {"c": np.array([[[[0.5]], [[2]], [[1]], [[-1]]]], "f")}, name="Mul constant"),
    Case("Div", [RELU, node("Div", ["r", "c"])], 1.0, {"c": np.float32(4.0)}, name="Div constant"),
    Case("Div", [helper.make_node("Exp", ["a2"], ["h"]), node("Div", ["a", "h"])], 0.0, integer=False),
    unary("Relu", 1.0),
    Case("Clip", [node("Clip", ["a", "lo", "hi"])], 1.0, {"lo": np.float32(0), "hi": np.float32(6)}),
    unary("LeakyRelu", 1.0, alpha=0.1),
    unary("ThresholdedRelu", 8.0, alpha=0.0),
    Case("PRelu", [node("PRelu", ["a", "s"])], 1.0, {"s": np.array([[[0.1]], [[0.2]], [[0.3]], [[0.4]]], "f")}),
    unary("Elu", 1.0),
    unary("Selu", 1.8),
    unary("Celu", 1.0),
    unary("HardSigmoid", 0.2),
    unary("HardSwish", 1.5),
    unary("Sigmoid", 0.25),
    unary("Swish", 1.2, opset=24),
    unary("Tanh", 1.0),
    unary("Gelu", 1.2),
    unary("Mish", 1.2),
    unary("Softplus", 1.0),
    unary("Softsign", 1.0),
    unary("Erf", 1.2),
    unary("Abs", 1.0),
    unary("Neg", 1.0),
    Case("Pow", [node("Pow", ["a", "c"])], 12.0, {"c": np.float32(2)}),
    Case("Min", [node("Min", ["a", "c"])], 1.0, {"c": np.float32(0.5)}),
    Case("Max", [node("Max", ["a", "c"])], 1.0, {"c": np.float32(-0.5)}),
    unary("AveragePool", 1.0, kernel_shape=[3, 3], pads=[1] * 4),
    Case("GlobalAveragePool", [node("GlobalAveragePool")], 1.0, shape=(4, 1, 1)),
    Case("ReduceMean", [node("ReduceMean", ["a", "ax"])], 1.0, {"ax": np.array([2, 3], I64)}, shape=(4, 1, 1)),
    Case("Resize", [node("Resize", ["a", "", "s"], mode="linear")], 1.0, {"s": np.array([1, 1, 2, 2], "f")}, (4, 16, 16), name="linear"),
    Case("Resize", [node("Resize", ["a", "", "s"], mode="nearest")], 1.0, {"s": np.array([1, 1, 2, 2], "f")}, (4, 16, 16), name="nearest"),
    Case("Upsample", [node("Upsample", ["a", "s"], mode="nearest")], 1.0, {"s": np.array([1, 1, 2, 2], "f")}, (4, 16, 16), opset=9),
    Case("Reshape", [node("Reshape", ["a", "s"])], 1.0, {"s": np.array([0, 4, 4, 16], I64)}, (4, 4, 16)),
    Case(
        "Flatten",
        [helper.make_node("Flatten", ["a"], ["f"], "op"), helper.make_node("Reshape", ["f", "s"], ["b"], "back")],
        1.0,
        {"s": np.array([0, 4, 8, 8], I64)},
    ),
    Case("Transpose", [node("Transpose", perm=[0, 1, 3, 2])]),
    Case(
        "Squeeze",
        [helper.make_node("GlobalMaxPool", ["a"], ["m"]), node("Squeeze", ["m", "ax"], ["q"]), helper.make_node("Unsqueeze", ["q", "ax"], ["b"], "u")],
        1.0,
        {"ax": np.array([2, 3], I64)},
        (4, 1, 1),
    ),
    Case("Unsqueeze", [node("Unsqueeze", ["a", "ax"], ["u"]), helper.make_node("Squeeze", ["u", "ax"], ["b"], "s")], 1.0, {"ax": np.array([2], I64)}),
    Case("Slice", [node("Slice", ["a", "s", "e", "ax"])], 1.0, {"s": np.array([2], I64), "e": np.array([6], I64), "ax": np.array([2], I64)}, (4, 4, 8)),
    Case("Split", [node("Split", ["a", "s"], ["b0", "b1"], axis=2), helper.make_node("Concat", ["b1", "b0"], ["b"], "c", axis=2)], 1.0, {"s": np.array([3, 5], I64)}),
    Case("Expand", [helper.make_node("GlobalMaxPool", ["a"], ["m"]), node("Expand", ["m", "s"])], 1.0, {"s": np.array([2, 4, 8, 8], I64)}),
    Case("Tile", [node("Tile", ["a", "r"])], 1.0, {"r": np.array([1, 1, 2, 1], I64)}, (4, 16, 8)),
    unary("MaxPool", 1.0, kernel_shape=[2, 2], pads=[0, 0, 0, 0]),
    Case("GlobalMaxPool", [node("GlobalMaxPool")], 1.0, shape=(4, 1, 1)),
    Case("ReduceMax", [node("ReduceMax", ["a", "ax"])], 1.0, {"ax": np.array([2], I64)}, shape=(4, 1, 8)),
    Case("ReduceMin", [node("ReduceMin", ["a", "ax"])], 1.0, {"ax": np.array([2], I64)}, shape=(4, 1, 8)),
    Case("DepthToSpace", [node("DepthToSpace", blocksize=2), ], 1.0, shape=(1, 16, 16)),
    Case("SpaceToDepth", [node("SpaceToDepth", blocksize=2)], 1.0, shape=(16, 4, 4)),
    Case("Pad", [node("Pad", ["a", "p"], mode="reflect")], 1.0, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1], I64)}, (4, 10, 10), name="reflect"),
    Case("Pad", [node("Pad", ["a", "p", "v"])], 1.0, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1], I64), "v": np.float32(0.7)}, (4, 10, 10), name="Pad 0.7"),
    Case("Gather", [node("Gather", ["a", "i"], axis=2)], 1.0, {"i": np.array([7, 0, 3], I64)}, (4, 3, 8)),
    Case("Concat", [node("Concat", ["a", "a2"], axis=1)], 1.0, shape=(8, 8, 8)),
    Case("Softmax", [node("Softmax", axis=1)], 1.0, integer=False),
    Case(
        "LayerNormalization",
        [node("LayerNormalization", ["a", "g"])],
        0.0,
        {"g": np.ones(8, "f")},
        integer=False,
    ),
    Case("Sqrt", [helper.make_node("Abs", ["a"], ["h"]), node("Sqrt", ["h"])], 0.0, integer=False),
    Case("Where", [helper.make_node("Greater", ["a", "a2"], ["k"]), node("Where", ["k", "a", "a2"])], 0.0, integer=False),
    Case("Cast", [node("Cast", to=11), helper.make_node("Cast", ["b"], ["b2"], "back", to=1)], 0.0, integer=False, shape=(4, 8, 8), name="Cast"),
]  # fmt: skip


def build(case: Case) -> onnx.ModelProto:
    result = case.nodes[-1].output[0]
    channels = case.shape[0]
    constants = {
        **conv_constants("first", (4, 3, 1, 1)),
        **conv_constants("other", (4, 3, 1, 1)),
        **conv_constants("last", (2, channels, 1, 1)),
        **case.constants,
    }
    other = [conv("other", "x", "a2")] if any("a2" in n.input for n in case.nodes) else []
    nodes = [conv("first", "x", "a"), *other, *case.nodes, conv("last", result, "y")]
    constants = {k: v for k, v in constants.items() if any(k in n.input for n in nodes)}
    return model(
        nodes, {"x": [2, 3, 8, 8]}, ["y"], constants, opset=case.opset, ir_version=12 if case.opset > 21 else 10
    )


def samples(n: int = 4) -> list[dict[str, Array]]:
    return [{"x": np.random.default_rng(i).uniform(-2, 2, (2, 3, 8, 8)).astype(np.float32)} for i in range(n)]


@pytest.fixture(params=CASES, ids=lambda c: c.name or c.op)
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


def test_the_operator_works_on_integers_where_the_table_says_so(case: Case) -> None:
    assert decisions(quantized(build(case), samples()))["op"] == case.integer


@pytest.mark.parametrize("case", [c for c in CASES if c.reference], ids=lambda c: c.name or c.op)
def test_two_executors_agree(case: Case) -> None:
    proto = quantized(build(case), samples()).model
    feeds = samples()[1]
    ours = run(proto, feeds)[0]
    known = onnx.ModelProto()
    known.CopyFrom(proto)
    if known.opset_import[0].version < OLDEST_REFERENCE:
        known.opset_import[0].version = OLDEST_REFERENCE
    reference = ReferenceEvaluator(known).run(None, dict(feeds))[0]
    # A value that lies on the border of two levels may round either way: one level, rarely.
    assert np.mean(np.isclose(ours, reference, atol=1e-5, rtol=1e-5)) >= 0.98
    assert np.abs(ours - reference).max() <= 4 * largest_scale(proto)


def test_the_result_is_as_close_to_float_as_its_levels_allow(case: Case) -> None:
    proto = build(case)
    written = quantized(proto, samples())
    feeds = samples()[0]
    error = np.abs(run(written.model, feeds)[0] - run(proto, feeds)[0]).max()
    assert error <= bound(case, proto, largest_scale(written.model)) if case.gain else np.isfinite(error)


def test_the_float_model_is_not_changed(case: Case) -> None:
    proto = build(case)
    before = proto.SerializeToString(deterministic=True)
    quantized(proto, samples())
    assert proto.SerializeToString(deterministic=True) == before


def test_the_same_choices_give_the_same_bytes(case: Case) -> None:
    first, second = (quantized(build(case), samples()).model.SerializeToString(deterministic=True) for _ in range(2))
    assert first == second


def test_every_operator_of_the_table_that_works_on_integers_has_a_case() -> None:
    integer = {op for op, line in OPERATORS.items() if line.kind is not Kind.FLOAT}
    assert integer - {c.op for c in CASES} == {"Gemm"}  # Gemm has two dimensions: tests/unit/test_policy.py


def largest_scale(proto: onnx.ModelProto) -> float:
    """The coarsest step of any activation."""
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    return max(float(constants[n.input[1]]) for n in proto.graph.node if n.op_type == "QuantizeLinear")


def bound(case: Case, proto: onnx.ModelProto, step: float) -> float:
    """What rounding can do at most, through ``first``, the case's nodes and ``last``.

    A rounding moves a value by step / 2; a product with weights w amplifies by their L1 norm a channel, and
    moves by half a step of each weight, max |w| / 254, times the inputs' sum.
    """
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    error, half = step / 2, step / 2
    error = product_error(constants["first.w"], error, 2.0) + half
    inner = [constants[k] for k in ("op.w", "w") if k in constants]
    largest = 16.0
    error = case.gain * error + sum(weight_error(w) * largest for w in inner) + 2 * half
    return product_error(constants["last.w"], error, largest) + half


def weight_error(w: Array) -> float:
    return float(np.abs(w).max() / 254 * w.size / max(1, w.shape[0]))


def product_error(w: Array, error: float, largest: float) -> float:
    flat = np.abs(w.reshape(w.shape[0], -1).astype(np.float64))
    return float(flat.sum(1).max() * error + flat.shape[1] * flat.max() / 254 * (largest + error))
