# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and SimpleRNN as ONNX has them; they stay float, as their errors would add up in time."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from wia_quant.builder import Array, Builder, Tensor
from wia_quant.errors import ExportError
from wia_quant.keras.emit.activations import function_name
from wia_quant.keras.emit.merging import binary
from wia_quant.keras.steps import Step
from wia_quant.keras.values import array

#: Name of an activation -> ONNX' name of it inside recurrent operators.
_FUNCTIONS: Final = {
    "tanh": "Tanh",
    "sigmoid": "Sigmoid",
    "relu": "Relu",
    "softsign": "Softsign",
    "softplus": "Softplus",
}

#: Layer -> ONNX' operator and the places of its gates among Keras'.
_KINDS: Final = MappingProxyType(
    {"LSTM": ("LSTM", (0, 3, 1, 2)), "GRU": ("GRU", (0, 1, 2)), "SimpleRNN": ("RNN", (0,))}
)


def recurrent(kind: str) -> Callable[[Builder, Step, Any], Tensor]:
    """The emitter of a layer of this kind."""

    def emit(b: Builder, step: Step, x: Any) -> Tensor:
        layer = step.layer
        reverse = bool(layer.go_backwards)
        name = _run(b, step, layer, kind, _only(step, x), reverse)
        if reverse and layer.return_sequences:  # Keras leaves them in the order in which they were made
            ends = [b.integers([v], n) for v, n in ((-1, "start"), (-(2**63) + 1, "end"), (1, "axis"), (-1, "step"))]
            name = b.node("Slice", [name, *ends])
        return Tensor(name, step.outputs[0].shape)

    return emit


def bidirectional(b: Builder, step: Step, x: Any) -> Tensor:
    """Bidirectional: forwards and backwards, merged."""
    x = _only(step, x)
    pair = []
    for layer in (step.layer.forward_layer, step.layer.backward_layer):
        kind = type(layer).__name__
        if kind not in _KINDS:
            raise ExportError(f"layer '{step.name}': a Bidirectional of {kind} has no ONNX form here")
        shape = (*step.outputs[0].shape[:-1], int(layer.units))
        pair.append(Tensor(_run(b, step, layer, kind, x, bool(layer.go_backwards)), shape))
    mode = step.layer.merge_mode
    if mode == "concat":
        return Tensor(b.node("Concat", [t.name for t in pair], axis=-1), step.outputs[0].shape)
    if mode not in ("sum", "mul", "ave"):
        raise ExportError(f"layer '{step.name}': a Bidirectional with merge_mode {mode!r} has no ONNX form here")
    merged = binary(b, "Mul" if mode == "mul" else "Add", *pair)
    return b.unary(merged, "Mul", b.floats(0.5, "half")) if mode == "ave" else merged


def _only(step: Step, x: Any) -> Tensor:
    if isinstance(x, list | tuple) or len(step.inputs) > 1 or len(step.outputs) > 1:
        raise ExportError(f"layer '{step.name}': states that are given or returned have no ONNX form here")
    assert isinstance(x, Tensor)
    return x


def _run(b: Builder, step: Step, layer: Any, kind: str, x: Tensor, reverse: bool) -> str:
    """The results [batch, time, units] in the order of time, or the last one [batch, units]."""
    if layer.stateful:
        raise ExportError(f"layer '{step.name}': a stateful layer has no ONNX form here")
    op_type, gates = _KINDS[kind]
    cell, units = layer.cell, int(layer.units)
    functions = [_function(step, f) for f in _activations(kind, cell)]
    extra: dict[str, Any] = {"activations": functions}
    if kind == "GRU":
        extra["linear_before_reset"] = int(bool(cell.reset_after))

    def by_gate(w: Array) -> Array:
        """[..., gates * units] -> [gates * units, ...] in ONNX' order."""
        return np.concatenate([w[..., g * units : (g + 1) * units] for g in gates], axis=-1).T

    kernel, inner = by_gate(array(cell.kernel)), by_gate(array(cell.recurrent_kernel))
    bias = np.zeros((2, len(gates) * units), np.float32)
    if cell.bias is not None:
        given = array(cell.bias)
        bias[: 2 if given.ndim == 2 else 1] = given
    names = [b.floats(w[None], n) for w, n in ((kernel, "kernel"), (inner, "recurrent_kernel"))]
    stored = b.floats(np.concatenate([by_gate(row) for row in bias])[None], "bias")
    ahead = b.node("Transpose", [b.logical(x).name], perm=[1, 0, 2])
    all_of_them, last = b.node_n(
        op_type, [ahead, *names, stored], 2, hidden_size=units, direction="reverse" if reverse else "forward", **extra
    )  # fmt: skip
    if layer.return_sequences:
        alone = b.node("Squeeze", [all_of_them, b.integers([1], "axis")])
        return b.node("Transpose", [alone], perm=[1, 0, 2])
    return b.node("Squeeze", [last, b.integers([0], "axis")])


def _activations(kind: str, cell: Any) -> list[Any]:
    if kind == "SimpleRNN":
        return [cell.activation]
    return [cell.recurrent_activation, cell.activation, *([cell.activation] if kind == "LSTM" else [])]


def _function(step: Step, function: Any) -> str:
    name = function_name(function)
    if name not in _FUNCTIONS:
        raise ExportError(f"layer '{step.name}': activation '{name}' in a recurrent layer has no ONNX form here")
    return _FUNCTIONS[name]
