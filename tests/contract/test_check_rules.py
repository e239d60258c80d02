# SPDX-License-Identifier: Apache-2.0
"""Every rule of RULES: a clean model has no finding, a seeded defect is found by the rule, --fix mends what it says."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from wia_quant.affine import INT8_SYMMETRIC, UINT8
from wia_quant.rules import RULES, TARGET_RULES, Finding, Severity, check_model, fix_model
from wia_quant.targets.target import INT7_NARROW, Limit, OperatorLimits, Target


def clean_model() -> ModelProto:
    """Conv -> Relu -> MaxPool -> Concat with itself -> Flatten -> Gemm, all int8, as the format has it."""
    rng = np.random.default_rng(0)
    w1 = rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    w2 = rng.integers(-127, 128, (5, 8 * 4 * 4)).astype(np.int8)
    x_scale, s1, y_scale, s2 = (
        np.float32(0.02),
        np.linspace(0.01, 0.02, 4),
        np.float32(0.05),
        np.linspace(0.01, 0.02, 5),
    )
    constants: dict[str, npt.NDArray[np.generic]] = {
        "x_scale": np.array(x_scale, np.float32),
        "x_zp": np.array(3, np.int8),
        "w1_q": w1,
        "w1_scale": s1.astype(np.float32),
        "w1_zp": np.zeros(4, np.int8),
        "b1_q": rng.integers(-500, 500, 4).astype(np.int32),
        "b1_scale": (s1.astype(np.float32) * x_scale).astype(np.float32),
        "b1_zp": np.zeros(4, np.int32),
        "y_scale": np.array(y_scale, np.float32),
        "y_zp": np.array(-128, np.int8),
        "w2_q": w2,
        "w2_scale": s2.astype(np.float32),
        "w2_zp": np.zeros(5, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "x_scale", "x_zp"], ["x_q"], "x_quantize"),
        helper.make_node("DequantizeLinear", ["x_q", "x_scale", "x_zp"], ["x_dq"], "x_dequantize"),
        helper.make_node("DequantizeLinear", ["w1_q", "w1_scale", "w1_zp"], ["w1"], "w1_dequantize", axis=0),
        helper.make_node("DequantizeLinear", ["b1_q", "b1_scale", "b1_zp"], ["b1"], "b1_dequantize", axis=0),
        helper.make_node("Conv", ["x_dq", "w1", "b1"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("QuantizeLinear", ["r", "y_scale", "y_zp"], ["r_q"], "r_quantize"),
        helper.make_node("DequantizeLinear", ["r_q", "y_scale", "y_zp"], ["r_dq"], "r_dequantize"),
        helper.make_node("MaxPool", ["r_dq"], ["m"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("QuantizeLinear", ["m", "y_scale", "y_zp"], ["m_q"], "m_quantize"),
        helper.make_node("DequantizeLinear", ["m_q", "y_scale", "y_zp"], ["m_dq"], "m_dequantize"),
        helper.make_node("Concat", ["m_dq", "m_dq"], ["k"], "concat", axis=1),
        helper.make_node("QuantizeLinear", ["k", "y_scale", "y_zp"], ["k_q"], "k_quantize"),
        helper.make_node("DequantizeLinear", ["k_q", "y_scale", "y_zp"], ["k_dq"], "k_dequantize"),
        helper.make_node("Flatten", ["k_dq"], ["f"], "flatten"),
        helper.make_node("QuantizeLinear", ["f", "y_scale", "y_zp"], ["f_q"], "f_quantize"),
        helper.make_node("DequantizeLinear", ["f_q", "y_scale", "y_zp"], ["f_dq"], "f_dequantize"),
        helper.make_node("DequantizeLinear", ["w2_q", "w2_scale", "w2_zp"], ["w2"], "w2_dequantize", axis=0),
        helper.make_node("Gemm", ["f_dq", "w2"], ["y"], "gemm", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "clean",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    helper.set_model_props(
        model,
        {
            "wia.format": "1",
            "wia.tool": "wia-quant",
            "wia.recipe": "{}",
            "wia.source_sha256": "0",
            "wia.calibration": "{}",
            "wia.target": "wia-cpu",
            "wia.tensors": "0",
        },
    )
    return model


def set_constant(model: ModelProto, name: str, value: npt.NDArray[np.generic]) -> None:
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(value, name))


def constant(model: ModelProto, name: str) -> npt.NDArray[np.generic]:
    return numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == name)).copy()


def node(model: ModelProto, name: str) -> onnx.NodeProto:
    return next(n for n in model.graph.node if n.name == name)


def break_shape(model: ModelProto) -> None:
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 7


def lower_opset(model: ModelProto) -> None:
    model.opset_import[0].version = 12


def clear_name(model: ModelProto) -> None:
    node(model, "relu").name = ""


def repeat_name(model: ModelProto) -> None:
    node(model, "relu").name = "conv"


def compute_scale(model: ModelProto) -> None:
    node(model, "r_quantize").input[1] = "y_scale_copy"
    model.graph.node.insert(0, helper.make_node("Identity", ["y_scale"], ["y_scale_copy"], "copy"))


def zero_scale_of_live_channel(model: ModelProto) -> None:
    set_constant(model, "w1_scale", np.array([0, 0.01, 0.01, 0.01], np.float32))


def zero_scale_of_dead_channel(model: ModelProto) -> None:
    w = constant(model, "w2_q")
    w[2] = 0
    set_constant(model, "w2_q", w)
    scale = constant(model, "w2_scale")
    scale[2] = 0
    set_constant(model, "w2_scale", scale)


def denormal_scale(model: ModelProto) -> None:
    set_constant(model, "y_scale", np.array(1e-40, np.float32))


def shorten_scale(model: ModelProto) -> None:
    set_constant(model, "w1_scale", np.full(3, 0.01, np.float32))
    set_constant(model, "w1_zp", np.zeros(3, np.int8))


def axis_outside(model: ModelProto) -> None:
    node(model, "w1_dequantize").attribute[0].i = 4


def wrong_axis(model: ModelProto) -> None:
    node(model, "w1_dequantize").attribute[0].i = 1
    set_constant(model, "w1_scale", np.full(3, 0.01, np.float32) * [1, 2, 3])
    set_constant(model, "w1_zp", np.zeros(3, np.int8))


def weight_zero_point(model: ModelProto) -> None:
    set_constant(model, "w1_zp", np.array([0, 0, 5, 0], np.int8))


def wide_weight(model: ModelProto) -> None:
    w = constant(model, "w2_q")
    w[0, 0] = -128
    set_constant(model, "w2_q", w)


def float_weight(model: ModelProto) -> None:
    w = (constant(model, "w2_q").astype(np.float32)) * constant(model, "w2_scale")[:, None]  # type: ignore[operator]
    set_constant(model, "w2_q", w)
    model.graph.initializer[[t.name for t in model.graph.initializer].index("w2_q")].name = "w2_float"
    made = helper.make_node("QuantizeLinear", ["w2_float", "w2_scale", "w2_zp"], ["w2_q"], "w2_quantize", axis=0)
    model.graph.node.insert(0, made)


def unread_initializer(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.ones((9, 9), np.float32), "leftover"))


def bias_scale(model: ModelProto) -> None:
    scale = constant(model, "b1_scale")
    scale[1] *= 2  # type: ignore[misc]
    set_constant(model, "b1_scale", scale)


def bias_zero_point(model: ModelProto) -> None:
    set_constant(model, "b1_zp", np.array([0, 1, 0, 0], np.int32))


def saturated_bias(model: ModelProto) -> None:
    set_constant(model, "b1_q", np.array([0, 2**31 - 1, 0, 0], np.int32))


def overflowing_sum(model: ModelProto) -> None:
    set_constant(model, "b1_q", np.array([0, 2**31 - 1000, 0, 0], np.int32))


def zero_point_of_another_rank(model: ModelProto) -> None:
    set_constant(model, "y_zp", np.array([-128], np.int8))


def zero_point_of_another_size(model: ModelProto) -> None:
    set_constant(model, "w1_zp", np.array(0, np.int8))


def axis_from_the_end(model: ModelProto) -> None:
    node(model, "w1_dequantize").attribute[0].i = -4


def unsigned_weight(model: ModelProto) -> None:
    set_constant(model, "w2_q", (constant(model, "w2_q").astype(np.int16) + 128).clip(0, 255).astype(np.uint8))
    set_constant(model, "w2_zp", np.full(5, 127, np.uint8))


def overflow_below(model: ModelProto) -> None:
    set_constant(model, "b1_q", np.array([0, -(2**31) + 1000, 0, 0], np.int32))


def mismatched_zero_point(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), "other_zp"))
    node(model, "r_dequantize").input[2] = "other_zp"


def mismatched_scale(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "other"))
    node(model, "r_dequantize").input[1] = "other"


def per_axis_activation(model: ModelProto) -> None:
    for name, value in (("s3", np.full(3, 0.02, np.float32)), ("z3", np.zeros(3, np.int8))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    for name in ("x_quantize", "x_dequantize"):
        node(model, name).input[1:3] = ["s3", "z3"]


def second_scale_after_pool(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "other"))
    for name in ("m_quantize", "m_dequantize"):
        node(model, name).input[1] = "other"


def float_input(model: ModelProto) -> None:
    node(model, "conv").input[0] = "x"
    for name in ("x_quantize", "x_dequantize"):
        model.graph.node.remove(node(model, name))


def float_bias(model: ModelProto) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "b_float"))
    node(model, "conv").input[2] = "b_float"
    model.graph.node.remove(node(model, "b1_dequantize"))


def quantize_twice(model: ModelProto) -> None:
    nodes = list(model.graph.node)
    at = [n.name for n in nodes].index("pool")
    nodes[at].input[0] = "again_dq"
    nodes[at:at] = [
        helper.make_node("QuantizeLinear", ["r_dq", "y_scale", "y_zp"], ["again_q"], "again_quantize"),
        helper.make_node("DequantizeLinear", ["again_q", "y_scale", "y_zp"], ["again_dq"], "again_dequantize"),
    ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def unread_integers(model: ModelProto) -> None:
    made = helper.make_node("QuantizeLinear", ["r", "y_scale", "y_zp"], ["stray"], "stray_quantize")
    model.graph.node.append(made)


def make_float(model: ModelProto) -> None:
    """The picture straight through a Relu."""
    del model.graph.node[:], model.graph.initializer[:], model.metadata_props[:], model.graph.value_info[:]
    model.graph.node.append(helper.make_node("Relu", ["x"], ["y"], "relu"))
    model.graph.output[0].CopyFrom(model.graph.input[0])
    model.graph.output[0].name = "y"


def use_operator_form(model: ModelProto) -> None:
    make_float(model)
    model.graph.node.append(
        helper.make_node("DynamicQuantizeLinear", ["x"], ["levels", "scale", "zero_point"], "dynamic")
    )


def drop_metadata(model: ModelProto) -> None:
    del model.metadata_props[3]


def other_format_version(model: ModelProto) -> None:
    model.metadata_props[0].value = "2"


DEFECTS: list[tuple[str, Callable[[ModelProto], None]]] = [
    ("valid", break_shape),
    ("opset", lower_opset),
    ("names", clear_name),
    ("names", repeat_name),
    ("constant-parameters", compute_scale),
    ("scale-value", zero_scale_of_live_channel),
    ("scale-value", zero_scale_of_dead_channel),
    ("scale-value", denormal_scale),
    ("axis-size", shorten_scale),
    ("axis-size", axis_outside),
    ("axis-size", zero_point_of_another_rank),
    ("axis-size", zero_point_of_another_size),
    ("weight-axis", axis_from_the_end),
    ("weight-zero-point", unsigned_weight),
    ("weight-axis", wrong_axis),
    ("weight-zero-point", weight_zero_point),
    ("weight-narrow", wide_weight),
    ("float-copy", float_weight),
    ("float-copy", unread_initializer),
    ("bias", bias_scale),
    ("bias", bias_zero_point),
    ("overflow", saturated_bias),
    ("overflow", overflowing_sum),
    ("overflow", overflow_below),
    ("activation-grid", mismatched_scale),
    ("activation-grid", mismatched_zero_point),
    ("activation-grid", per_axis_activation),
    ("moved", second_scale_after_pool),
    ("missing", float_input),
    ("missing", float_bias),
    ("repeated", quantize_twice),
    ("dangling", unread_integers),
    ("quantized", make_float),
    ("quantized", use_operator_form),
    ("metadata", drop_metadata),
    ("metadata", other_format_version),
]


def test_clean_model_has_no_finding() -> None:
    assert check_model(clean_model()) == []


def test_every_rule_has_a_seeded_defect() -> None:
    assert {rule for rule, _ in DEFECTS} == set(RULES)


@pytest.mark.parametrize(("rule", "seed"), DEFECTS, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_seeded_defect_is_found_by_its_rule(rule: str, seed: Callable[[ModelProto], None]) -> None:
    model = clean_model()
    seed(model)
    found = [f for f in check_model(model) if f.rule == rule]
    assert found
    assert all(f.message and f.remedy for f in found)


def runs(model: ModelProto) -> npt.NDArray[np.generic] | None:
    """The answer of onnx.reference; None where the defect leaves nothing that runs."""
    x = np.random.default_rng(1).normal(size=(1, 3, 8, 8)).astype(np.float32)
    try:
        with np.errstate(all="ignore"):  # a scale that is no number
            return np.asarray(ReferenceEvaluator(model).run(None, {"x": x})[0])
    except (ValueError, RuntimeError, IndexError, TypeError):
        return None


@pytest.mark.parametrize(("rule", "seed"), DEFECTS, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_fix_mends_what_it_says_and_changes_no_result(rule: str, seed: Callable[[ModelProto], None]) -> None:
    model = clean_model()
    seed(model)
    before, fixable = runs(model), [f for f in check_model(model) if f.fixable]
    left = [f for f in check_model(model) if not f.fixable]
    fixed = fix_model(model)
    assert set(fixed) >= {f.rule for f in fixable}
    assert [f for f in check_model(model) if f.fixable] == []
    assert len(check_model(model)) <= len(left)
    after = runs(model)
    if before is not None:
        assert after is not None
        np.testing.assert_array_equal(np.nan_to_num(before), np.nan_to_num(after))


@pytest.mark.parametrize(("rule", "seed"), DEFECTS, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_fix_leaves_what_callers_see(rule: str, seed: Callable[[ModelProto], None]) -> None:
    model = clean_model()
    seed(model)
    before = ModelProto()
    before.CopyFrom(model)
    fix_model(model)
    assert list(model.graph.input) == list(before.graph.input)
    assert list(model.graph.output) == list(before.graph.output)


def test_what_fix_mends_is_these_rules() -> None:
    fixable = {rule for rule, seed in DEFECTS for f in found_after(seed) if f.fixable and f.rule == rule}
    assert fixable == {name for name, rule in RULES.items() if rule.fix is not None}


def found_after(seed: Callable[[ModelProto], None]) -> list[Finding]:
    model = clean_model()
    seed(model)
    return check_model(model)


def narrow_npu(**limits: object) -> Target:
    """A target that takes the clean model, but for what ``limits`` say."""
    operators = {op: OperatorLimits() for op in ("Conv", "Relu", "MaxPool", "Concat", "Flatten", "Gemm")}
    taken: dict[str, object] = {"name": "t", "operators": operators, "max_batch_size": 1, "dynamic_shapes": False}
    return Target(**{**taken, **limits})  # type: ignore[arg-type]


def without(op_type: str) -> dict[str, OperatorLimits]:
    return {op: v for op, v in (narrow_npu().operators or {}).items() if op != op_type}


def limited(op_type: str, limits: OperatorLimits) -> dict[str, OperatorLimits]:
    return {**without(op_type), op_type: limits}


def open_batch(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"


def larger_batch(model: ModelProto) -> None:
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2


def append_softmax(model: ModelProto) -> None:
    model.graph.node.append(helper.make_node("Softmax", ["y"], ["p"], "softmax"))
    model.graph.output[0].name = "p"


def untouched(model: ModelProto) -> None:
    pass


#: rule, what the target takes, what is done to the clean model, severity, what the message says.
TARGET_DEFECTS: list[tuple[str, Target, Callable[[ModelProto], None], Severity, str]] = [
    ("target-operator", narrow_npu(operators=without("Conv")), untouched, Severity.ERROR, "no integer Conv"),
    ("target-operator", narrow_npu(operators=without("MaxPool")), untouched, Severity.NOTE, "no integer MaxPool"),
    (
        "target-operator",
        narrow_npu(operators=without("MaxPool"), runs_float=False),
        untouched,
        Severity.ERROR,
        "no integer MaxPool",
    ),
    (
        "target-operator",
        narrow_npu(operators=limited("Conv", OperatorLimits(attributes={"pads": Limit(most=0)}))),
        untouched,
        Severity.ERROR,
        "pads 1, at most 0",
    ),
    (
        "target-operator",
        narrow_npu(operators=limited("Conv", OperatorLimits(attributes={"kernel_shape": Limit(most=1)}))),
        untouched,
        Severity.ERROR,
        "kernel_shape 3, at most 1",
    ),
    (
        "target-operator",
        narrow_npu(operators=limited("Concat", OperatorLimits(3))),
        untouched,
        Severity.NOTE,
        "at most 3 dimensions; 'm_dq' has 4",
    ),
    ("target-operator", narrow_npu(runs_float=False), append_softmax, Severity.ERROR, "has no float operators"),
    ("target-operator", narrow_npu(float_operators={"Gemm"}), untouched, Severity.ERROR, "wants it float"),
    ("target-activation", narrow_npu(activations=UINT8), untouched, Severity.ERROR, "int8 with zero point 3"),
    ("target-activation", narrow_npu(activations=INT8_SYMMETRIC), untouched, Severity.ERROR, "takes int8_symmetric"),
    ("target-activation", narrow_npu(schemes=("w8",)), untouched, Severity.ERROR, "takes no integer activations"),
    ("target-activation", narrow_npu(schemes=("w8a16",)), untouched, Severity.ERROR, "takes int16_symmetric"),
    ("target-weight", narrow_npu(), wide_weight, Severity.ERROR, "levels -128 to 127"),
    ("target-weight", narrow_npu(weights=INT7_NARROW), untouched, Severity.ERROR, "takes int7_narrow"),
    ("target-weight", narrow_npu(), weight_zero_point, Severity.ERROR, "with zero points"),
    ("target-granularity", narrow_npu(per_channel=False), untouched, Severity.ERROR, "has 4 scales"),
    ("target-size", narrow_npu(max_tensor_dims=3), untouched, Severity.ERROR, "at most 3 dimensions"),
    ("target-size", narrow_npu(max_tensor_size=639), untouched, Severity.ERROR, "'w2_q' has 640"),
    ("target-size", narrow_npu(), open_batch, Severity.ERROR, "no dynamic shapes"),
    ("target-size", narrow_npu(), larger_batch, Severity.ERROR, "batches of at most 1"),
]


def test_clean_model_fits_the_targets_that_take_it() -> None:
    assert check_model(clean_model(), narrow_npu()) == []
    assert check_model(clean_model(), "wia-cpu") == []
    assert check_model(clean_model(), narrow_npu(runs_float=False)) == []


def test_every_rule_of_a_target_has_a_seeded_defect() -> None:
    assert {rule for rule, *_ in TARGET_DEFECTS} == set(TARGET_RULES)


@pytest.mark.parametrize(
    ("rule", "target", "seed", "severity", "says"),
    TARGET_DEFECTS,
    ids=[f"{d[0]}-{i}" for i, d in enumerate(TARGET_DEFECTS)],
)
def test_what_a_target_does_not_take_is_found_by_its_rule(
    rule: str, target: Target, seed: Callable[[ModelProto], None], severity: Severity, says: str
) -> None:
    model = clean_model()
    seed(model)
    found = [f for f in check_model(model, target) if f.rule in TARGET_RULES]
    assert {f.rule for f in found} == {rule}
    assert {f.severity for f in found} == {severity}
    assert any(says in f.message for f in found)
    assert all((f.node or f.tensor) and f.remedy for f in found)


def constant_node_weight(model: ModelProto) -> None:
    """The weight as a Constant node whose floats are quantized on every run, as tools that insert pairs leave it."""
    float_weight(model)
    tensor = next(t for t in model.graph.initializer if t.name == "w2_float")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w2_float"], "w2_constant", value=tensor))
    model.graph.initializer.remove(tensor)


def test_a_weight_quantized_on_every_run_is_no_activation() -> None:
    model = clean_model()
    constant_node_weight(model)
    assert {f.rule for f in check_model(model)} == {"float-copy"}


def test_a_weight_quantized_on_every_run_is_looked_at_as_a_weight() -> None:
    model = clean_model()
    constant_node_weight(model)
    set_constant(model, "w2_zp", np.array([0, 0, 3, 0, 0], np.int8))
    assert {f.rule for f in check_model(model)} == {"float-copy", "weight-zero-point"}


def test_a_constant_that_is_added_may_have_a_zero_point_and_all_levels() -> None:
    model = clean_model()
    for name, value in (("a_q", np.full((1, 5), -128, np.int8)), ("a_zp", np.array(9, np.int8))):
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    model.graph.node.append(helper.make_node("DequantizeLinear", ["a_q", "y_scale", "a_zp"], ["a"], "a_dequantize"))
    model.graph.node.append(helper.make_node("Add", ["y", "a"], ["z"], "add"))
    model.graph.output[0].name = "z"
    assert check_model(model) == []


def test_a_pair_before_a_pad_is_said_to_stand_there() -> None:
    model = clean_model()
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(8, np.int64), "pads"))
    at = [n.name for n in model.graph.node].index("conv")
    model.graph.node.insert(at, helper.make_node("Pad", ["x_dq", "pads"], ["x_padded"], "pad"))
    node(model, "conv").input[0] = "x_padded"
    (found,) = check_model(model)
    assert found.severity is Severity.NOTE
    assert "is quantized before Pad 'pad', not behind it" in found.message
