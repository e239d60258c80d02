# SPDX-License-Identifier: Apache-2.0
"""Where integers go: placement of Q and DQ in the shapes that real networks have, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.quantizing import Array, conv, conv_constants, decisions, initializers, model, quantized, run
from wia_quant.errors import PolicyError
from wia_quant.policy import decide, plan
from wia_quant.prepare import prepare
from wia_quant.quantizer import Written

RNG = np.random.default_rng(11)
C4 = conv_constants("c1", (4, 3, 1, 1)) | conv_constants("c2", (4, 4, 1, 1)) | conv_constants("c3", (4, 4, 1, 1))


def weights(*shape: int) -> Array:
    return (RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def feeds(shape: Sequence[int] = (1, 3, 8, 8), n: int = 3) -> list[dict[str, Array]]:
    return [{"x": RNG.uniform(-1, 1, shape).astype(np.float32)} for _ in range(n)]


def net(
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Array] = C4,
    shape: Sequence[int] = (1, 3, 8, 8),
    outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:
    used = {i for n in nodes for i in n.input}
    return model(
        nodes, {"x": shape}, outputs, {k: v for k, v in constants.items() if k in used}, opset=20, ir_version=9
    )


def node(op: str, inputs: Sequence[str], output: str, name: str = "", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [output], name or output, **attributes)


def quantized_values(written: Written) -> set[str]:
    """What has a QuantizeLinear, by the name of the float model."""
    return {n.input[0].removesuffix("/float") for n in written.model.graph.node if n.op_type == "QuantizeLinear"}


def test_no_q_between_a_product_and_its_relu() -> None:
    proto = net([conv("c1", "x", "a"), node("Relu", ["a"], "b"), conv("c2", "b", "y")])
    assert quantized_values(quantized(proto, feeds())) == {"x", "b"}


def test_relu_and_clip_are_never_removed() -> None:
    proto = net(
        [
            conv("c1", "x", "a"), node("Clip", ["a", "lo", "hi"], "b"), conv("c2", "b", "d"),
            node("Relu", ["d"], "e"), conv("c3", "e", "y"),
        ],
        C4 | {"lo": np.float32(0), "hi": np.float32(6)},
    )  # fmt: skip
    found = [n.op_type for n in quantized(proto, feeds()).model.graph.node]
    assert found.count("Clip") == 1
    assert found.count("Relu") == 1


def test_a_residual_add_reads_integers_on_both_sides() -> None:
    proto = net(
        [
            conv("c1", "x", "a"),
            conv("c2", "a", "b"),
            node("Add", ["a", "b"], "d"),
            node("Relu", ["d"], "e"),
            conv("c3", "e", "y"),
        ]
    )
    assert quantized_values(quantized(proto, feeds())) == {"x", "a", "b", "e"}


def test_silu_is_quantized_only_at_its_two_ends() -> None:
    proto = net([conv("c1", "x", "a"), node("Sigmoid", ["a"], "s"), node("Mul", ["a", "s"], "b"), conv("c2", "b", "y")])
    assert quantized_values(quantized(proto, feeds())) == {"x", "a", "b"}


def test_hardswish_spelled_out_and_scaled_is_one_region() -> None:
    nodes = [
        conv("c1", "x", "a"),
        node("Add", ["a", "three"], "b"),
        node("Clip", ["b", "zero", "six"], "d"),
        node("Mul", ["a", "d"], "e"),
        node("Div", ["e", "six"], "f"),
        node("Mul", ["f", "k"], "g"),
        conv("c2", "g", "y"),
    ]
    constants = {"three": np.float32(3), "zero": np.float32(0), "six": np.float32(6), "k": np.float32(1.5)}
    # The 3 folds into the Conv only if nobody else reads it: here "a" is read twice.
    assert quantized_values(quantized(net(nodes, C4 | constants), feeds())) == {"x", "a", "g"}


@pytest.mark.parametrize("form", ["erf", "tanh"])
def test_gelu_spelled_out_is_one_region(form: str) -> None:
    erf = [
        node("Div", ["a", "root2"], "b"), node("Erf", ["b"], "d"), node("Add", ["d", "one"], "e"),
        node("Mul", ["a", "e"], "f"), node("Mul", ["f", "half"], "g"),
    ]  # fmt: skip
    tanh = [
        node("Pow", ["a", "cube"], "b"), node("Mul", ["b", "k"], "d"), node("Add", ["a", "d"], "e"),
        node("Mul", ["e", "root"], "h"), node("Tanh", ["h"], "i"), node("Add", ["i", "one"], "j"),
        node("Mul", ["a", "j"], "l"), node("Mul", ["l", "half"], "g"),
    ]  # fmt: skip
    values = {"root2": 2**0.5, "one": 1, "half": 0.5, "cube": 3, "k": 0.044715, "root": (2 / np.pi) ** 0.5}
    constants = {k: np.float32(v) for k, v in values.items()}
    nodes = [conv("c1", "x", "a"), *(erf if form == "erf" else tanh), conv("c2", "g", "y")]
    assert quantized_values(quantized(net(nodes, C4 | constants), feeds())) == {"x", "a", "g"}


@pytest.mark.parametrize("op", ["Add", "Mul", "Sub"])
def test_a_relu_behind_a_function_of_one_tensor_is_part_of_its_table(op: str) -> None:
    proto = net([conv("c1", "x", "a"), node(op, ["a", "a"], "b"), node("Relu", ["b"], "d"), conv("c2", "d", "y")])
    assert quantized_values(quantized(proto, feeds())) == {"x", "a", "d"}


def test_a_value_of_a_region_that_is_read_elsewhere_ends_it() -> None:
    nodes = [
        conv("c1", "x", "a"),
        node("Tanh", ["a"], "t"),
        node("Sigmoid", ["t"], "s"),
        conv("c2", "t", "u"),
        node("Add", ["s", "u"], "v"),
        conv("c3", "v", "y"),
    ]
    assert quantized_values(quantized(net(nodes), feeds())) == {"x", "a", "t", "s", "u", "v"}


def test_squeeze_and_excitation_works_on_integers() -> None:
    nodes = [
        conv("c1", "x", "a"),
        node("GlobalAveragePool", ["a"], "p"),
        conv("c2", "p", "q"),
        node("HardSigmoid", ["q"], "g"),
        node("Mul", ["a", "g"], "m"),
        conv("c3", "m", "y"),
    ]
    written = quantized(net(nodes), feeds())
    assert all(decisions(written).values())
    assert quantized_values(written) == {"x", "a", "p", "q", "g", "m"}


def test_concat_has_one_scale_on_all_sides() -> None:
    nodes = [
        conv("c1", "x", "a"), conv("c2", "a", "b"), node("Concat", ["a", "b"], "d", axis=1), conv("last", "d", "y"),
    ]  # fmt: skip
    written = quantized(net(nodes, C4 | conv_constants("last", (2, 8, 1, 1))), feeds())
    scales = {n.input[1] for n in written.model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] != "x"}
    assert len(scales) == 1


def test_movers_keep_one_scale_and_q_stands_before_the_first() -> None:
    nodes = [
        node("Transpose", ["x"], "t", perm=[0, 3, 1, 2]),
        node("MaxPool", ["t"], "m", kernel_shape=[2, 2]),
        conv("c1", "m", "y"),
    ]
    written = quantized(net(nodes, shape=(1, 8, 8, 3)), feeds((1, 8, 8, 3)))
    scales = {n.input[1] for n in written.model.graph.node if n.op_type == "QuantizeLinear"}
    assert len(scales) == 1
    assert all(decisions(written).values())


def test_the_last_product_hands_out_floats() -> None:
    nodes = [conv("c1", "x", "a"), conv("c2", "a", "b"), node("Sigmoid", ["b"], "y")]
    assert quantized_values(quantized(net(nodes), feeds())) == {"x", "a"}


def test_a_detection_head_of_boxes_and_scores_is_not_forced_onto_one_scale() -> None:
    """Boxes in pixels and scores in [0, 1] share the output tensor, as in YOLO."""
    nodes = [
        conv("c1", "x", "a"),
        conv("c2", "a", "boxes"),
        conv("c3", "a", "logits"),
        node("Mul", ["boxes", "stride"], "pixels"),
        node("Sigmoid", ["logits"], "scores"),
        node("Concat", ["pixels", "scores"], "y", axis=1),
    ]
    proto = net(nodes, C4 | {"stride": np.full((1, 4, 1, 1), 320, np.float32)})
    samples = feeds()
    written = quantized(proto, samples)
    scores = [run(m, samples[0])[0][:, 4:] for m in (proto, written.model)]
    assert np.abs(scores[0] - scores[1]).max() < 0.02
    assert not decisions(written)["y"]


def test_a_concat_of_very_different_ranges_stays_float_and_says_why() -> None:
    nodes = [
        conv("c1", "x", "a"),
        conv("c2", "a", "b"),
        node("Relu", ["b"], "r"),
        node("Mul", ["r", "big"], "m"),
        node("Concat", ["a", "m"], "d", axis=1),
        conv("last", "d", "y"),
    ]
    constants = C4 | {"big": np.full((1, 4, 1, 1), 1000, np.float32)} | conv_constants("last", (2, 8, 1, 1))
    written = quantized(net(nodes, constants), feeds())
    reason = next(d.reason for d in written.plan.decisions if d.node == "d")
    assert "ranges differ" in reason
    assert not decisions(written)["d"]


def attention() -> tuple[list[onnx.NodeProto], dict[str, Array]]:
    """Pre-normalized attention with a mask, then a feed-forward with Gelu; decomposed LayerNorm."""

    def norm(x: str, y: str) -> list[onnx.NodeProto]:
        return [
            node("ReduceMean", [x, "last"], f"{y}.m"),
            node("Sub", [x, f"{y}.m"], f"{y}.d"),
            node("Pow", [f"{y}.d", "two"], f"{y}.p"),
            node("ReduceMean", [f"{y}.p", "last"], f"{y}.v"),
            node("Add", [f"{y}.v", "eps"], f"{y}.e"),
            node("Sqrt", [f"{y}.e"], f"{y}.s"),
            node("Div", [f"{y}.d", f"{y}.s"], f"{y}.n"),
            node("Mul", [f"{y}.n", "gamma"], f"{y}.g"),
            node("Add", [f"{y}.g", "beta"], y),
        ]

    def linear(x: str, y: str) -> list[onnx.NodeProto]:
        return [node("MatMul", [x, f"{y}.w"], f"{y}.mm"), node("Add", [f"{y}.mm", f"{y}.b"], y)]

    nodes = [
        *norm("x", "n1"),
        *linear("n1", "q"), *linear("n1", "k"), *linear("n1", "v"),
        node("Transpose", ["k"], "kt", perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], "scores"),
        node("Div", ["scores", "root"], "scaled"),
        node("Add", ["scaled", "mask"], "masked"),
        node("Softmax", ["masked"], "probabilities", axis=-1),
        node("MatMul", ["probabilities", "v"], "context"),
        *linear("context", "o"),
        node("Add", ["x", "o"], "r1"),
        *norm("r1", "n2"),
        *linear("n2", "h"),
        node("Gelu", ["h"], "g"),
        *linear("g", "f"),
        node("Add", ["r1", "f"], "y"),
    ]  # fmt: skip
    constants: dict[str, Array] = {
        "last": np.array([-1], np.int64), "two": np.float32(2), "eps": np.float32(1e-5), "root": np.float32(4),
        "gamma": np.ones(16, np.float32), "beta": np.zeros(16, np.float32),
        "mask": np.where(np.arange(6) < 4, 0, np.finfo(np.float32).min).astype(np.float32),
    }  # fmt: skip
    for name in "qkvohf":
        constants |= {f"{name}.w": weights(16, 16), f"{name}.b": weights(16)}
    return nodes, constants


def test_a_transformer_block_keeps_normalization_softmax_mask_and_residuals_float() -> None:
    nodes, constants = attention()
    written = quantized(net(nodes, constants, (2, 6, 16)), feeds((2, 6, 16)))
    on = {name for name, integer in decisions(written).items() if integer}
    products = {f"{n}.mm" for n in "qkvohf"} | {"scores", "context"}
    assert on == products | set("qkvohf") | {"kt", "g"}
    assert quantized_values(written) == {"n1", "q", "k", "kt", "v", "probabilities", "context", "n2", "h", "g"}


def test_a_transformer_block_is_close_to_float() -> None:
    nodes, constants = attention()
    proto, samples = net(nodes, constants, (2, 6, 16)), feeds((2, 6, 16))
    written = quantized(proto, samples)
    floats, integers = run(proto, samples[0])[0], run(written.model, samples[0])[0]
    signal_to_noise = 10 * np.log10((floats**2).sum() / ((floats - integers) ** 2).sum())
    assert signal_to_noise > 30


def test_no_q_between_a_matmul_and_its_bias() -> None:
    nodes = [
        node("MatMul", ["x", "w"], "m"),
        node("Add", ["b", "m"], "a"),
        node("Relu", ["a"], "r"),
        node("MatMul", ["r", "v"], "y"),
    ]
    written = quantized(
        net(nodes, {"w": weights(8, 8), "b": weights(8), "v": weights(8, 4)}, (2, 5, 8)), feeds((2, 5, 8))
    )
    assert quantized_values(written) == {"x", "r"}
    assert {d.node for d in written.plan.decisions if "int32 bias" in d.reason} == {"a"}


def test_gemm_works_on_integers_with_either_orientation() -> None:
    nodes = [node("Gemm", ["x", "w", "b"], "a", transB=1), node("Relu", ["a"], "r"), node("Gemm", ["r", "v"], "y")]
    written = quantized(net(nodes, {"w": weights(6, 8), "b": weights(6), "v": weights(6, 4)}, (3, 8)), feeds((3, 8)))
    assert all(decisions(written).values())
    axes = {
        n.name: n.attribute[0].i for n in written.model.graph.node if n.op_type == "DequantizeLinear" and n.attribute
    }
    assert axes["w/dequantize"] == 0
    assert axes["v/dequantize"] == 1


def test_integers_are_never_quantized() -> None:
    nodes = [
        node("Gather", ["table", "x"], "e"),
        node("Shape", ["x"], "s"),
        node("Slice", ["s", "zero", "one"], "n"),
        node("Concat", ["n", "rest"], "t", axis=0),
        node("Reshape", ["e", "t"], "r"),
        node("MatMul", ["r", "w"], "y"),
    ]
    constants = {
        "table": weights(300, 8), "zero": np.array([0]), "one": np.array([1]),
        "rest": np.array([-1, 8]), "w": weights(8, 4),
    }  # fmt: skip
    proto = model(nodes, {"x": ["N", 5]}, ["y"], constants, types={"x": TensorProto.INT64})
    written = quantized(proto, [{"x": np.arange(10).reshape(2, 5)}])
    assert not {"x", "s", "n", "t"} & quantized_values(written)
    assert decisions(written)["e"]


def test_an_embedding_is_int8_with_one_scale_a_row() -> None:
    nodes = [node("Gather", ["table", "x"], "e"), node("MatMul", ["e", "w"], "y")]
    proto = model(
        nodes, {"x": [5]}, ["y"], {"table": weights(300, 8), "w": weights(8, 4)}, types={"x": TensorProto.INT64}
    )
    found = initializers(quantized(proto, [{"x": np.arange(5)}]).model)
    assert found["table/quantized"].dtype == np.int8
    assert found["table/scale"].shape == (300,)


def test_a_custom_operator_passes_through_untouched() -> None:
    proto = net([conv("c1", "x", "a"), node("Relu", ["a"], "b", "twirl"), conv("c2", "b", "y")])
    proto.graph.node[1].op_type, proto.graph.node[1].domain = "Twirl", "acme"
    proto.opset_import.append(helper.make_opsetid("acme", 1))
    prepared = prepare(proto, opset=13)
    found = {d.node: d for d in decide(prepared.model).decisions}
    assert not found["twirl"].quantized
    assert "not an operator of the ONNX standard" in found["twirl"].reason


def test_the_plan_gives_every_node_a_reason() -> None:
    nodes, constants = attention()
    found = plan(net(nodes, constants, (2, 6, 16)))
    assert {d.node for d in found.decisions} == {n.name for n in nodes}
    assert all(d.reason for d in found.decisions)
    assert found.text().count("\n") >= len(nodes)


def test_a_model_with_nothing_to_quantize_is_an_error_that_says_why() -> None:
    with pytest.raises(PolicyError, match="nothing to quantize"):
        plan(net([node("Softmax", ["x"], "y")]))


def test_a_small_product_between_float_operators_stays_float() -> None:
    """The expectation over 16 bins in a YOLOv8 head."""
    nodes = [conv("c1", "x", "a"), node("Softmax", ["a"], "p", axis=1), conv("bins", "p", "y")]
    written = quantized(net(nodes, C4 | conv_constants("bins", (1, 4, 1, 1))), feeds())
    assert not decisions(written)["bins"]
