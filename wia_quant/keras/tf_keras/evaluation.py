# SPDX-License-Identifier: Apache-2.0
"""A trained tf_keras model in evaluation: the steps of its file, one after another, by the arithmetic of libwia.

tensorflow-model-optimization wraps each layer on its own: the wrapper of a convolution knows neither the scale of its
input, nor the BatchNorm behind it, nor the quantizer that ends it. The graph of the model does, as for the exporter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import tensorflow as tf

from wia_quant.affine import INT8
from wia_quant.keras.emit.table import key_of
from wia_quant.keras.placement import ELEMENTWISE, ROLES, Role, role_name
from wia_quant.keras.steps import (
    FAKE_QUANTIZE,
    Step,
    Substituted,
    activation_of,
    foldable_batch_norms,
    is_linear,
    readers_of,
    replace_name,
    with_tensors,
)
from wia_quant.keras.tf_keras.arithmetic import (
    Grid,
    added,
    averaged,
    levels_of,
    multiplied,
    narrow,
    product,
    quotient,
    spanning,
    weights,
    wide,
)
from wia_quant.keras.tf_keras.quantizers import WiaActivationQuantizer, WiaWeightQuantizer, affine_grid, fake_quantize
from wia_quant.keras.trace import Call, Keras, Value, trace
from wia_quant.keras.weights import WEIGHTS


@dataclass(frozen=True, eq=False)
class Site:
    """A quantizer and its variables: of an activation, or of a weight, which it then holds, too."""

    quantizer: Any
    variables: Mapping[str, Any]
    weight: Any = None


@dataclass(frozen=True, eq=False)
class Op(Step):
    """A step of the model as it is evaluated.

    Attributes:
        site: of a fake quantizer.
        weight: the kernel of a product, on a grid.
        bias: of a product with such a kernel.
        bare: the activation of the layer is a step of its own.
        own: the layer is one of the model, to be called as Keras calls it; else it is inside a wrapper.
    """

    site: Site | None = None
    weight: Site | None = None
    bias: Any = None
    bare: bool = False
    own: bool = False


# -- the layers of tensorflow-model-optimization -----------------------------------------------------------------------


def _ops_of(call: Call) -> Iterator[Op]:
    """The steps of one call; the last one makes its outputs."""
    kind = type(call.layer).__name__
    todo: list[tuple[str, Any, dict[str, Any]]]
    if kind == "QuantizeLayer" and call.layer.quantizer is not None:
        todo = [(FAKE_QUANTIZE, call.layer, {"site": Site(call.layer.quantizer, call.layer.quantizer_vars)})]
    elif kind in ("QuantizeWrapper", "QuantizeWrapperV2"):
        todo = _of_wrapper(call.layer)
    else:
        todo = [(_whole(call.layer), call.layer, {"own": True})]
    args: tuple[Any, ...] = call.args
    for i, (key, layer, more) in enumerate(todo):
        last = i == len(todo) - 1
        made = call.outputs if last else (replace_name(call.outputs[0], f"{call.name}/{i}"),)
        yield Op(key, call.name, layer, args, call.kwargs if i == 0 else {}, made, **more)
        args = (made[0],)


def _of_wrapper(wrapper: Keras) -> list[tuple[str, Any, dict[str, Any]]]:
    layer = wrapper.layer
    key = key_of(layer) or type(layer).__name__
    sites = {
        str(variable.name).partition(":")[0].rpartition("/")[2]: Site(quantizer, variables, variable)
        for variable, quantizer, variables in wrapper._weight_vars
    }
    kernel = sites.pop(WEIGHTS[key].legacy, None) if key in WEIGHTS else None
    if any(name != "bias" for name in sites) or (sites and kernel is None):
        return [(key, wrapper, {"own": True})]  # weights that the tables do not know: as in training
    todo: list[tuple[str, Any, dict[str, Any]]]
    activation = activation_of(layer)
    if kernel is None and not wrapper._quantize_activations:
        todo, activation = [(_whole(layer), layer, {})], None
    else:
        bias = sites["bias"].weight if "bias" in sites else getattr(layer, "bias", None)
        todo = [(key, layer, {"weight": kernel, "bias": bias, "bare": True})]
    for aware in wrapper._quantize_activations:
        activation = aware.activation
        if aware._should_pre_quantize():
            todo.append((FAKE_QUANTIZE, wrapper, {"site": Site(aware.quantizer, aware._pre_activation_vars)}))
    if activation is not None and not is_linear(activation):
        todo.append(("activation", activation, {}))
    for aware in wrapper._quantize_activations:
        if aware._should_post_quantize():
            todo.append((FAKE_QUANTIZE, wrapper, {"site": Site(aware.quantizer, aware._post_activation_vars)}))
    if wrapper._output_quantizers:
        site = Site(wrapper._output_quantizers[0], wrapper._output_quantizer_vars)
        todo.append((FAKE_QUANTIZE, wrapper, {"site": site}))
    return todo


def _whole(layer: Keras) -> str:
    """The key of a layer that is called as it is; with an activation of its own it is none that the tables know."""
    activation = activation_of(layer)
    key = key_of(layer) or type(layer).__name__
    return key if activation is None or is_linear(activation) else f"{key}, activated"


def _grids_of(sites: Sequence[Site]) -> tuple[list[Grid], Any]:
    """The grid of each, and whether all saw data, which is known only while running."""
    lo, hi = (tf.stack([tf.reshape(s.variables[f"{end}_var"], []) for s in sites]) for end in ("min", "max"))
    ours = np.array([isinstance(s.quantizer, WiaActivationQuantizer) for s in sites])
    scale, zero_point = affine_grid(lo, hi)
    if not ours.all():
        # TensorFlow's fake_quant_with_min_max_vars, as wrappers.py reads it.
        lowest = np.array([float(getattr(s.quantizer, "narrow_range", False)) for s in sites], np.float32)
        their_scale = quotient(hi - lo, 255 - lowest)
        their_scale = tf.where(hi > lo, their_scale, tf.ones_like(scale))
        level = tf.clip_by_value(tf.floor(lowest - quotient(lo, their_scale) + 0.5), lowest, 255.0)
        scale, zero_point = tf.where(ours, scale, their_scale), tf.where(ours, zero_point, level - 128)
    ends = (tf.unstack(v) for v in (scale, INT8.qmin - zero_point, INT8.qmax - zero_point))
    return [Grid(*each) for each in zip(*ends, strict=True)], tf.reduce_all(hi > lo)


def _rows(kernel: Any, channels: tuple[int, ...]) -> Any:
    """A kernel as [channels, summed]."""
    return tf.reshape(tf.transpose(kernel, _order(kernel.shape, channels)), [_n_channels(kernel.shape, channels), -1])


def _as_kernel(rows: Any, shape: Any, channels: tuple[int, ...]) -> Any:
    """The inverse of ``_rows``."""
    order = _order(shape, channels)
    return tf.transpose(tf.reshape(rows, [shape[axis] for axis in order]), np.argsort(order))


def _order(shape: Any, channels: tuple[int, ...]) -> list[int]:
    kept = [axis % len(shape) for axis in channels]
    return [*kept, *(axis for axis in range(len(shape)) if axis not in kept)]


def _n_channels(shape: Any, channels: tuple[int, ...]) -> int:
    return math.prod(shape[axis] for axis in channels)


def _scale_of(site: Site, key: str, rows: Any) -> Any:
    """Of a weight: one an output channel, in their order."""
    if isinstance(site.quantizer, WiaWeightQuantizer):
        return spanning(rows)
    lo, hi = (tf.reshape(tf.convert_to_tensor(site.variables[f"{end}_var"]), [-1]) for end in ("min", "max"))
    scale = quotient(hi - lo, 254.0)
    scale = tf.where(scale > 0, scale, tf.ones_like(scale))
    if key.startswith("Depthwise") and scale.shape[0] > 1:
        scale = tf.tile(scale, [site.weight.shape[-2]])
    return tf.broadcast_to(scale, [_n_channels(site.weight.shape, WEIGHTS[key].channels)])


# -- the model ---------------------------------------------------------------------------------------------------------

#: Products that libwia has in integers: not those over three axes.
_FUSED: Final = frozenset(key for key in WEIGHTS if "3D" not in key and key != "Embedding")

#: What only moves values that a product made, seen by the quantizer behind it; Cropping only as the first.
_REDUCING: Final = frozenset({"Cropping1D", "Cropping2D", "Cropping3D", "ops.GetItem"})


class Evaluation:
    """What a model computes in evaluation mode.

    Args:
        model: functional or sequential, with the layers of tensorflow-model-optimization.

    Raises:
        ExportError: a layer whose graph cannot be followed; names it.
    """

    def __init__(self, model: Keras) -> None:
        self.trace = trace(model, lambda layer: True)
        ops = [op for call in self.trace.calls for op in _ops_of(call)]
        self.returned = {id(v) for v in self.trace.outputs}
        norms = foldable_batch_norms(list(ops), self.trace.outputs)
        #: ``id`` of a value that is on a grid -> the quantizer that put it there.
        self.sites: dict[int, Site] = {}
        #: ``id`` of a value -> ``id`` of the value on a grid that each of its elements is a function of, or None.
        self.sources: dict[int, int | None] = {}
        for op in ops:
            site = op.site if op.site is not None else self._passed_on(op)
            if site is not None:
                self.sites.update({id(v): site for v in op.outputs})
            self.sources.update({id(v): self._source_of(op, v) for v in op.outputs})
        held = {id(op): norms[id(op)] for op in ops if id(op) in norms and self._is_integer_product(op)}
        gone = {id(norm) for norm in held.values()}
        self.ops = [
            replace(op, batch_norm=held[id(op)].layer, outputs=held[id(op)].outputs) if id(op) in held else op
            for op in ops
            if id(op) not in gone
        ]
        self.foldable = {id(norm) for norm in norms.values()}
        self.readers = readers_of(list(self.ops))
        #: The quantizers of activations, each once.
        self.activations = list({id(op.site): op.site for op in self.ops if op.site is not None}.values())

    def __call__(self, inputs: list[Any], otherwise: Callable[[], list[Any]]) -> list[Any]:
        """The outputs of the model, flat; what ``otherwise`` gives where a quantizer saw no data."""
        if not self.activations:
            return otherwise()
        grids, ready = _grids_of(self.activations)
        run = _Run(self, dict(zip(map(id, self.activations), grids, strict=True)))
        if self._is_ready():
            tf.debugging.Assert(ready, ["a quantizer of the model has lost its range; compile the model again"])
            return run(inputs)
        found: list[Any] = tf.cond(ready, lambda: run(inputs), otherwise)
        return found

    def _is_ready(self) -> bool:
        """Whether all saw data already while a function is traced: its graph is half as large then."""
        if tf.executing_eagerly() or tf.distribute.has_strategy():
            return False
        with tf.init_scope():
            return tf.executing_eagerly() and bool(_grids_of(self.activations)[1])

    def _passed_on(self, op: Op) -> Site | None:
        mover = len(op.inputs) == 1 and _role(op) is Role.MOVER
        return self.sites.get(id(op.inputs[0])) if mover else None

    def _source_of(self, op: Op, made: Value) -> int | None:
        """libwia makes a table of levels of what joins functions of one tensor, however it branches."""
        sources = {self.sources.get(id(v)) for v in op.inputs}
        source = sources.pop() if len(sources) == 1 else None
        if op.site is not None:
            return id(made) if source is None else source
        if role_name(op) in ELEMENTWISE or _role(op) in (Role.TABLE, Role.CLIP):
            return None if op.has_constants else source
        return id(made) if id(made) in self.sites else None

    def is_table(self, op: Op) -> bool:
        """Whether its operands are functions of the same levels."""
        sources = {self.sources.get(id(v)) for v in op.inputs}
        return len(sources) == 1 and None not in sources

    def _is_integer_product(self, op: Op) -> bool:
        return op.weight is not None and op.key != "Embedding" and id(op.inputs[0]) in self.sites

    def ending(self, op: Op, clips: bool = True) -> Site | None:
        """The quantizer that ends an operator in the file: behind bounds, and behind what only moves values."""
        value, first, moved = op.outputs[0], True, False
        while id(value) not in self.returned and len(self.readers.get(id(value), ())) == 1:
            (after,) = self.readers[id(value)]
            if isinstance(after, Op) and after.site is not None:
                return after.site
            role = _role(after)
            if role is Role.MOVER and (first or after.key not in _REDUCING):
                moved = moved or not _is_nothing(after)
            elif not (role is Role.CLIP and clips and not moved):
                return None
            first, value = False, after.outputs[0]
        return None


def _is_nothing(op: Step) -> bool:
    return role_name(op) in ("Identity", "linear") or "Dropout" in op.key


def _role(op: Step) -> Role | None:
    """As placement.py has it."""
    if op.key == "ReLU" and op.layer.negative_slope:
        return Role.TABLE
    if op.key.startswith("UpSampling") and getattr(op.layer, "interpolation", "nearest") != "nearest":
        return Role.ARITHMETIC
    return ROLES.get(role_name(op))


class _Run:
    """One evaluation: the tensors of one graph."""

    def __init__(self, evaluation: Evaluation, grids: Mapping[int, Grid]) -> None:
        self.of, self.grids = evaluation, grids

    def __call__(self, inputs: list[Any]) -> list[Any]:
        tensors = {id(v): t for v, t in zip(self.of.trace.inputs, inputs, strict=True)}
        for op in self.of.ops:
            args = with_tensors(op.args, tensors)
            kwargs = with_tensors(dict(op.kwargs), tensors)
            made = tf.nest.flatten(self._made(op, args, kwargs))
            tensors.update({id(v): t for v, t in zip(op.outputs, made, strict=True)})
        return [tensors[id(v)] for v in self.of.trace.outputs]

    def _made(self, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if op.site is not None:
            grid = self.grids[id(op.site)]
            x = tf.where(tf.math.is_nan(args[0]), tf.zeros_like(args[0]), args[0])  # (1)
            return fake_quantize(x, grid.scale, grid.lowest, grid.highest)
        if op.weight is not None:
            return self._product(op, args[0])
        if op.key == "BatchNormalization" and id(op) not in self.of.foldable and not kwargs.get("training"):
            return _normalized(op.layer, args[0])
        if op.key in _EXACT:
            found = _EXACT[op.key](self, op, args[0] if args else next(iter(kwargs.values())))
            if found is not None:
                return found
        if getattr(op.layer, "_expects_training_arg", False):
            kwargs.setdefault("training", False)
        if op.bare:
            return _call(op.layer, {"activation": None}, *args, **kwargs)
        function: Any = op.layer if op.own else getattr(op.layer, "call", op.layer)
        return function(*args, **kwargs)

    def grid(self, value: Value) -> Grid | None:
        """Of a value that is on one."""
        site = self.of.sites.get(id(value))
        return None if site is None else self.grids[id(site)]

    def output(self, op: Op, clips: bool = True) -> Grid | None:
        """That of the quantizer that ends an operator."""
        site = self.of.ending(op, clips)
        return None if site is None else self.grids[id(site)]

    def _product(self, op: Op, x: Any) -> Any:
        assert op.weight is not None
        weight, kernel = WEIGHTS[op.key], op.weight.weight
        grid = self.grid(op.inputs[0])
        if grid is None or op.key == "Embedding":
            rounded = op.weight.quantizer(kernel, False, op.weight.variables)
            return _call(op.layer, {weight.legacy: rounded, "bias": op.bias, "activation": None}, x)
        rows = _rows(tf.convert_to_tensor(kernel), weight.channels)
        scale = _scale_of(op.weight, op.key, rows)
        one, zero, norm = tf.ones_like(scale), tf.zeros_like(scale), op.batch_norm
        bias = zero if op.bias is None else op.bias
        if norm is None:
            found = weights(rows, scale, bias, one, zero, zero, one, 0.0, grid.scale)
        else:
            gamma, beta = (other if v is None else v for v, other in ((norm.gamma, one), (norm.beta, zero)))
            moving = (norm.moving_mean, norm.moving_variance, float(norm.epsilon))
            found = weights(rows, scale, bias, gamma, beta, *moving, grid.scale)

        def multiply(levels: Any, w: Any) -> Any:
            alone = {"use_bias": False, "activation": None, "_compute_dtype_object": levels.dtype}
            return _call(op.layer, {weight.legacy: w, **alone}, levels)

        def spread(v: Any) -> Any:
            first = getattr(op.layer, "data_format", None) == "channels_first"
            return tf.reshape(v, [1, -1] + [1] * (len(op.outputs[0].shape) - 2)) if first else v

        levels = _as_kernel(found.levels, kernel.shape, weight.channels)
        output = self.output(op) if op.key in _FUSED else None
        return product(multiply, x, levels, found, grid.scale, output, spread)


def _call(layer: Keras, values: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
    """The layer's own ``call``, some of its attributes others."""
    return type(layer).call(Substituted(layer, values), *args, **kwargs)


def _normalized(norm: Keras, x: Any) -> Any:
    """A BatchNorm that no product takes in: in the file a float product of one weight a channel."""
    rank = len(x.shape)
    axis = int(norm.axis[0] if isinstance(norm.axis, list | tuple) else norm.axis) % rank
    shape = [-1 if a == axis else 1 for a in range(rank)]
    mean, variance = wide(norm.moving_mean), wide(norm.moving_variance)
    one, zero = tf.ones_like(mean), tf.zeros_like(mean)
    gamma, beta = (other if v is None else wide(v) for v, other in ((norm.gamma, one), (norm.beta, zero)))
    scale = gamma / tf.sqrt(variance + float(np.float32(norm.epsilon)))
    shift = beta - mean * scale
    return x * tf.reshape(narrow(scale), shape) + tf.reshape(narrow(shift), shape)


# -- operators between levels ------------------------------------------------------------------------------------------


def _sum(sign: int) -> Callable[[_Run, Op, Any], Any]:
    return lambda at, op, xs: _of_two(at, op, lambda a, b, y: added(xs[0], xs[1], a, b, y, sign))


def _times(at: _Run, op: Op, xs: Any) -> Any:
    return _of_two(at, op, lambda a, b, y: multiplied(xs[0], xs[1], a, b, y))


def _of_two(at: _Run, op: Op, run: Callable[[Grid, Grid, Grid], Any]) -> Any:
    grids, output = [at.grid(v) for v in op.inputs], at.output(op)
    if len(grids) != 2 or grids[0] is None or grids[1] is None or output is None or at.of.is_table(op):
        return None
    return run(grids[0], grids[1], output)


def _mean_of(at: _Run, op: Op, xs: Any) -> Any:
    """Average: the file multiplies the sum by the share of each."""
    total = xs[0]
    for x in xs[1:]:
        total = total + x
    return total * np.float32(1 / len(xs))


def _over_everything(at: _Run, op: Op, x: Any) -> Any:
    grid, output = at.grid(op.inputs[0]), at.output(op, clips=False)
    if grid is None or output is None:
        return None
    axes = _spatial(op, x)
    levels = tf.cast(levels_of(tf.stop_gradient(x), grid.scale), tf.int32)
    total = tf.reduce_sum(levels, axis=axes, keepdims=bool(getattr(op.layer, "keepdims", False)))
    n = tf.reduce_prod([tf.shape(x, tf.int64)[a] for a in axes])
    return averaged(total, wide(n), op.layer.call(x), grid, output)


def _over_windows(at: _Run, op: Op, x: Any) -> Any:
    grid, output = at.grid(op.inputs[0]), at.output(op, clips=False)
    if grid is None or output is None:
        return None
    n = _window_sizes(op, x)
    mean = op.layer.call(tf.stop_gradient(levels_of(x, grid.scale)))
    return averaged(tf.round(mean * narrow(n)), n, op.layer.call(x), grid, output)


def _window_sizes(op: Op, x: Any) -> Any:
    """How many values each window has, padding not counted; float64, to broadcast with the result."""
    axes = _spatial(op, x)
    rank = len(axes)

    def numbers(v: Any) -> list[int]:
        return [int(v)] * rank if isinstance(v, int) else [int(n) for n in v]

    size = numbers(op.layer.pool_size)
    strides = size if op.layer.strides is None else numbers(op.layer.strides)
    ones = tf.ones([1, *(tf.shape(x)[a] for a in axes), 1])
    found = tf.nn.convolution(ones, tf.ones([*size, 1, 1]), strides, op.layer.padding.upper())
    return wide(found if axes[0] == 1 else tf.transpose(found, [0, rank + 1, *range(1, rank + 1)]))


def _spatial(op: Op, x: Any) -> list[int]:
    first = getattr(op.layer, "data_format", None) == "channels_first"
    return list(range(2, len(x.shape))) if first else list(range(1, len(x.shape) - 1))


#: Key of a step -> its integer form; None where its tensors are not on grids.
_EXACT: Final[Mapping[str, Callable[[_Run, Op, Any], Any]]] = MappingProxyType(
    {
        "Add": _sum(1),
        "Subtract": _sum(-1),
        "Multiply": _times,
        "Average": _mean_of,
        "AveragePooling1D": _over_windows,
        "AveragePooling2D": _over_windows,
        "GlobalAveragePooling1D": _over_everything,
        "GlobalAveragePooling2D": _over_everything,
        "GlobalAveragePooling3D": _over_everything,
    }
)
