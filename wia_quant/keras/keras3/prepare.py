# SPDX-License-Identifier: Apache-2.0
"""A float Keras 3 model -> one that trains as the integers it will become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from wia_quant.errors import ExportError, UsageError
from wia_quant.keras.emit.table import OPERATION, key_of
from wia_quant.keras.keras3.arithmetic import AVERAGES, BINARY, QuantizedArithmetic, has_equation
from wia_quant.keras.keras3.fake_quantize import FakeQuantize
from wia_quant.keras.keras3.operand import OperandWeight, rounded, scale_of
from wia_quant.keras.keras3.product import QuantizedProduct, QuantizedScale
from wia_quant.keras.placement import Placement, Role, place
from wia_quant.keras.steps import Step, foldable_batch_norms, split
from wia_quant.keras.trace import Keras, Trace, Value, map_nest, require_float32, trace
from wia_quant.keras.values import array
from wia_quant.keras.walk import is_known
from wia_quant.keras.weights import WEIGHTS
from wia_quant.keras.wrappers import UNWRAP


def quantize_model(
    model: Keras,
    *,
    exclude: Iterable[str] = (),
    input_shape: Any = None,
    biased: frozenset[str] = frozenset(),
    rangeless: frozenset[str] = frozenset(),
) -> Keras:
    """A functional model of the same layers with fake quantizers between them; it has its own copy of the weights.

    Nested models are opened, so their layers can be quantized with the rest; SeparableConv becomes the two
    convolutions that it is. A layer that was called twice is still one layer.

    Args:
        model: functional, sequential or subclassed; not changed.
        exclude: names of layers that stay float.
        input_shape: as in ``to_onnx``.
        biased: names of layers without a bias that get one, of zeros.
        rangeless: ``tensor`` of quantizers that are left out, where only what stays float reads theirs.

    Raises:
        ExportError: a layer that has no ONNX form here; names it.
        UsageError: a name of ``exclude`` is no layer.
    """
    found = trace(model, is_known, input_shape)
    if any(type(call.layer).__name__ in UNWRAP for call in found.calls):
        raise UsageError(f"model '{model.name}' is quantized already")
    require_float32(found)
    steps = _with_separable_split(split(found, key_of, UNWRAP))
    placement = place(steps, found.inputs, found.outputs, _excluded(steps, exclude))
    placement.leave_float(rangeless, steps)
    return _Rebuilder(found, steps, placement, biased).run(model.name)


def _excluded(steps: list[Step], names: Iterable[str]) -> frozenset[str]:
    known = {step.name for step in steps}
    for name in names:
        if not any(n == name or n.startswith(f"{name}/") for n in known):
            raise UsageError(f"exclude '{name}': the model has no such layer; see model.summary()")
    return frozenset(n for n in known if any(n == e or n.startswith(f"{e}/") for e in names))


def _with_separable_split(steps: list[Step]) -> list[Step]:
    """Every SeparableConv as a depthwise convolution and one of size 1, with their own copies of the weights."""
    done: dict[int, tuple[Keras, Keras]] = {}
    found: list[Step] = []
    for step in steps:
        if not step.key.startswith("SeparableConv"):
            found.append(step)
            continue
        if id(step.layer) not in done:
            done[id(step.layer)] = _split_separable(step.layer, step.key[-2:])
        depthwise, pointwise = done[id(step.layer)]
        shape = (*step.outputs[0].shape[:-1], depthwise.kernel.shape[-2] * depthwise.kernel.shape[-1])
        between = Value(shape, "float32", f"{step.name}/depthwise")
        kind = f"DepthwiseConv{step.key[-2:]}"
        found.append(Step(kind, between.name, depthwise, step.args, step.kwargs, (between,)))
        found.append(Step(f"Conv{step.key[-2:]}", step.name, pointwise, (between,), {}, step.outputs))
    return found


def _split_separable(layer: Keras, rank: str) -> tuple[Keras, Keras]:
    same = {"data_format": layer.data_format, "use_bias": False}
    depthwise = getattr(keras.layers, f"DepthwiseConv{rank}")(
        layer.kernel_size,
        strides=layer.strides,
        padding=layer.padding,
        dilation_rate=layer.dilation_rate,
        depth_multiplier=layer.depth_multiplier,
        name=f"{layer.name}_depthwise",
        **same,
    )
    pointwise = getattr(keras.layers, f"Conv{rank}")(
        layer.filters, 1, name=f"{layer.name}_pointwise", **{**same, "use_bias": layer.use_bias}
    )
    first = layer.data_format == "channels_first"
    for conv, kernel in ((depthwise, layer.depthwise_kernel), (pointwise, layer.pointwise_kernel)):
        channels = kernel.shape[-2]
        conv.build((None, channels, *[None] * int(rank[0])) if first else (None, *[None] * int(rank[0]), channels))
        conv.kernel.assign(kernel)
    if layer.use_bias:
        pointwise.bias.assign(layer.bias)
    return depthwise, pointwise


class _Rebuilder:
    def __init__(self, found: Trace, steps: list[Step], placement: Placement, biased: frozenset[str]) -> None:
        self.trace, self.steps, self.placement, self.biased = found, steps, placement, biased
        self.producers = {id(v): step for step in steps for v in step.outputs}
        self.layers: dict[int, Keras] = {}
        self.on_levels: dict[int, Keras] = {}
        self.quantizers: dict[str, Keras] = {}
        self.sites: Counter[str] = Counter()
        self.scales: dict[int, Any] = {}
        self.weights: dict[tuple[int, bool], tuple[Any, Any]] = {}
        self.norms = self._norms_to_hold()
        self.held = {id(norm) for norm in self.norms.values()}
        self.names: set[str] = set()
        self.raw: dict[int, Any] = {}
        self.rounded: dict[int, Any] = {}

    def run(self, name: str) -> Keras:
        inputs = [keras.Input(batch_shape=v.shape, dtype=v.dtype, name=v.name) for v in self.trace.inputs]
        for value, tensor in zip(self.trace.inputs, inputs, strict=True):
            self._made(value, tensor)
        for step in self.steps:
            self._step(step)
        outputs = [self._read(None, v) for v in self.trace.outputs]
        graph = self.trace.graph
        return keras.Model(
            keras.tree.pack_sequence_as(graph._inputs_struct, inputs),
            keras.tree.pack_sequence_as(graph._outputs_struct, outputs),
            name=name,
        )

    def _norms_to_hold(self) -> dict[int, Step]:
        """``id`` of a product -> its BatchNorm, where all calls of either are calls of both."""
        calls = Counter(id(step.layer) for step in self.steps)
        roles = self.placement.roles
        norms = {
            key: norm
            for key, norm in foldable_batch_norms(self.steps, self.trace.outputs).items()
            if roles[id(norm)] is Role.NORM
        }
        pair = {key: (id(self.producers[id(norm.inputs[0])].layer), id(norm.layer)) for key, norm in norms.items()}
        pairs = Counter(pair.values())
        return {key: norm for key, norm in norms.items() if all(calls[i] == pairs[pair[key]] for i in pair[key])}

    def _step(self, step: Step) -> None:
        if id(step) in self.held:
            return
        args, kwargs = (
            map_nest(nest, lambda leaf: self._read(step, leaf) if isinstance(leaf, Value) else leaf)
            for nest in (step.args, dict(step.kwargs))
        )
        outputs = self.norms[id(step)].outputs if id(step) in self.norms else step.outputs
        if _is_operation(step.layer):
            args, kwargs = (map_nest(nest, lambda leaf: self._constant(step, leaf)) for nest in (args, kwargs))
        scales = self._scales(step, outputs[0])
        if scales is not None:
            inputs = list(args) if _is_operation(step.layer) else args[0]
            result = self._on_levels(step)(inputs, scales=scales, output_scale=self._ending(step, outputs[0], args))
        elif _is_operation(step.layer):
            result = step.layer(*args, **kwargs)
        else:
            layer = self._layer(step)
            scale = self.scales.get(self.placement.grids.get(id(step.inputs[0]), 0))
            if isinstance(layer, QuantizedProduct | QuantizedScale) and scale is not None:
                result = layer(args[0], scale, self._ending(step, outputs[0], args))
            else:
                result = layer(*args, **kwargs)
        for value, tensor in zip(outputs, keras.tree.flatten(result), strict=True):
            self._made(value, tensor)

    def _constant(self, step: Step, operand: Any) -> Any:
        """A weight or number among the operands of ``step``: of sums and products on the grid that the file has."""
        if _is_weight(operand):
            return self._weight(step, operand)[0]
        return rounded(operand) if self._rounds(step) else operand

    def _rounds(self, step: Step) -> bool:
        return self.placement.roles[id(step)] is Role.ARITHMETIC and step.key != f"{OPERATION}Matmul"

    def _weight(self, step: Step, variable: Keras) -> tuple[Any, Any]:
        """A weight of the layer around ``step``, in a layer that trains it, and the scale of its grid."""
        key = id(variable), self._rounds(step)
        if key not in self.weights:
            around = step.name.rpartition("/")[0]
            name = self._unique(_layer_name(f"{around}/{variable.name}" if around else variable.name))
            layer = OperandWeight(variable.shape, key[1], name=name, trainable=variable.trainable)
            layer.set_weights([array(variable)])
            self.weights[key] = layer(self.raw[id(self.trace.inputs[0])])
        return self.weights[key]

    def _scales(self, step: Step, output: Value) -> list[Any] | None:
        """The scales of what a step without weights computes with, where evaluation has its equation for levels."""
        end = self.placement.ending(output)
        if end is None or not has_equation(step) or (step.key in AVERAGES and end != id(output)):
            return None
        sources = {self.placement.sources.get(id(v), id(v)) for v in step.inputs}
        if step.key in BINARY and len(sources) == 1 and not step.has_constants:
            return None  # a table of one tensor's levels, made of reals
        found = [self._scale_of(step, operand) for operand in keras.tree.flatten(step.args)]
        return None if any(scale is None for scale in found) else found

    def _scale_of(self, step: Step, operand: Any) -> Any:
        """Of an operand on a grid; None of another."""
        if not isinstance(operand, Value):
            if step.key == f"{OPERATION}Matmul":
                return None
            return self._weight(step, operand)[1] if _is_weight(operand) else scale_of(rounded(operand))
        if not self.placement.reads_rounded(step, operand, self.producers.get(id(operand))):
            return None
        return self.scales.get(self.placement.grids[id(operand)])

    def _ending(self, step: Step, output: Value, args: Any) -> Any:
        """The scale of the grid that a result is quantized to, from its quantizer; None where it stays float."""
        end = self.placement.ending(output)
        if end is None:
            return None
        tensor = next(leaf for leaf in keras.tree.flatten(args) if isinstance(leaf, keras.KerasTensor))
        return self._quantizer(self.placement.quantized[end])(tensor, scale_only=True)[1]

    def _on_levels(self, step: Step) -> Keras:
        """The layer or operation in ours; one for all calls of it."""
        if id(step.layer) not in self.on_levels:
            layer = step.layer if _is_operation(step.layer) else self._layer(step)
            self.on_levels[id(step.layer)] = QuantizedArithmetic(
                layer, name=self._unique(f"{_layer_name(step.name)}_quantized")
            )
        return self.on_levels[id(step.layer)]

    def _quantizer(self, name: str) -> Keras:
        if name not in self.quantizers:
            sites = list(self.placement.quantized.values()).count(name)
            quantizer = FakeQuantize(sites=sites, name=self._unique(f"{_layer_name(name)}_quantizer"))
            quantizer.tensor = name
            self.quantizers[name] = quantizer
        return self.quantizers[name]

    def _made(self, value: Value, tensor: Any) -> None:
        self.raw[id(value)] = self.rounded[id(value)] = tensor
        name = self.placement.quantized.get(id(value))
        if name is not None:
            site = self.sites[name]
            self.sites[name] += 1
            self.rounded[id(value)], self.scales[id(value)] = self._quantizer(name)(tensor, site=site)

    def _read(self, step: Step | None, value: Value) -> Any:
        producer = self.producers.get(id(value))
        if step is None or self.placement.reads_rounded(step, value, producer):
            return self.rounded[id(value)]
        return self.raw[id(value)]

    def _layer(self, step: Step) -> Keras:
        """The copy of a layer; one for all calls of it."""
        if id(step.layer) not in self.layers:
            self.layers[id(step.layer)] = self._copy(step)
        elif step.key == "activation":
            return keras.layers.Activation(step.layer, name=self._unique(self._last_name(step)))
        return self.layers[id(step.layer)]

    def _copy(self, step: Step) -> Keras:
        if step.key == "activation":
            return keras.layers.Activation(step.layer, name=self._unique(self._last_name(step)))
        config = step.layer.get_config()
        name = self._unique(_layer_name(step.name if step.key != "InputLayer" else step.layer.name))
        if step.key in WEIGHTS and "activation" in config:
            config["activation"] = "linear"
        if step.name in self.biased:
            config["use_bias"] = True
        if self._followed_by_activation(step):
            self.names.discard(name)
            name = self._unique(f"{name}_linear")
        copy = _copy_of(step, {**config, "name": name})
        if step.key == "LayerScale" and self.placement.roles[id(step)] is Role.ARITHMETIC:
            return QuantizedScale(copy, name=self._unique(f"{name}_quantized"), trainable=copy.trainable)
        if self.placement.roles[id(step)] is not Role.PRODUCT:
            return copy
        norm = self.norms.get(id(step))
        held = None if norm is None else _copy_of(norm, norm.layer.get_config())
        return QuantizedProduct(copy, held, name=self._unique(f"{name}_quantized"), trainable=copy.trainable)

    def _followed_by_activation(self, step: Step) -> bool:
        return any(s.key == "activation" and s.args[0] is step.outputs[0] and s.name.startswith(f"{step.name}/")
                   for s in self.steps)  # fmt: skip

    @staticmethod
    def _last_name(step: Step) -> str:
        """An activation takes the name of the layer that it was part of: outputs keep their names."""
        return _layer_name(step.name.rpartition("/")[0])

    def _unique(self, name: str) -> str:
        unique, n = name, 1
        while unique in self.names:
            unique, n = f"{name}_{n}", n + 1
        self.names.add(unique)
        return unique


def _is_operation(layer: Keras) -> bool:
    """Whether it is called as it is: a function of ``keras.ops``, which has no weights to copy."""
    return isinstance(layer, keras.Operation) and not isinstance(layer, keras.layers.Layer)


def _is_weight(operand: Any) -> bool:
    return isinstance(operand, keras.Variable) and str(operand.dtype) == "float32"


def _copy_of(step: Step, config: dict[str, Any]) -> Keras:
    try:
        copy = type(step.layer).from_config(config)
    except Exception as error:  # a user's subclass without a config
        raise ExportError(
            f"layer '{step.name}' ({type(step.layer).__name__}) cannot be copied: {error}; give it get_config"
        ) from error
    if step.layer.weights:
        copy.build(step.inputs[0].shape)
        given = step.layer.get_weights()
        copy.set_weights([*given, *(np.zeros(w.shape, np.float32) for w in copy.weights[len(given) :])])
    copy.trainable = step.layer.trainable
    return copy


def _layer_name(name: str) -> str:
    """Keras takes no slash in the name of a layer, torch no dot in that of a parameter."""
    return name.translate(str.maketrans("/:.", "___"))
