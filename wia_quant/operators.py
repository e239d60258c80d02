# SPDX-License-Identifier: Apache-2.0
"""How each operator is quantized: a table, one line an operator, with the reason where it stays float."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Final

from wia_quant.graph import Model, Node


class Kind(Enum):
    """What an operator does to the integers."""

    PRODUCT = "integer sums of products; weights by channel, the bias int32"
    BINARY = "two tensors of their own scales into one of its own"
    POINTWISE = "a function of one value: a table of 256 levels"
    OWN = "an input of one scale, an output of its own"
    MOVES = "values change places, the scale stays"
    CONCAT = "one scale for all inputs and the output"
    EMBEDDING = "rows of a table picked by integers: the table is int8, one scale a row"
    FLOAT = "kept float"


class Role(Enum):
    """What an input is to its operator."""

    ACTIVATION = "activation"
    WEIGHT = "weight"
    BIAS = "bias"
    IGNORED = "ignored"


#: Why a particular node cannot be taken although its operator can; None when it can.
Condition = Callable[[Model, Node], str | None]


@dataclass(frozen=True)
class Operator:
    """One line of the table.

    Attributes:
        kind: what happens to the integers.
        roles: of the inputs by position; the last one repeats.
        why: the reason shown in the plan.
        condition: finds what is special in one node that keeps it float.
        weight_axis: the axis of the weight with a scale of its own, from the node and the weight's rank.
    """

    kind: Kind
    roles: tuple[Role, ...]
    why: str
    condition: Condition | None = None
    weight_axis: Callable[[Node, int], int] | None = None

    def role(self, index: int) -> Role:
        """The role of the input at ``index``."""
        return self.roles[min(index, len(self.roles) - 1)]


_A, _W, _B, _I = Role.ACTIVATION, Role.WEIGHT, Role.BIAS, Role.IGNORED


def _gemm_weight_axis(node: Node, rank: int) -> int:
    return 0 if node.integer("transB", 0) else 1


def _conv_condition(model: Model, node: Node) -> str | None:
    if model.array(node.input(1)) is None:
        return "its weight is computed while running"
    if node.input(2) and model.array(node.inputs[2]) is None:
        return "its bias is computed while running"
    return None


def _gemm_condition(model: Model, node: Node) -> str | None:
    if node.integer("transA", 0):
        return "transA: the activation would be transposed first"
    if node.attribute("alpha", 1.0) != 1.0 or (node.input(2) and node.attribute("beta", 1.0) != 1.0):
        return "alpha or beta is not 1 and could not be folded"
    if not node.input(2):
        return None
    bias = model.array(node.inputs[2])
    if bias is None:
        return "its bias is computed while running"
    weight = model.shape(node.inputs[1])
    axis = _gemm_weight_axis(node, 2)
    if weight is None or bias.shape != (weight[axis],):
        return "its bias is not one value a column"
    return None


def _matmul_condition(model: Model, node: Node) -> str | None:
    for name in node.inputs:
        rank = model.rank(name)
        if rank is not None and rank < 2:
            return "a vector operand"
    return None


def _embedding_condition(model: Model, node: Node) -> str | None:
    data = model.array(node.inputs[0])
    if data is None:
        return None
    if node.integer("axis", 0) != 0 or data.ndim != 2:
        return "a constant that is not a table of rows"
    return None


def _two_inputs(model: Model, node: Node) -> str | None:
    return None if len(node.inputs) == 2 else "other than two inputs"


def _division(model: Model, node: Node) -> str | None:
    return "division by a tensor: quotients near zero lose all precision"


def _no_second_output(model: Model, node: Node) -> str | None:
    extra = [o for o in node.outputs[1:] if o and (model.consumers(o) or o in model.outputs)]
    return "its second output is used" if extra else None


def _spatial_mean(model: Model, node: Node) -> str | None:
    rank = model.rank(node.inputs[0])
    if "axes" in node.attributes or not node.input(1):
        axes = node.integers("axes")
    else:
        array = model.array(node.inputs[1])
        axes = None if array is None else [int(v) for v in array]
    if rank is None or rank < 4 or not axes or sorted(a % rank for a in axes) != list(range(2, rank)):
        return "a mean over other than the spatial axes: part of a normalization, or worth float precision"
    if any(set(node.inputs[:1]) & set(reader.inputs) for reader in model.consumers(node.outputs[0])):
        return "the mean that a normalization subtracts"
    return None


def _resize_mode(model: Model, node: Node) -> str:
    return str(node.attribute("mode", "nearest"))


def _constant_exponent(model: Model, node: Node) -> str | None:
    exponent = model.array(node.input(1))
    if exponent is None or exponent.size != 1 or float(exponent.reshape(-1)[0]) not in (2.0, 3.0):
        return "a power other than a square or a cube"
    return None


def _constant_bounds(model: Model, node: Node) -> str | None:
    for name in filter(None, node.inputs[1:]):
        if model.array(name) is None:
            return "its bounds are computed while running"
    return None


def _one_slope(model: Model, node: Node) -> str | None:
    return None if model.array(node.input(1)) is not None else "its slope is computed while running"


def _product(why: str, condition: Condition, axis: Callable[[Node, int], int]) -> Operator:
    return Operator(Kind.PRODUCT, (_A, _W, _B), why, condition, axis)


def _moves(condition: Condition | None = None) -> Operator:
    return Operator(Kind.MOVES, (_A, _I), "only moves values: input and output share one scale", condition)


def _pointwise(condition: Condition | None = None) -> Operator:
    return Operator(Kind.POINTWISE, (_A, _I), "a function of one value: a table of its levels", condition)


def _binary(condition: Condition | None = None) -> Operator:
    return Operator(Kind.BINARY, (_A, _A), "elementwise on integers, the output has its own scale", condition)


def _own(why: str, condition: Condition | None = None) -> Operator:
    return Operator(Kind.OWN, (_A, _I), why, condition)


def _float(why: str) -> Operator:
    return Operator(Kind.FLOAT, (_I,), why)


_NORMALIZATION: Final = "a normalization: sums of squares need float precision"
_EXPONENTIAL: Final = "an exponential: its error grows with its value"
_RECURRENT: Final = "recurrent: its error would add up over time steps"
_CONTROL: Final = "control flow; the nodes inside are looked at one by one"
_SHAPES: Final = "works on shapes, indices or flags, not on activations"

#: op_type of the ai.onnx domain -> how it is quantized. What is not listed stays float.
OPERATORS: Final = MappingProxyType(
    {
        # Products. Weight axis: the output channels (format.md, Structure 3).
        "Conv": _product("integer convolution, weights by output channel (axis 0)", _conv_condition, lambda n, r: 0),
        "ConvTranspose": _product(
            "integer transposed convolution, weights by output channel of a group (axis 1)",
            _conv_condition,
            lambda n, r: 1,
        ),
        "Gemm": _product("integer matrix product, weights by output column", _gemm_condition, _gemm_weight_axis),
        "MatMul": _product("integer matrix product, weights by output column", _matmul_condition, lambda n, r: r - 1),
        # Elementwise on two tensors; with one scalar constant, or one source for both, they are pointwise.
        "Add": _binary(),
        "Sub": _binary(),
        "Mul": _binary(),
        "Div": _binary(_division),
        # Pointwise: runs of these between two quantized tensors are one unit.
        "Relu": _pointwise(),
        "Clip": _pointwise(_constant_bounds),
        "LeakyRelu": _pointwise(),
        "ThresholdedRelu": _pointwise(),
        "PRelu": _own("each channel has its slope; input and output have their own scales", _one_slope),
        "Elu": _pointwise(),
        "Selu": _pointwise(),
        "Celu": _pointwise(),
        "HardSigmoid": _pointwise(),
        "HardSwish": _pointwise(),
        "Sigmoid": _pointwise(),
        "Swish": _pointwise(),
        "Tanh": _pointwise(),
        "Gelu": _pointwise(),
        "Mish": _pointwise(),
        "Softplus": _pointwise(),
        "Softsign": _pointwise(),
        "Erf": _pointwise(),
        "Abs": _pointwise(),
        "Neg": _pointwise(),
        "Pow": _pointwise(_constant_exponent),
        "Min": Operator(Kind.POINTWISE, (_A, _A), "a bound: a table of its levels", _two_inputs),
        "Max": Operator(Kind.POINTWISE, (_A, _A), "a bound: a table of its levels", _two_inputs),
        # Averages and interpolation: new values in between.
        "AveragePool": _own("an average has a smaller range than its input: its own scale"),
        "GlobalAveragePool": _own("an average has a smaller range than its input: its own scale"),
        "ReduceMean": _own("an average has a smaller range than its input: its own scale", _spatial_mean),
        "Resize": _own("interpolates between values: its own scale"),
        "Upsample": _own("interpolates between values: its own scale"),
        # Movers.
        "Reshape": _moves(),
        "Flatten": _moves(),
        "Transpose": _moves(),
        "Squeeze": _moves(),
        "Unsqueeze": _moves(),
        "Slice": _moves(),
        "Split": _moves(),
        "Expand": _moves(),
        "Tile": _moves(),
        "MaxPool": _moves(_no_second_output),
        "GlobalMaxPool": _moves(),
        "ReduceMax": _moves(),
        "ReduceMin": _moves(),
        "DepthToSpace": _moves(),
        "SpaceToDepth": _moves(),
        "Pad": _moves(),
        "Gather": Operator(Kind.MOVES, (_A, _I), "picks values: both sides share one scale", _embedding_condition),
        "Concat": Operator(Kind.CONCAT, (_A,), "joins tensors: inputs and output share one scale"),
        # Float.
        **dict.fromkeys(
            ("Softmax", "LogSoftmax", "Exp", "Log", "ReduceLogSumExp", "ReduceSumSquare"), _float(_EXPONENTIAL)
        ),
        **dict.fromkeys(
            (
                "LayerNormalization", "GroupNormalization", "InstanceNormalization", "LpNormalization", "LRN",
                "MeanVarianceNormalization", "RMSNormalization", "BatchNormalization", "Sqrt", "Reciprocal",
                "ReduceSum", "ReduceL1", "ReduceL2", "CumSum",
            ),
            _float(_NORMALIZATION),
        ),
        **dict.fromkeys(("LSTM", "GRU", "RNN"), _float(_RECURRENT)),
        **dict.fromkeys(("If", "Loop", "Scan"), _float(_CONTROL)),
        **dict.fromkeys(
            (
                "Shape", "Size", "Range", "NonZero", "ArgMax", "ArgMin", "Equal", "Greater", "Less", "GreaterOrEqual",
                "LessOrEqual", "And", "Or", "Not", "Xor", "OneHot", "TopK", "NonMaxSuppression", "ConstantOfShape",
            ),
            _float(_SHAPES),
        ),
        "Cast": _float("changes the type"),
        "Where": _float("chooses between tensors, one of which is often a mask of huge values"),
    }
)  # fmt: skip

_UNKNOWN: Final = _float("no integer form is known for it")
_FOREIGN: Final = _float("not an operator of the ONNX standard; passed through untouched")
_NEAREST: Final = _moves()
_PADDED: Final = _own("pads with a value other than zero: its own scale")
_EMBEDDING: Final = Operator(
    Kind.EMBEDDING, (_W, _I), "an embedding: int8 rows, one scale a row (axis 0)", None, lambda n, r: 0
)


def operator(model: Model, node: Node) -> Operator:
    """The line of the table for this node, seen with its attributes and constants."""
    if not node.standard:
        return _FOREIGN
    if node.op_type in ("Resize", "Upsample") and _resize_mode(model, node) == "nearest":
        return _NEAREST
    if node.op_type == "Pad" and not _pads_with_zero(model, node):
        return _PADDED
    if node.op_type == "PRelu":
        slope = model.array(node.input(1))
        if slope is not None and slope.size == 1:
            return OPERATORS["LeakyRelu"]
    if (
        node.op_type == "Gather"
        and model.array(node.inputs[0]) is not None
        and _embedding_condition(model, node) is None
    ):
        return _EMBEDDING
    return OPERATORS.get(node.op_type, _UNKNOWN)


def _pads_with_zero(model: Model, node: Node) -> bool:
    if node.attribute("mode", "constant") != "constant" or not node.input(2):
        return True
    value = model.array(node.inputs[2])
    return value is not None and not value.any()
