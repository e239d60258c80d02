# SPDX-License-Identifier: Apache-2.0
"""Functions of one value, and softmax: by the name that Keras gives them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from wia_quant.builder import Builder, Tensor
from wia_quant.errors import ExportError
from wia_quant.gelu import gelu, gelu_tanh
from wia_quant.keras.steps import Step
from wia_quant.keras.trace import Value
from wia_quant.keras.values import array

Function = Callable[[Builder, Tensor], Tensor]


def _simple(op_type: str, **attributes: Any) -> Function:
    return lambda b, x: b.unary(x, op_type, **attributes)


def clip(b: Builder, x: Tensor, lo: float | None, hi: float | None) -> Tensor:
    """``min(max(x, lo), hi)``."""
    ends = ["" if end is None else b.floats(end, name) for end, name in ((lo, "min"), (hi, "max"))]
    return b.unary(x, "Clip", *(ends if hi is not None else ends[:1]))


def _scaled(b: Builder, x: Tensor, by: float) -> Tensor:
    return b.unary(x, "Mul", b.floats(by, "factor"))


def _times(b: Builder, x: Tensor, gate: Callable[[Tensor], str]) -> Tensor:
    return b.elementwise(x, lambda y: b.node("Mul", [y.name, gate(y)]))


def _silu(b: Builder, x: Tensor) -> Tensor:
    return _times(b, x, lambda y: b.node("Sigmoid", [y.name]))


def _hard_silu(b: Builder, x: Tensor) -> Tensor:
    return b.unary(x, "HardSwish")


def _log_sigmoid(b: Builder, x: Tensor) -> Tensor:
    return b.unary(b.unary(b.unary(x, "Neg"), "Softplus"), "Neg")


def _tanh_shrink(b: Builder, x: Tensor) -> Tensor:
    return b.elementwise(x, lambda y: b.node("Sub", [y.name, b.node("Tanh", [y.name])]))


def _squareplus(b: Builder, x: Tensor) -> Tensor:
    def make(y: Tensor) -> str:
        square = b.node("Add", [b.node("Mul", [y.name, y.name]), b.floats(4.0, "four")])
        return b.node("Add", [y.name, b.node("Sqrt", [square])])

    return _scaled(b, b.elementwise(x, make), 0.5)


def _softmax(op_type: str) -> Function:
    return lambda b, x: along_axis(b, x, op_type, -1)


def along_axis(b: Builder, x: Tensor, op_type: str, axis: int) -> Tensor:
    """Softmax and its kin, along one of Keras' axes."""
    x = b.logical(x) if x.unflattened is not None else x
    return b.like(x, b.node(op_type, [x.name], axis=x.axis(axis)))


def relu(
    b: Builder, x: Tensor, max_value: float | None = None, negative_slope: float = 0.0, threshold: float = 0.0
) -> Tensor:
    """The layer ReLU, whose parameters most leave as they are."""
    if threshold:
        raise ExportError(f"layer '{b.where}': a ReLU with a threshold has no ONNX form here")
    if negative_slope:
        y = b.unary(x, "LeakyRelu", alpha=negative_slope)
        return y if max_value is None else clip(b, y, None, max_value)
    return b.unary(x, "Relu") if max_value is None else clip(b, x, 0.0, max_value)


#: Name of a function of keras.activations, keras.ops or tf.nn -> what writes it.
ACTIVATIONS: Final[Mapping[str, Function]] = MappingProxyType(
    {
        "linear": lambda b, x: x,
        "relu": _simple("Relu"),
        "relu6": lambda b, x: clip(b, x, 0.0, 6.0),
        "leaky_relu": _simple("LeakyRelu", alpha=0.2),
        "elu": _simple("Elu"),
        "selu": _simple("Selu"),
        "celu": _simple("Celu"),
        "sigmoid": _simple("Sigmoid"),
        "hard_sigmoid": _simple("HardSigmoid", alpha=1 / 6, beta=0.5),
        "hard_sigmoid_of_tf_keras": _simple("HardSigmoid", alpha=0.2, beta=0.5),
        "log_sigmoid": _log_sigmoid,
        "tanh": _simple("Tanh"),
        "hard_tanh": lambda b, x: clip(b, x, -1.0, 1.0),
        "tanh_shrink": _tanh_shrink,
        "soft_shrink": _simple("Shrink", lambd=0.5, bias=0.5),
        "hard_shrink": _simple("Shrink", lambd=0.5, bias=0.0),
        "squareplus": _squareplus,
        "silu": _silu,
        "swish": _silu,
        "hard_silu": _hard_silu,
        "hard_swish": _hard_silu,
        "gelu": gelu,
        "gelu_tanh": gelu_tanh,
        "mish": _simple("Mish"),
        "softplus": _simple("Softplus"),
        "softsign": _simple("Softsign"),
        "exponential": _simple("Exp"),
        "exp": _simple("Exp"),
        "log": _simple("Log"),
        "abs": _simple("Abs"),
        "absolute": _simple("Abs"),
        "negative": _simple("Neg"),
        "sqrt": _simple("Sqrt"),
        "erf": _simple("Erf"),
        "sin": _simple("Sin"),
        "cos": _simple("Cos"),
        "floor": _simple("Floor"),
        "ceil": _simple("Ceil"),
        "round": _simple("Round"),
        "sign": _simple("Sign"),
        "reciprocal": _simple("Reciprocal"),
        "expm1": lambda b, x: b.unary(b.unary(x, "Exp"), "Sub", b.floats(1.0, "one")),
        "log1p": lambda b, x: b.unary(b.unary(x, "Add", b.floats(1.0, "one")), "Log"),
        "square": lambda b, x: _times(b, x, lambda y: y.name),
        "rsqrt": lambda b, x: b.unary(b.unary(x, "Sqrt"), "Reciprocal"),
        "softmax": _softmax("Softmax"),
        "log_softmax": _softmax("LogSoftmax"),
    }
)


def function_name(function: Any) -> str:
    """What ACTIVATIONS calls a function."""
    name = str(getattr(function, "__name__", type(function).__name__))
    if name == "hard_sigmoid" and str(getattr(function, "__module__", "")).startswith("tf_keras"):
        return "hard_sigmoid_of_tf_keras"
    return name


def activation(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The activation that belongs to another layer; ``step.layer`` is the function."""
    return _by_name(b, function_name(step.layer), x)


def activation_layer(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer Activation."""
    return _by_name(b, function_name(step.layer.activation), x)


def _by_name(b: Builder, name: str, x: Tensor) -> Tensor:
    if name not in ACTIVATIONS:
        raise ExportError(f"layer '{b.where}': activation '{name}' has no ONNX form here; see docs/keras.md")
    return ACTIVATIONS[name](b, x)


def relu_layer(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer ReLU."""
    limit = step.layer.max_value
    return relu(
        b,
        x,
        None if limit is None else float(limit),
        float(step.layer.negative_slope or 0),
        float(step.layer.threshold or 0),
    )


def leaky_relu_layer(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer LeakyReLU, whose slope each framework names in its own way."""
    slope = step.layer.negative_slope if hasattr(step.layer, "negative_slope") else step.layer.alpha
    return b.unary(x, "LeakyRelu", alpha=float(slope))


def prelu_layer(b: Builder, step: Step, x: Tensor) -> Tensor:
    """PReLU: a slope for every value of a sample, or shared along axes."""
    x = b.logical(x) if x.unflattened is not None else x
    slope = np.asarray(step.layer.alpha)[None]
    arranged = slope if x.order is None else slope.transpose(x.order)
    return b.like(x, b.node("PRelu", [x.name, b.floats(arranged[0], "slope")]))


def elu_layer(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer ELU."""
    return b.unary(x, "Elu", alpha=float(step.layer.alpha))


#: What Keras puts in the place of a masked value.
_NEVER: Final = np.float32(-1e9)


def softmax_layer(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer Softmax."""
    axis = step.layer.axis
    if isinstance(axis, list | tuple):
        if len(axis) != 1:
            raise ExportError(f"layer '{b.where}': a softmax over several axes has no ONNX form here")
        axis = axis[0]
    mask = step.kwargs.get("mask")
    if mask is not None:
        if isinstance(mask, Tensor | Value):
            raise ExportError(f"layer '{b.where}': a softmax whose mask is a tensor has no ONNX form here")
        hidden = (1 - array(mask).astype(np.float32)) * _NEVER
        x = b.logical(x)
        x = b.like(x, b.node("Add", [x.name, b.floats(hidden, "mask")]))
    return along_axis(b, x, "Softmax", int(axis))
