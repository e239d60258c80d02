# SPDX-License-Identifier: Apache-2.0
"""The rule `overflow` counts to the last unit: its bounds are reached, and what stays within them is no finding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.quantizing import session
from wia_quant.qdq import view_model
from wia_quant.rules import check_model
from wia_quant.rules.overflow import sums
from wia_quant.rules.products import products

Array = npt.NDArray[np.generic]

ENDS = np.iinfo(np.int32)


@dataclass(frozen=True)
class Case:
    """One product: the operator, the shapes of its input and weight, the axis of its channels in the output."""

    op_type: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    channel_axis: int
    attributes: dict[str, object]


CASES = {
    "conv": Case("Conv", (1, 2, 5, 5), (3, 2, 3, 3), 1, {"pads": [1, 1, 1, 1]}),
    "depthwise": Case("Conv", (1, 3, 5, 5), (3, 1, 3, 3), 1, {"group": 3}),
    "conv transpose": Case("ConvTranspose", (1, 2, 4, 4), (2, 3, 3, 3), 1, {}),
    "conv transpose by 2": Case("ConvTranspose", (1, 2, 4, 4), (2, 3, 3, 3), 1, {"strides": [2, 2]}),
    "conv transpose by 2, dilated": Case(
        "ConvTranspose", (1, 2, 6, 6), (2, 3, 3, 2), 1, {"strides": [2, 3], "dilations": [2, 3]}
    ),
    "conv transpose in groups": Case("ConvTranspose", (1, 4, 4, 4), (4, 3, 2, 2), 1, {"group": 2, "strides": [2, 2]}),
    "gemm": Case("Gemm", (1, 4), (4, 3), 1, {}),
    "gemm transposed": Case("Gemm", (1, 4), (3, 4), 1, {"transB": 1}),
    "matmul": Case("MatMul", (2, 4), (4, 3), 1, {}),
    "matmul of a stack": Case("MatMul", (2, 2, 4), (2, 4, 3), 2, {}),
}


def qdq(case: Case, weight: Array, bias: Array | None = None, x_zero_point: int = -7) -> ModelProto:
    """The product of int8 operands; the bias at their scale."""
    axis = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0 if case.attributes.get("transB") else 1}.get(
        case.op_type, weight.ndim - 1
    )
    n = weight.shape[axis]
    s = np.float32(0.5)
    constants = {
        "xs": np.array(s), "xz": np.array(x_zero_point, np.int8), "wq": weight, "ws": np.full(n, s, np.float32),
        "wz": np.zeros(n, np.int8),
    }  # fmt: skip
    dequantize = helper.make_node("DequantizeLinear", ["wq", "ws", "wz"], ["w"], "w_dq", axis=axis)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"], "x_q"),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"], "x_dq"),
        dequantize,
    ]
    inputs = ["xd", "w"]
    if bias is not None:
        constants |= {
            "bq": bias.astype(np.int32),
            "bs": np.full(bias.size, s * s, np.float32),
            "bz": np.zeros(bias.size, np.int32),
        }
        nodes.append(helper.make_node("DequantizeLinear", ["bq", "bs", "bz"], ["b"], "b_dq", axis=0))
        inputs.append("b")
    nodes.append(product(case, inputs))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, case.x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def product(case: Case, inputs: list[str]) -> NodeProto:
    return helper.make_node(case.op_type, inputs, ["y"], "product", **case.attributes)


def matrix(case: Case, weight: Array) -> Array:
    """What each input value adds to each output value, [inputs, *output shape]: the operator on unit vectors."""
    graph = helper.make_graph(
        [product(case, ["x", "w"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, case.x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight.astype(np.float32), "w")],
    )
    run = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    units = np.eye(int(np.prod(case.x)), dtype=np.float32).reshape(-1, *case.x)
    return np.stack([run.run(None, {"x": u})[0] for u in units]).astype(np.int64)  # exact: single small integers


def weight_of(case: Case) -> Array:
    return np.random.default_rng(0).integers(-127, 128, case.w).astype(np.int8)


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_the_bounds_are_those_of_the_operator(case: Case) -> None:
    weight = weight_of(case)
    (found,) = products(view_model(qdq(case, weight)))
    ends = sums(found, np.zeros(1, np.int64))
    assert ends is not None
    a = matrix(case, weight)
    lo, hi = -128 + 7, 127 + 7
    most = np.where(a > 0, a * hi, a * lo).sum(axis=0)
    least = np.where(a > 0, a * lo, a * hi).sum(axis=0)
    other = tuple(i for i in range(most.ndim) if i != case.channel_axis)
    np.testing.assert_array_equal(ends[1], most.max(axis=other))
    np.testing.assert_array_equal(ends[0], least.min(axis=other))


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize("name", ["conv", "depthwise", "conv transpose by 2", "gemm transposed"])
def test_one_unit_more_is_a_finding_and_one_less_is_none(name: str, side: str) -> None:
    case = CASES[name]
    weight = weight_of(case)
    (found,) = products(view_model(qdq(case, weight)))
    ends = sums(found, np.zeros(1, np.int64))
    assert ends is not None
    room = ENDS.max - ends[1] if side == "above" else ENDS.min - ends[0]
    step = 1 if side == "above" else -1
    bias = np.zeros(ends[0].size, np.int64)
    bias[1] = room[1]
    assert [f for f in check_model(qdq(case, weight, bias)) if f.rule == "overflow"] == []
    bias[1] += step
    (finding,) = [f for f in check_model(qdq(case, weight, bias)) if f.rule == "overflow"]
    assert str((ENDS.max if side == "above" else ENDS.min) + step) in finding.message


def test_the_largest_bias_beside_the_largest_weights_of_another_channel_is_no_overflow() -> None:
    case = Case("Gemm", (1, 64), (2, 64), 1, {"transB": 1})
    weight = np.stack([np.full(64, 127), np.ones(64)]).astype(np.int8)
    assert [f for f in check_model(qdq(case, weight, np.array([0, 2**31 - 20_000]))) if f.rule == "overflow"] == []
    assert [f for f in check_model(qdq(case, weight, np.array([2**31 - 20_000, 0]))) if f.rule == "overflow"]


def test_a_found_overflow_is_reached_by_an_input_of_the_declared_range() -> None:
    case = CASES["gemm transposed"]
    weight = weight_of(case)
    bias = np.array([0, 2**31 - 1000, 0])
    (finding,) = [f for f in check_model(qdq(case, weight, bias)) if f.rule == "overflow"]
    row = weight[1].astype(np.int64)
    levels = np.where(row > 0, 127, -128)
    assert f"{int(((levels + 7) * row).sum() + bias[1])}, no int32" in finding.message
    accumulator = np.int64(((levels + 7) * row).sum() + bias[1])
    assert accumulator.astype(np.int32) != accumulator
