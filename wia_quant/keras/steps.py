# SPDX-License-Identifier: Apache-2.0
"""From the calls of a trace to the steps that are emitted: activations on their own, BatchNorms in their products.

A layer with a weight and an activation becomes a step for each; a wrapper of training becomes the layer, with the
grids of its weights, and a step for each fake quantizer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from wia_quant.affine import QParams
from wia_quant.errors import ExportError
from wia_quant.keras.trace import Call, Keras, Trace, Value, map_nest, values_in

#: The step that puts a tensor on a grid.
FAKE_QUANTIZE: Final = "fake_quantize"

#: Layers whose BatchNorm can go into their weights.
FOLDS_BATCH_NORM: Final = frozenset(
    {
        "Conv1D", "Conv2D", "Conv3D", "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D",
        "Conv1DTranspose", "Conv2DTranspose", "Conv3DTranspose", "Dense",
    }
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Step:
    """What one emitter writes.

    Attributes:
        key: of the table of emitters.
        name: of the layer.
        layer: with its configuration and weights.
        args: as in Call.
        kwargs: as in Call.
        outputs: as in Call.
        batch_norm: a BatchNormalization that is folded into this product.
        grids: attribute of the layer -> the grid of that weight, its axis the last one of the weight's matrix form.
        qparams: of a fake quantizer; None of one that is asked for its scale only, and rounds nothing.
    """

    key: str
    name: str
    layer: Keras
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Value, ...]
    batch_norm: Keras | None = None
    grids: Mapping[str, QParams] = field(default_factory=dict)
    qparams: QParams | None = None

    @property
    def inputs(self) -> tuple[Value, ...]:
        """Every tensor among the arguments, in order."""
        return tuple(values_in((self.args, dict(self.kwargs))))

    @property
    def has_constants(self) -> bool:
        """Whether an argument is an array of more than one number."""
        found: list[Any] = []
        map_nest((self.args, dict(self.kwargs)), found.append)
        return any(not isinstance(leaf, Value) and math.prod(getattr(leaf, "shape", ()) or ()) > 1 for leaf in found)


@dataclass(frozen=True)
class Unwrapped:
    """What a wrapper of training stands for.

    Attributes:
        layer: the layer inside; None for a fake quantizer alone.
        grids: of its weights, by attribute.
        before: of the tensor before its activation.
        after: of its result, one after another.
        activation: the layer's own.
        batch_norm: that the wrapper holds, too.
        values: attribute of the layer -> its weight, where the wrapper has put something else in its place.
        gathered: the wrapper's first argument is a list of the positional ones of the layer.
        constants: what it returns, whatever it is called with: a weight that operations read.
    """

    layer: Keras | None
    grids: Mapping[str, QParams] = field(default_factory=dict)
    before: QParams | None = None
    after: tuple[QParams, ...] = ()
    activation: Any = None
    batch_norm: Keras | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    gathered: bool = False
    constants: tuple[Any, ...] = ()


class Substituted:
    """A layer some of whose attributes are others; ``real`` is the layer."""

    def __init__(self, layer: Keras, values: Mapping[str, Any]) -> None:
        self.real, self._values = layer, values

    def __getattr__(self, name: str) -> Any:
        return self._values[name] if name in self._values else getattr(self.real, name)


#: Class name of a wrapper -> how it is opened.
Unwrap = Callable[[Keras], Unwrapped]


@dataclass
class _Splitter:
    key_of: Callable[[Keras], str | None]
    wrappers: Mapping[str, Unwrap]
    steps: list[Step] = field(default_factory=list)
    constants: dict[int, Any] = field(default_factory=dict)

    def call(self, call: Call) -> None:
        """Adds the steps of one call; the last one makes its outputs."""
        unwrap = self.wrappers.get(type(call.layer).__name__)
        if call.kwargs.get("scale_only"):
            self.steps.append(Step(FAKE_QUANTIZE, call.name, call.layer, call.args, {}, call.outputs))
            return
        opened = unwrap(call.layer) if unwrap else Unwrapped(call.layer, activation=activation_of(call.layer))
        if opened.constants:
            self.constants.update({id(v): c for v, c in zip(call.outputs, opened.constants, strict=True)})
            return
        call = self._with_constants(call)
        todo: list[tuple[str, Keras, QParams | None]] = []
        if opened.layer is not None:
            key = self.key_of(opened.layer)
            if key is None:
                raise ExportError(_unknown(call))
            todo.append((key, Substituted(opened.layer, opened.values) if opened.values else opened.layer, None))
        if opened.before is not None:
            todo.append((FAKE_QUANTIZE, call.layer, opened.before))
        if opened.activation is not None and not is_linear(opened.activation):
            todo.append(("activation", opened.activation, None))
        todo.extend((FAKE_QUANTIZE, call.layer, qparams) for qparams in opened.after)
        if not todo:
            todo.append(("Identity", call.layer, None))
        args: tuple[Any, ...] = tuple(call.args[0]) if opened.gathered else call.args
        for i, (key, layer, qparams) in enumerate(todo):
            last = i == len(todo) - 1
            name = call.name if i == 0 else f"{call.name}/{_part(key, layer)}"
            # By a name of its own: it has a grid of its own.
            made = call.outputs if last else (replace_name(call.outputs[0], f"{name}/linear"),)
            kwargs = call.kwargs if i == 0 else {}
            grids = opened.grids if i == 0 and opened.layer is not None else {}
            norm = opened.batch_norm if i == 0 else None
            self.steps.append(Step(key, name, layer, args, kwargs, made, norm, grids, qparams))
            args = (made[0],)

    def _with_constants(self, call: Call) -> Call:
        """The call with arrays for the weights that layers of ours hold."""

        def held(leaf: Any) -> Any:
            return self.constants.get(id(leaf), leaf) if isinstance(leaf, Value) else leaf

        return replace(call, args=map_nest(call.args, held), kwargs=map_nest(dict(call.kwargs), held))


def split(trace: Trace, key_of: Callable[[Keras], str | None], wrappers: Mapping[str, Unwrap]) -> list[Step]:
    """The steps of a trace.

    Raises:
        ExportError: a layer that is in no table; names it.
    """
    splitter = _Splitter(key_of, wrappers)
    for call in trace.calls:
        splitter.call(call)
    return splitter.steps


def fold_batch_norms(steps: list[Step], outputs: list[Value]) -> list[Step]:
    """The steps with every BatchNormalization that can be in the product before it."""
    norms = foldable_batch_norms(steps, outputs)
    gone = {id(norm) for norm in norms.values()}
    folded = (
        replace(step, batch_norm=norms[id(step)].layer, outputs=norms[id(step)].outputs) if id(step) in norms else step
        for step in steps
    )
    return [step for step in folded if id(step) not in gone]


def foldable_batch_norms(steps: list[Step], outputs: list[Value]) -> dict[int, Step]:
    """``id`` of a product -> the BatchNormalization that alone reads its result."""
    readers = readers_of(steps)
    returned = {id(v) for v in outputs}
    found: dict[int, Step] = {}
    for step in steps:
        after = readers.get(id(step.outputs[0]), [])
        if step.key not in FOLDS_BATCH_NORM or id(step.outputs[0]) in returned or len(after) != 1:
            continue
        norm = after[0]
        if norm.key == "BatchNormalization" and _channels_of(norm) == _channels_of(step):
            found[id(step)] = norm
    return found


def readers_of(steps: list[Step]) -> dict[int, list[Step]]:
    """``id`` of a tensor -> the steps that take it."""
    readers: dict[int, list[Step]] = {}
    for step in steps:
        for value in step.inputs:
            readers.setdefault(id(value), []).append(step)
    return readers


def _channels_of(step: Step) -> int:
    """The axis that holds the channels."""
    rank = len(step.outputs[0].shape)
    if step.key == "BatchNormalization":
        axis = step.layer.axis
        return int(axis[0] if isinstance(axis, list | tuple) else axis) % rank
    return 1 if getattr(step.layer, "data_format", None) == "channels_first" else rank - 1


#: Layers whose ``activation`` is not of their result, or is what they are.
_OWN_ACTIVATION: Final = frozenset({"Activation", "ReLU", "Softmax", "RNN", "Bidirectional"})


def activation_of(layer: Keras) -> Any:
    """The activation that a layer with weights applies to its result."""
    if not hasattr(layer, "activation") or {c.__name__ for c in type(layer).__mro__} & _OWN_ACTIVATION:
        return None
    return layer.activation


def is_linear(activation: Any) -> bool:
    """Whether an activation does nothing."""
    return getattr(activation, "__name__", type(activation).__name__) in ("linear", "NoOpActivation")


def _part(key: str, layer: Any) -> str:
    return str(getattr(layer, "__name__", type(layer).__name__)) if key == "activation" else key


def replace_name(value: Value, name: str) -> Value:
    """A tensor like ``value`` with another name."""
    return Value(value.shape, value.dtype, name)


def _unknown(call: Call) -> str:
    return f"layer '{call.name}' ({type(call.layer).__name__}) has no ONNX form here; see docs/keras.md for what has"


def with_tensors(nest: Any, tensors: Mapping[int, Any]) -> Any:
    """The nest with every Value replaced by the tensor that was emitted for it."""
    return map_nest(nest, lambda leaf: tensors[id(leaf)] if isinstance(leaf, Value) else leaf)
