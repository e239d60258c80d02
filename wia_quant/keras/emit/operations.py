# SPDX-License-Identifier: Apache-2.0
"""Functions that a model calls outside layers: ``x + y``, ``keras.ops.mean``, ``tf.nn.relu``, ``x[:, 1:]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final

import numpy as np

from wia_quant.builder import ELEMENT_TYPES, Array, Builder, Tensor
from wia_quant.errors import ExportError
from wia_quant.keras.emit import activations, pooling, rearranging
from wia_quant.keras.emit.merging import binary
from wia_quant.keras.emit.normalization import unit_length
from wia_quant.keras.emit.operation import BY_NAME, REQUIRED, Emit, Operation
from wia_quant.keras.emit.shapes import get_item
from wia_quant.keras.steps import Step
from wia_quant.keras.values import array


def _constant(value: Any) -> Array | None:
    if isinstance(value, Tensor):
        return None
    return np.asarray(array(value), np.float32)


def _binary(op_type: str, dtype: str | None = None) -> Emit:
    def emit(b: Builder, op: Operation) -> Tensor:
        pair = [op.parameter(name, i) for i, name in enumerate(_operand_names(op))]
        left, right = pair
        constants = [_constant(v) for v in pair]
        for i, value in enumerate(constants):
            if value is None:
                continue
            x = b.logical(pair[1 - i]) if pair[1 - i].unflattened is not None and value.ndim else pair[1 - i]
            if value.ndim > x.rank:
                x = b.logical(x)
                other = value
            else:
                other = b.spread(value, x)

            def make(t: Tensor, name: str = b.floats(other, "operand"), at: int = i) -> str:
                return b.node(op_type, [name, t.name] if at == 0 else [t.name, name])

            y = b.elementwise(x, make)
            return y if y.unflattened is not None else b.like(x, y.name, op.shape, dtype)
        y = binary(b, op_type, left, right, op.shape)
        return y if dtype is None else replace(y, dtype=dtype)

    return emit


def _operand_names(op: Operation) -> tuple[str, str]:
    return ("x", "y") if not {"x1", "x2"} & set(op.kwargs) else ("x1", "x2")


def _unary(name: str) -> Emit:
    return lambda b, op: activations.ACTIVATIONS[name](b, op.x)


def _leaky(b: Builder, op: Operation) -> Tensor:
    slope = op.parameter("negative_slope", 1, None)
    return b.unary(op.x, "LeakyRelu", alpha=float(op.parameter("alpha", 1, 0.2) if slope is None else slope))


def _gelu(b: Builder, op: Operation) -> Tensor:
    name = "gelu_tanh" if op.parameter("approximate", 1, False) else "gelu"
    return activations.ACTIVATIONS[name](b, op.x)


def _softmax(op_type: str) -> Emit:
    return lambda b, op: activations.along_axis(b, op.x, op_type, int(op.parameter("axis", 1, -1)))


def _clip(b: Builder, op: Operation) -> Tensor:
    lo = op.parameter("x_min", 1, aka=("clip_value_min",))
    hi = op.parameter("x_max", 2, aka=("clip_value_max",))
    if isinstance(lo, Tensor) or isinstance(hi, Tensor):
        raise ExportError(f"operation '{op.step.name}': bounds that are tensors have no ONNX form here")
    return activations.clip(b, op.x, float(lo), float(hi))


def _power(b: Builder, op: Operation) -> Tensor:
    exponent = op.parameter("x2", 1, aka=("y",))
    if isinstance(exponent, Tensor) or np.size(exponent) != 1:
        raise ExportError(f"operation '{op.step.name}': an exponent that is a tensor has no ONNX form here")
    return b.unary(op.x, "Pow", b.floats(float(array(exponent)), "exponent"))


def _squared_difference(b: Builder, op: Operation) -> Tensor:
    return activations.ACTIVATIONS["square"](b, _as_tensor(_binary("Sub")(b, op)))


def _as_tensor(found: Tensor | list[Tensor]) -> Tensor:
    assert isinstance(found, Tensor)
    return found


def _where(b: Builder, op: Operation) -> Tensor:
    names = (("condition", 0), ("x1", 1, REQUIRED, ("x",)), ("x2", 2, REQUIRED, ("y",)))
    operands = [op.parameter(*name) for name in names]
    tensors = [b.logical(v) if isinstance(v, Tensor) else Tensor(b.floats(array(v), "operand"), ()) for v in operands]
    return Tensor(b.node("Where", [t.name for t in tensors]), op.shape)


def _einsum(b: Builder, op: Operation) -> Tensor:
    subscripts = op.parameter("subscripts", 0, aka=("equation",))
    operands = op.args[1:] if op.args and isinstance(op.args[0], str) else op.args
    names = [b.logical(x).name if isinstance(x, Tensor) else b.floats(array(x), "matrix") for x in operands]
    return Tensor(b.node("Einsum", names, equation=subscripts), op.shape)


@dataclass(frozen=True)
class _Reduced:
    """Along which axes of the graph's tensor, and how the result lies."""

    x: Tensor
    axes: list[int]
    keep: bool
    order: tuple[int, ...] | None


def _reduced(b: Builder, op: Operation) -> _Reduced:
    x = b.logical(op.x) if op.x.unflattened is not None else op.x
    axes = op.axes("axis", 1, x.rank)
    axes = list(range(x.rank)) if axes is None else axes
    keep = bool(op.parameter("keepdims", 2, False))
    places = sorted(x.axis(a) for a in axes)
    spatial = places == list(range(2, x.rank)) and x.order is not None
    if not keep and not spatial:
        x = b.logical(x)
        places = sorted(axes)
    return _Reduced(x, places, keep, x.order if keep else None)


def _reduce(op_type: str) -> Emit:
    def emit(b: Builder, op: Operation) -> Tensor:
        r = _reduced(b, op)
        name = b.node(op_type, [r.x.name, b.integers(r.axes, "axes")], keepdims=int(r.keep))
        return Tensor(name, op.shape, r.order, r.x.dtype)

    return emit


def _variance(b: Builder, op: Operation) -> Tensor:
    r = _reduced(b, op)
    mean = b.node("ReduceMean", [r.x.name, b.integers(r.axes, "axes")], keepdims=1)
    apart = b.node("Sub", [r.x.name, mean])
    square = b.node("Mul", [apart, apart])
    name = b.node("ReduceMean", [square, b.integers(r.axes, "axes")], keepdims=int(r.keep))
    return Tensor(name, op.shape, r.order)


def _deviation(b: Builder, op: Operation) -> Tensor:
    return b.unary(_variance(b, op), "Sqrt")


def _place_of_end(op_type: str) -> Emit:
    def emit(b: Builder, op: Operation) -> Tensor:
        x = b.logical(op.x)
        axes, dtype = op.axes("axis", 1, x.rank), op.step.outputs[0].dtype
        if axes is None:
            raise ExportError(f"operation '{op.step.name}': without an axis it has no ONNX form here")
        name = b.node(op_type, [x.name], axis=axes[0], keepdims=int(bool(op.parameter("keepdims", 2, False))))
        return Tensor(b.node("Cast", [name], to=ELEMENT_TYPES[dtype]), op.shape, None, dtype)

    return emit


def _normalize(b: Builder, op: Operation) -> Tensor:
    x = b.logical(op.x) if op.x.unflattened is not None else op.x
    if int(op.parameter("order", BY_NAME, 2)) != 2:
        raise ExportError(f"operation '{op.step.name}': a norm of another order than 2 has no ONNX form here")
    given = op.parameter("epsilon", 2, 1e-12)
    # tf.math.l2_normalize bounds the square, keras.ops.normalize the norm.
    least = float(given) if hasattr(op.step.layer, "symbol") else float(given or 1e-7) ** 2
    axes = op.axes("axis", 1, x.rank)
    return unit_length(b, x, list(range(x.rank)) if axes is None else axes, least)


def _pool(op_type: str) -> Emit:
    def emit(b: Builder, op: Operation) -> Tensor:
        layout = op.parameter("data_format", BY_NAME, None)
        as_layer = SimpleNamespace(
            pool_size=op.parameter("pool_size", 1, aka=("ksize",)),
            strides=op.parameter("strides", 2, None),
            padding=str(op.parameter("padding", 3, "valid")).lower(),
            data_format="channels_first" if str(layout) in ("channels_first", "NCHW") else "channels_last",
        )
        return pooling.pool(b, replace(op.step, layer=as_layer), op.x, op_type)

    return emit


def _get_item(b: Builder, op: Operation) -> Tensor:
    key = op.parameter("key", 1, op.kwargs.get("slice_spec"))
    return get_item(b, op.x, _slices(key), op.shape)


def _slices(key: Any) -> Any:
    """tf_keras writes a slice as a dict."""
    if isinstance(key, Mapping):
        return slice(key.get("start"), key.get("stop"), key.get("step"))
    return tuple(_slices(k) for k in key) if isinstance(key, tuple | list) else key


def _matmul(b: Builder, op: Operation) -> Tensor:
    pair = [op.parameter(*p) for p in (("x1", 0, op.kwargs.get("a")), ("x2", 1, op.kwargs.get("b")))]
    names = [b.logical(x).name if isinstance(x, Tensor) else b.floats(array(x), "matrix") for x in pair]
    for i, flag in enumerate(("transpose_a", "transpose_b")):
        if op.kwargs.get(flag):
            rank = pair[i].rank
            names[i] = b.node("Transpose", [names[i]], perm=[*range(rank - 2), rank - 1, rank - 2])
    return Tensor(b.node("MatMul", names), op.shape)


def _cast(b: Builder, op: Operation) -> Tensor:
    x, dtype = op.x, op.step.outputs[0].dtype
    if dtype == x.dtype:
        return x
    if dtype != "float32":
        raise ExportError(f"operation '{op.step.name}': a cast to {dtype} has no ONNX form here")
    return Tensor(b.node("Cast", [x.name], to=1), x.shape, x.order, dtype)


def _identity(b: Builder, op: Operation) -> Tensor:
    return op.x


#: Class of an operation of keras.ops -> what writes it.
OPERATIONS: Final[Mapping[str, Emit]] = MappingProxyType(
    {
        "Add": _binary("Add"),
        "Subtract": _binary("Sub"),
        "Multiply": _binary("Mul"),
        "Divide": _binary("Div"),
        "TrueDivide": _binary("Div"),
        "Maximum": _binary("Max"),
        "Minimum": _binary("Min"),
        "SquaredDifference": _squared_difference,
        **{
            cls: _binary(op_type, "bool")
            for cls, op_type in (
                ("Greater", "Greater"), ("GreaterEqual", "GreaterOrEqual"), ("Less", "Less"),
                ("LessEqual", "LessOrEqual"), ("Equal", "Equal"),
            )
        },
        "Where": _where,
        **{
            cls: _unary(name)
            for cls, name in (
                ("Relu", "relu"), ("Relu6", "relu6"), ("Sigmoid", "sigmoid"), ("Tanh", "tanh"), ("Silu", "silu"),
                ("HardSigmoid", "hard_sigmoid"), ("HardSilu", "hard_silu"), 
                ("Softplus", "softplus"), ("Softsign", "softsign"), ("Selu", "selu"), ("Elu", "elu"),
                ("Exp", "exp"), ("Log", "log"), ("Abs", "abs"), ("Absolute", "abs"),
                ("Negative", "negative"), ("Sqrt", "sqrt"), ("Rsqrt", "rsqrt"), ("Square", "square"), ("Erf", "erf"),
                ("Sin", "sin"), ("Cos", "cos"), ("Floor", "floor"), ("Ceil", "ceil"), ("Round", "round"),
                ("Sign", "sign"), ("Reciprocal", "reciprocal"), ("Expm1", "expm1"), ("Log1p", "log1p"),
                ("LogSigmoid", "log_sigmoid"), ("HardTanh", "hard_tanh"), ("TanhShrink", "tanh_shrink"),
                ("Squareplus", "squareplus"),
            )
        },
        "LeakyRelu": _leaky,
        "Gelu": _gelu,
        "Softmax": _softmax("Softmax"),
        "LogSoftmax": _softmax("LogSoftmax"),
        "Clip": _clip,
        "Power": _power,
        "Mean": _reduce("ReduceMean"),
        "Max": _reduce("ReduceMax"),
        "Min": _reduce("ReduceMin"),
        "Sum": _reduce("ReduceSum"),
        "Prod": _reduce("ReduceProd"),
        "Logsumexp": _reduce("ReduceLogSumExp"),
        "Var": _variance,
        "Std": _deviation,
        "Argmax": _place_of_end("ArgMax"),
        "Argmin": _place_of_end("ArgMin"),
        "Normalize": _normalize,
        "MaxPool": _pool("MaxPool"),
        "AveragePool": _pool("AveragePool"),
        "Reshape": rearranging.reshape,
        "Transpose": rearranging.transpose,
        "Swapaxes": rearranging.swapaxes,
        "Moveaxis": rearranging.moveaxis,
        "Concatenate": rearranging.concat,
        "Stack": rearranging.stack,
        "Split": rearranging.split,
        "Unstack": rearranging.unstack,
        "Pad": rearranging.pad,
        "Flip": rearranging.flip,
        "Tile": rearranging.tile,
        "Repeat": rearranging.repeat,
        "Roll": rearranging.roll,
        "Take": rearranging.take,
        "DepthToSpace": rearranging.depth_to_space("DepthToSpace", mode="DCR"),
        "SpaceToDepth": rearranging.depth_to_space("SpaceToDepth"),
        "Resize": rearranging.resize,
        "GetItem": _get_item,
        "Matmul": _matmul,
        "Einsum": _einsum,
        "Squeeze": rearranging.squeeze,
        "ExpandDims": rearranging.expand_dims,
        "Cast": _cast,
        "Identity": _identity,
        "StopGradient": _identity,
    }
)  # fmt: skip

#: Name of a function in a TFOpLambda -> the class of keras.ops that does the same.
FUNCTIONS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "__operators__.add": "Add",
        "math.add": "Add",
        "math.subtract": "Subtract",
        "math.multiply": "Multiply",
        "math.truediv": "Divide",
        "math.maximum": "Maximum",
        "math.minimum": "Minimum",
        "math.pow": "Power",
        "math.squared_difference": "SquaredDifference",
        "math.greater": "Greater",
        "math.greater_equal": "GreaterEqual",
        "math.less": "Less",
        "math.less_equal": "LessEqual",
        "math.equal": "Equal",
        "where": "Where",
        "clip_by_value": "Clip",
        "math.sin": "Sin",
        "math.cos": "Cos",
        "math.floor": "Floor",
        "math.ceil": "Ceil",
        "math.round": "Round",
        "math.sign": "Sign",
        "math.reciprocal": "Reciprocal",
        "math.expm1": "Expm1",
        "math.log1p": "Log1p",
        "math.log_sigmoid": "LogSigmoid",
        "math.erf": "Erf",
        "math.l2_normalize": "Normalize",
        "math.argmax": "Argmax",
        "math.argmin": "Argmin",
        "math.reduce_prod": "Prod",
        "math.reduce_variance": "Var",
        "math.reduce_std": "Std",
        "math.reduce_logsumexp": "Logsumexp",
        "nn.max_pool2d": "MaxPool",
        "nn.avg_pool2d": "AveragePool",
        "nn.avg_pool": "AveragePool",
        "stack": "Stack",
        "split": "Split",
        "unstack": "Unstack",
        "compat.v1.pad": "Pad",
        "reverse": "Flip",
        "tile": "Tile",
        "repeat": "Repeat",
        "roll": "Roll",
        "compat.v1.gather": "Take",
        "nn.depth_to_space": "DepthToSpace",
        "nn.space_to_depth": "SpaceToDepth",
        "image.resize": "Resize",
        "einsum": "Einsum",
        "nn.relu": "Relu",
        "nn.relu6": "Relu6",
        "nn.leaky_relu": "LeakyRelu",
        "nn.elu": "Elu",
        "nn.selu": "Selu",
        "nn.gelu": "Gelu",
        "nn.silu": "Silu",
        "math.softplus": "Softplus",
        "nn.softsign": "Softsign",
        "nn.softmax": "Softmax",
        "nn.log_softmax": "LogSoftmax",
        "math.sigmoid": "Sigmoid",
        "math.tanh": "Tanh",
        "math.exp": "Exp",
        "math.log": "Log",
        "math.abs": "Abs",
        "math.negative": "Negative",
        "math.sqrt": "Sqrt",
        "math.rsqrt": "Rsqrt",
        "math.square": "Square",
        "math.reduce_mean": "Mean",
        "math.reduce_max": "Max",
        "math.reduce_min": "Min",
        "math.reduce_sum": "Sum",
        "reshape": "Reshape",
        "compat.v1.transpose": "Transpose",
        "concat": "Concatenate",
        "__operators__.getitem": "GetItem",
        "linalg.matmul": "Matmul",
        "compat.v1.squeeze": "Squeeze",
        "expand_dims": "ExpandDims",
        "cast": "Cast",
        "identity": "Identity",
        "stop_gradient": "StopGradient",
    }
)


def operation(name: str) -> Callable[[Builder, Step, tuple[Any, ...], Mapping[str, Any]], Tensor | list[Tensor]]:
    """The emitter of an operation of keras.ops."""
    return lambda b, step, args, kwargs: OPERATIONS[name](b, Operation(step, args, kwargs))
