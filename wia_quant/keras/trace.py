# SPDX-License-Identifier: Apache-2.0
"""A Keras model as a flat list of calls: nested models opened, shared layers called as often as they are.

tf_keras and Keras 3 keep their graphs alike; what differs is in ``_Flavour``. No framework is imported here: a model
that exists has imported its own.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from wia_quant.errors import ExportError
from wia_quant.keras.decompose import DECOMPOSE

#: A layer or an operation of Keras, or one of its tensors: objects of two frameworks without a common type.
Keras = Any

Shape = tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor of the model: its shape as Keras gives it (axis 0 is the batch), its type and a name."""

    shape: Shape
    dtype: str
    name: str


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer or an operation.

    Attributes:
        layer: the object that was called.
        name: of the layer, those of the models around it before it; unique in a trace.
        args: positional arguments; a tensor is a Value, at any depth.
        kwargs: named arguments, likewise.
        outputs: what it returned, flattened.
    """

    layer: Keras
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Value, ...]


@dataclass
class Trace:
    """A model: what it takes, its calls in an order in which they can run, what it returns, and Keras' own graph."""

    graph: Keras
    inputs: list[Value]
    calls: list[Call]
    outputs: list[Value]
    output_names: list[str]


def values_in(nest: Any) -> Iterator[Value]:
    """The Values of a nest of tuples, lists and dicts."""
    if isinstance(nest, Value):
        yield nest
    elif isinstance(nest, tuple | list):
        for item in nest:
            yield from values_in(item)
    elif isinstance(nest, Mapping):
        for item in nest.values():
            yield from values_in(item)


def map_nest(nest: Any, change: Callable[[Any], Any]) -> Any:
    """The nest with every leaf changed."""
    if isinstance(nest, tuple | list):
        return type(nest)(map_nest(item, change) for item in nest)
    if isinstance(nest, Mapping):
        return {key: map_nest(item, change) for key, item in nest.items()}
    return change(nest)


def framework_of(model: Keras) -> str | None:
    """``"keras"`` or ``"tf_keras"``; None when it is a model of neither."""
    for cls in type(model).__mro__:
        root = cls.__module__.partition(".")[0]
        if root in ("keras", "tf_keras"):
            return root
    return None


def trace(model: Keras, known: Callable[[Keras], bool], input_shape: Any = None) -> Trace:
    """The calls of ``model``.

    Args:
        model: functional, sequential or subclassed.
        known: whether a layer is taken as it is; others are opened, as far as their ``call`` can be.
        input_shape: of a subclassed model that has not been called: without the batch; a list for several inputs.

    Raises:
        ExportError: a model without known input shapes, or a layer that cannot be opened; names it.
    """
    framework = framework_of(model)
    if framework is None:
        raise ExportError(f"{type(model).__name__} is no Keras model")
    return _Tracer(_Flavour(sys.modules[framework], framework), known).run(model, input_shape)


@dataclass(frozen=True)
class _Flavour:
    """What the two frameworks name differently."""

    module: Any
    name: str

    def graph(self, model: Keras) -> Keras | None:
        """The object that holds the nodes of ``model``; None when it has no graph."""
        if not isinstance(model, self.module.Model):
            return None
        inner = getattr(model, "_functional", None)  # a Sequential of Keras 3
        found = model if inner is None else inner
        return found if getattr(found, "_nodes_by_depth", None) else None

    def node(self, node: Keras) -> tuple[Keras, tuple[Any, ...], dict[str, Any], list[Keras]]:
        """Layer, positional and named arguments, outputs."""
        if self.name == "keras":
            return node.operation, tuple(node.arguments.args), dict(node.arguments.kwargs), list(node.outputs)
        return node.layer, tuple(node.call_args or ()), dict(node.call_kwargs or {}), flat(node.outputs)

    def is_tensor(self, leaf: Any) -> bool:
        """True for the symbolic tensors of this framework."""
        return type(leaf).__name__ in ("KerasTensor", "RaggedKerasTensor", "SparseKerasTensor")

    def dtype(self, tensor: Keras) -> str:
        """``"float32"``."""
        return str(getattr(tensor.dtype, "name", tensor.dtype))


def flat(nest: Any) -> list[Any]:
    """The leaves of a nest in the order of tf_keras; a dict by its sorted keys."""
    if isinstance(nest, tuple | list):
        return [leaf for item in nest for leaf in flat(item)]
    if isinstance(nest, Mapping):
        return [leaf for _, item in sorted(nest.items()) for leaf in flat(item)]
    return [nest]


def require_float32(found: Trace) -> None:
    """Raises ExportError for a layer that computes in float16 or another type: files compute in float32."""
    for call in found.calls:
        dtype = str(getattr(call.layer, "compute_dtype", None) or "float32")
        if dtype.startswith(("float", "bfloat")) and dtype != "float32":
            raise ExportError(
                f"layer '{call.name}' computes in {dtype}, the file in float32: it would compute other than what was"
                " trained; make the model with the dtype policy float32 and give it the weights (set_weights)"
            )


def layer_name(layer: Keras) -> str:
    """Of a layer in a wrapper of training: that of the layer inside."""
    inner = getattr(layer, "layer", None)
    return str(layer.name if inner is None or not type(layer).__name__.startswith("Quantize") else inner.name)


def _steady_name(layer: Keras) -> str:
    """Of a layer in a graph that was made for this trace: an operation's without the number that Keras counts up."""
    name = layer_name(layer)
    fresh = type(layer).__module__.startswith("keras.src.ops") or type(layer).__name__ in _FUNCTIONS
    return _COUNT.sub("", name) if fresh else name


def _names_of_inputs(n: int) -> list[str]:
    """Of a model without a graph of its own: the same whenever it is opened, as its file must be."""
    return ["input"] if n == 1 else [f"input_{i + 1}" for i in range(n)]


#: What tf_keras makes of a TensorFlow function.
_FUNCTIONS: Final = ("TFOpLambda", "SlicingOpLambda")
_COUNT: Final = re.compile(r"_\d+$")

#: Deeper than any model a person wrote: a layer that opens into itself.
_DEEPEST: Final = 32


@dataclass
class _Tracer:
    flavour: _Flavour
    known: Callable[[Keras], bool]
    calls: list[Call] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)

    def run(self, model: Keras, input_shape: Any) -> Trace:
        graph = self.flavour.graph(model)
        opened = graph is None
        if graph is None:
            graph = self._open(model, *self._shapes(model, input_shape), model.name)
        tensors = flat(graph.inputs)
        names = _names_of_inputs(len(tensors)) if opened else [str(t.name).partition(":")[0] for t in tensors]
        given = [self._value(t, name) for t, name in zip(tensors, names, strict=True)]
        outputs = self._graph(graph, given, "", 0, opened)
        found = list(getattr(graph, "output_names", ()) or [])
        inner = {call.layer.name: _steady_name(call.layer) if opened else layer_name(call.layer) for call in self.calls}
        names = [inner.get(n, n) for n in found] if len(found) == len(outputs) else [v.name for v in outputs]
        return Trace(graph, given, self.calls, outputs, [str(n) for n in names])

    def _shapes(self, model: Keras, given: Any) -> tuple[list[Shape], list[str]]:
        if given is not None:
            several = isinstance(given, list) or (given and isinstance(given[0], tuple | list))
            shapes = [(None, *s) for s in (given if several else [given])]
            return shapes, ["float32"] * len(shapes)
        built = getattr(model, "_build_input_shape", None) or getattr(model, "_build_shapes_dict", None)
        if built is None:
            raise ExportError(
                f"the shapes that model '{model.name}' takes are not known: call it on data once, or give input_shape"
            )
        flat = list(built.values()) if isinstance(built, Mapping) else built
        if not isinstance(flat, list):
            flat = [flat]
        shapes = [(None, *tuple(s)[1:]) for s in flat]
        return shapes, ["float32"] * len(shapes)

    def _open(self, layer: Keras, shapes: list[Shape], dtypes: list[str], where: str, nest: Any = None) -> Keras:
        """The graph of a layer whose ``call`` runs on symbolic tensors."""
        make = self.flavour.module.Input
        inputs = [make(batch_shape=s, dtype=d) for s, d in zip(shapes, dtypes, strict=True)]
        args = (inputs if len(inputs) > 1 else inputs[0],) if nest is None else map_nest(nest, _filler(inputs))
        try:
            outputs = layer.call(*args)
            return self.flavour.module.Model(inputs, outputs)
        except Exception as error:  # whatever the user's call raises on symbolic tensors
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            raise ExportError(
                f"layer '{where}' ({type(layer).__name__}) is not one we know, and its call cannot be opened:"
                f" {reason[:200]}; write it of Keras layers and operations, or leave it out of the model"
            ) from error

    def _graph(self, graph: Keras, given: list[Value], prefix: str, depth: int, opened: bool = False) -> list[Value]:
        if depth > _DEEPEST:
            raise ExportError(f"layer '{prefix.rstrip('/')}' opens into itself")
        values: dict[int, Value] = {id(t): v for t, v in zip(flat(graph.inputs), given, strict=True)}
        nodes = graph._nodes_by_depth
        self._require_no_mask(nodes, prefix)
        for level in sorted(nodes, reverse=True):
            for node in nodes[level]:
                layer, args, kwargs, outputs = self.flavour.node(node)
                if all(id(t) in values for t in outputs) or type(layer).__name__ == "InputLayer":
                    continue
                self._call(layer, args, kwargs, outputs, values, prefix, depth, opened)
        return [values[id(t)] for t in flat(graph.outputs)]

    def _require_no_mask(self, nodes: Mapping[int, list[Keras]], prefix: str) -> None:
        """Before its parts are met: Keras 3 has the comparison that makes the mask among its nodes."""
        for layer in (self.flavour.node(node)[0] for level in nodes.values() for node in level):
            if type(layer).__name__ == "Masking" or getattr(layer, "mask_zero", False) is True:
                how = "mask_zero=True" if hasattr(layer, "mask_zero") else "Masking"
                raise ExportError(
                    f"layer '{prefix}{layer_name(layer)}': {how} has no ONNX form here; layers behind it would see no"
                    " mask"
                )

    def _call(
        self,
        layer: Keras,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        outputs: list[Keras],
        values: dict[int, Value],
        prefix: str,
        depth: int,
        opened: bool,
    ) -> None:
        def to_value(leaf: Any) -> Any:
            return values[id(leaf)] if self.flavour.is_tensor(leaf) else leaf

        args, kwargs = map_nest(args, to_value), {k: map_nest(v, to_value) for k, v in kwargs.items()}
        name = f"{prefix}{_steady_name(layer) if opened else layer_name(layer)}"
        inner = self.flavour.graph(layer)
        taken = list(values_in((args, kwargs)))
        made_anew = opened or inner is None
        if inner is None and not self.known(layer):
            opener = DECOMPOSE.get(type(layer).__name__)
            if opener is not None:
                symbols = [self.flavour.module.Input(batch_shape=v.shape, dtype=v.dtype) for v in taken]
                inner = opener(self.flavour.module, layer, args, kwargs, symbols, name)
            elif type(layer).__module__.partition(".")[0] == self.flavour.name:
                raise ExportError(
                    f"layer '{name}' ({type(layer).__name__}) has no ONNX form here; see docs/keras.md for what has"
                )
            else:
                inner = self._open(layer, [v.shape for v in taken], [v.dtype for v in taken], name, args)
        if inner is not None:
            results = self._graph(inner, taken, f"{name}/", depth + 1, made_anew)
        else:
            n = self.names[name] = self.names.get(name, 0) + 1
            unique = name if n == 1 else f"{name}_{n}"
            results = [self._value(t, unique if i == 0 else f"{unique}:{i}") for i, t in enumerate(outputs)]
            self.calls.append(Call(layer, unique, args, kwargs, tuple(results)))
        values.update({id(t): v for t, v in zip(outputs, results, strict=True)})

    def _value(self, tensor: Keras, name: str) -> Value:
        shape = getattr(tensor, "shape", None)
        if shape is None:
            return Value((), "unknown", name)
        return Value(tuple(None if d is None else int(d) for d in shape), self.flavour.dtype(tensor), name)


def _filler(inputs: list[Keras]) -> Callable[[Any], Any]:
    rest = iter(inputs)
    return lambda leaf: next(rest) if isinstance(leaf, Value) else leaf
