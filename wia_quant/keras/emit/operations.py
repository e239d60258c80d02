# SPDX-License-Identifier: Apache-2.0
"""Functions that a model calls outside layers: ``x + y``, ``keras.ops.mean``, ``tf.nn.relu``, ``x[:, 1:]``.

Keras 3 keeps an object of an operation's class, with its parameters as attributes; tf_keras a TFOpLambda that names
the function, with its parameters as arguments. ``Operation`` reads both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from wia_quant.builder import Array, Builder, Tensor
from wia_quant.errors import ExportError
from wia_quant.keras.emit import activations
from wia_quant.keras.emit.merging import binary, concatenated
from wia_quant.keras.emit.shapes import get_item, permuted, reshape_to
from wia_quant.keras.steps import Step
from wia_quant.keras.values import array

_REQUIRED: Final = object()


@dataclass(frozen=True)
class Operation:
    """One call of a function: its operands and parameters, whichever framework made it."""

    step: Step
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def parameter(self, name: str, place: int, default: Any = _REQUIRED) -> Any:
        """A parameter by its name, its place among the positional arguments, or as an attribute of the object."""
        if name in self.kwargs:
            return self.kwargs[name]
        if place < len(self.args):
            return self.args[place]
        found = getattr(self.step.layer, name, default)
        if found is _REQUIRED:
            raise ExportError(f"operation '{self.step.name}': no parameter '{name}'")
        return found

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Of the result."""
        return self.step.outputs[0].shape


Emit = Callable[[Builder, Operation], Tensor | list[Tensor]]


def _constant(value: Any) -> Array | None:
    if isinstance(value, Tensor):
        return None
    return np.asarray(array(value), np.float32)


def _binary(op_type: str) -> Emit:
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
            return y if y.unflattened is not None else b.like(x, y.name, op.shape)
        return binary(b, op_type, left, right, op.shape)

    return emit


def _operand_names(op: Operation) -> tuple[str, str]:
    return ("x", "y") if not {"x1", "x2"} & set(op.kwargs) else ("x1", "x2")


def _x(op: Operation) -> Tensor:
    for name in ("x", "input", "input_tensor", "features", "logits", "tensor", "a"):
        if name in op.kwargs:
            found: Tensor = op.kwargs[name]
            return found
    first: Tensor = op.args[0]
    return first


def _unary(name: str) -> Emit:
    return lambda b, op: activations.ACTIVATIONS[name](b, _x(op))


def _leaky(b: Builder, op: Operation) -> Tensor:
    slope = op.parameter("negative_slope", 1, None)
    return b.unary(_x(op), "LeakyRelu", alpha=float(op.parameter("alpha", 1, 0.2) if slope is None else slope))


def _gelu(b: Builder, op: Operation) -> Tensor:
    name = "gelu_tanh" if op.parameter("approximate", 1, False) else "gelu"
    return activations.ACTIVATIONS[name](b, _x(op))


def _softmax(op_type: str) -> Emit:
    return lambda b, op: activations.along_axis(b, _x(op), op_type, int(op.parameter("axis", 1, -1)))


def _clip(low: str, high: str) -> Emit:
    return lambda b, op: activations.clip(b, _x(op), float(op.parameter(low, 1)), float(op.parameter(high, 2)))


def _power(b: Builder, op: Operation) -> Tensor:
    return b.unary(_x(op), "Pow", b.floats(float(op.parameter("x2", 1, op.kwargs.get("y"))), "exponent"))


def _reduce(op_type: str) -> Emit:
    def emit(b: Builder, op: Operation) -> Tensor:
        x, axis = _x(op), op.parameter("axis", 1, None)
        if x.unflattened is not None:
            x = b.logical(x)
        axes = list(range(x.rank)) if axis is None else [axis] if isinstance(axis, int) else list(axis)
        keep = bool(op.parameter("keepdims", 2, False))
        places = [x.axis(int(a)) for a in axes]
        spatial = sorted(places) == list(range(2, x.rank)) and x.order is not None
        if not keep and not spatial:
            x = b.logical(x)
            places = [int(a) % x.rank for a in axes]
        name = b.node(op_type, [x.name, b.integers(sorted(places), "axes")], keepdims=int(keep))
        return Tensor(name, op.shape, x.order if keep else None, x.dtype)

    return emit


def _reshape(b: Builder, op: Operation) -> Tensor:
    shape = [int(d) if d is not None else -1 for d in op.parameter("newshape", 1, op.kwargs.get("shape"))]
    return reshape_to(b, _x(op), shape[1:], op.shape)


def _transpose(b: Builder, op: Operation) -> Tensor:
    x = _x(op)
    x = b.logical(x) if x.unflattened is not None else x
    axes = op.parameter("axes", 1, None)
    axes = op.kwargs.get("perm") if axes is None else axes
    return permuted(x, list(range(x.rank))[::-1] if axes is None else [int(a) for a in axes])


def _concat(b: Builder, op: Operation) -> Tensor:
    xs = op.parameter("xs", 0, op.kwargs.get("values"))
    return concatenated(b, list(xs), int(op.parameter("axis", 1, -1)), op.shape)


def _get_item(b: Builder, op: Operation) -> Tensor:
    key = op.parameter("key", 1, op.kwargs.get("slice_spec"))
    return get_item(b, _x(op), _slices(key), op.shape)


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


def _squeeze(b: Builder, op: Operation) -> Tensor:
    x, axis = b.logical(_x(op)), op.parameter("axis", 1, None)
    axes = [i for i, d in enumerate(x.shape) if d == 1] if axis is None else axis
    axes = [int(a) % x.rank for a in (axes if isinstance(axes, list | tuple) else [axes])]
    return Tensor(b.node("Squeeze", [x.name, b.integers(axes, "axes")]), op.shape, None, x.dtype)


def _expand_dims(b: Builder, op: Operation) -> Tensor:
    x, axis = b.logical(_x(op)), op.parameter("axis", 1)
    axes = [int(a) % len(op.shape) for a in (axis if isinstance(axis, list | tuple) else [axis])]
    return Tensor(b.node("Unsqueeze", [x.name, b.integers(axes, "axes")]), op.shape, None, x.dtype)


def _cast(b: Builder, op: Operation) -> Tensor:
    x, dtype = _x(op), op.step.outputs[0].dtype
    if dtype == x.dtype:
        return x
    if dtype != "float32":
        raise ExportError(f"operation '{op.step.name}': a cast to {dtype} has no ONNX form here")
    return Tensor(b.node("Cast", [x.name], to=1), x.shape, x.order, dtype)


def _identity(b: Builder, op: Operation) -> Tensor:
    return _x(op)


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
        **{
            cls: _unary(name)
            for cls, name in (
                ("Relu", "relu"), ("Relu6", "relu6"), ("Sigmoid", "sigmoid"), ("Tanh", "tanh"), ("Silu", "silu"),
                ("HardSigmoid", "hard_sigmoid"), ("HardSilu", "hard_silu"), ("HardSwish", "hard_silu"),
                ("Softplus", "softplus"), ("Softsign", "softsign"), ("Selu", "selu"), ("Elu", "elu"),
                ("Mish", "mish"), ("Exp", "exp"), ("Log", "log"), ("Abs", "abs"), ("Absolute", "abs"),
                ("Negative", "negative"), ("Sqrt", "sqrt"), ("Rsqrt", "rsqrt"), ("Square", "square"), ("Erf", "erf"),
            )
        },
        "LeakyRelu": _leaky,
        "Gelu": _gelu,
        "Softmax": _softmax("Softmax"),
        "LogSoftmax": _softmax("LogSoftmax"),
        "Clip": _clip("x_min", "x_max"),
        "Power": _power,
        "Mean": _reduce("ReduceMean"),
        "Max": _reduce("ReduceMax"),
        "Min": _reduce("ReduceMin"),
        "Sum": _reduce("ReduceSum"),
        "Reshape": _reshape,
        "Transpose": _transpose,
        "Concatenate": _concat,
        "GetItem": _get_item,
        "Matmul": _matmul,
        "Squeeze": _squeeze,
        "ExpandDims": _expand_dims,
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
        "math.divide": "Divide",
        "math.maximum": "Maximum",
        "math.minimum": "Minimum",
        "nn.relu": "Relu",
        "nn.relu6": "Relu6",
        "nn.leaky_relu": "LeakyRelu",
        "nn.elu": "Elu",
        "nn.selu": "Selu",
        "nn.gelu": "Gelu",
        "nn.silu": "Silu",
        "nn.softplus": "Softplus",
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
        "transpose": "Transpose",
        "compat.v1.transpose": "Transpose",
        "concat": "Concatenate",
        "__operators__.getitem": "GetItem",
        "linalg.matmul": "Matmul",
        "squeeze": "Squeeze",
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
