# SPDX-License-Identifier: Apache-2.0
"""Functions outside layers that move, repeat, join or select values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from wia_quant.builder import Builder, Tensor, channels_first
from wia_quant.errors import ExportError
from wia_quant.keras.emit.merging import concatenated
from wia_quant.keras.emit.operation import BY_NAME, Emit, Operation
from wia_quant.keras.emit.shapes import get_item, permuted, reshape_to, resize_to, reversed_along
from wia_quant.keras.values import array


def reshape(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.reshape``, ``tf.reshape``."""
    shape = [int(d) if d is not None else -1 for d in op.parameter("newshape", 1, aka=("shape",))]
    return reshape_to(b, op.x, shape[1:], op.shape)


def transpose(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.transpose``, ``tf.transpose``."""
    axes = op.parameter("axes", 1, None, aka=("perm",))
    x = _flattened(b, op.x)
    return permuted(x, list(range(x.rank))[::-1] if axes is None else [int(a) % x.rank for a in axes])


def swapaxes(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.swapaxes``."""
    x = _flattened(b, op.x)
    perm = list(range(x.rank))
    i, j = (int(op.parameter(name, place)) for name, place in (("axis1", 1), ("axis2", 2)))
    perm[i], perm[j] = perm[j], perm[i]
    return permuted(x, perm)


def moveaxis(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.moveaxis``."""
    x = _flattened(b, op.x)
    sources, targets = (op.axes(name, place, x.rank) or [] for name, place in (("source", 1), ("destination", 2)))
    perm = [axis for axis in range(x.rank) if axis not in sources]
    for target, source in sorted(zip(targets, sources, strict=True)):
        perm.insert(target, source)
    return permuted(x, perm)


def concat(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.concatenate``, ``tf.concat``."""
    return concatenated(b, _list(op), int(op.parameter("axis", 1, -1)), op.shape)


def stack(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.stack``, ``tf.stack``."""
    axis = int(op.parameter("axis", 1, 0)) % len(op.shape)
    wide = [b.node("Unsqueeze", [b.logical(x).name, b.integers([axis], "axes")]) for x in _list(op)]
    return Tensor(b.node("Concat", wide, axis=axis), op.shape, None, op.step.outputs[0].dtype)


def split(b: Builder, op: Operation) -> list[Tensor]:
    """``keras.ops.split``, ``tf.split``: the sizes are those of its results."""
    x = _flattened(b, op.x)
    axis = int(op.parameter("axis", 2, 0)) % x.rank
    sizes = [v.shape[axis] for v in op.step.outputs]
    if None in sizes:
        raise ExportError(f"operation '{op.step.name}': a split of an open size has no ONNX form here")
    names = b.node_n("Split", [x.name, b.integers(sizes, "sizes")], len(sizes), axis=x.axis(axis))
    return [b.like(x, name, v.shape) for name, v in zip(names, op.step.outputs, strict=True)]


def unstack(b: Builder, op: Operation) -> list[Tensor]:
    """``keras.ops.unstack``, ``tf.unstack``."""
    x = b.logical(op.x)
    axis = int(op.parameter("axis", 2, 0)) % x.rank
    n = len(op.step.outputs)
    parts = b.node_n("Split", [x.name, b.integers([1] * n, "sizes")], n, axis=axis)
    names = [b.node("Squeeze", [part, b.integers([axis], "axes")]) for part in parts]
    return [Tensor(name, op.shape, None, x.dtype) for name in names]


#: Mode of padding as either framework spells it, in small letters -> ONNX' mode.
_PAD_MODES: Final = {"constant": "constant", "reflect": "reflect", "edge": "edge"}


def pad(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.pad``, ``tf.pad``."""
    x = _flattened(b, op.x)
    pairs = [tuple(int(n) for n in pair) for pair in array(op.parameter("pad_width", 1, aka=("paddings",)))]
    pairs = pairs * x.rank if len(pairs) == 1 else pairs
    mode = str(op.parameter("mode", 2, "constant")).lower()
    if mode not in _PAD_MODES:
        raise ExportError(f"operation '{op.step.name}': padding by '{mode}' has no ONNX form here")
    before, after = [0] * x.rank, [0] * x.rank
    for axis, (lo, hi) in enumerate(pairs):
        before[x.axis(axis)], after[x.axis(axis)] = lo, hi
    inputs = [x.name, b.integers([*before, *after], "pads")]
    if mode == "constant":
        value = op.kwargs.get("constant_values")
        inputs.append(b.floats(0.0 if value is None else array(value), "value"))
    return b.like(x, b.node("Pad", inputs, mode=_PAD_MODES[mode]), op.shape)


def flip(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.flip``, ``tf.reverse``."""
    x = _flattened(b, op.x)
    axes = op.axes("axis", 1, x.rank)
    return reversed_along(b, x, [x.axis(a) for a in (range(x.rank) if axes is None else axes)], op.shape)


def tile(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.tile``, ``tf.tile``."""
    x = b.logical(op.x)
    repeats = op.parameter("repeats", 1, aka=("multiples",))
    times = [int(n) for n in np.atleast_1d(array(repeats))]
    if len(times) > x.rank:
        raise ExportError(f"operation '{op.step.name}': a tile that adds axes has no ONNX form here")
    times = [1] * (x.rank - len(times)) + times
    return Tensor(b.node("Tile", [x.name, b.integers(times, "repeats")]), op.shape, None, x.dtype)


def repeat(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.repeat``, ``tf.repeat``: each value so many times."""
    return _picked_along(b, op, 2, lambda n: np.repeat(np.arange(n), array(op.parameter("repeats", 1))))


def roll(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.roll``, ``tf.roll``, along one axis after another."""
    x = _flattened(b, op.x)
    axes = op.axes("axis", 2, x.rank)
    if axes is None:
        raise ExportError(f"operation '{op.step.name}': a roll without an axis has no ONNX form here")
    shifts = [int(n) for n in np.atleast_1d(array(op.parameter("shift", 1)))]
    for axis, shift in zip(axes, shifts * len(axes) if len(shifts) == 1 else shifts, strict=True):
        size = _size(op, x, axis)
        if shift % size:
            cut = size - shift % size
            at = (slice(None),) * axis
            parts = [get_item(b, x, (*at, part), x.shape) for part in (slice(cut, None), slice(None, cut))]
            x = concatenated(b, parts, axis, x.shape)
    return x


def take(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.take``, ``tf.gather``, of constant places."""
    indices = op.parameter("indices", 1)
    if isinstance(indices, Tensor) or isinstance(op.x, Tensor) is False:
        raise ExportError(f"operation '{op.step.name}': places that are a tensor have no ONNX form here")
    places = array(indices)
    if places.ndim != 1:
        raise ExportError(f"operation '{op.step.name}': places of other than one axis have no ONNX form here")
    return _picked_along(b, op, 2, lambda n: np.where(places < 0, places + n, places))


def depth_to_space(op_type: str, **attributes: Any) -> Emit:
    """``keras.ops.depth_to_space``, ``tf.nn.space_to_depth`` ...: the channels are split as ONNX' DCR."""

    def emit(b: Builder, op: Operation) -> Tensor:
        first = str(op.parameter("data_format", 2, "channels_last")) in ("channels_first", "NCHW")
        x = b.logical(op.x) if first else b.first(op.x)
        name = b.node(op_type, [x.name], blocksize=int(op.parameter("block_size", 1)), **attributes)
        return Tensor(name, op.shape, None if first else channels_first(4), x.dtype)

    return emit


def resize(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.image.resize``, ``tf.image.resize``."""
    for name in ("antialias", "crop_to_aspect_ratio", "pad_to_aspect_ratio", "preserve_aspect_ratio"):
        if op.parameter(name, BY_NAME, False):
            raise ExportError(f"operation '{op.step.name}': a resize with {name} has no ONNX form here")
    first = op.parameter("data_format", BY_NAME, None) == "channels_first"
    size = [int(n) for n in array(op.parameter("size", 1))]
    mode = str(op.parameter("interpolation", 2, "bilinear", aka=("method",)))
    axes = [2, 3] if first else [1, 2]
    if any(op.x.shape[a] is None for a in axes):
        raise ExportError(f"operation '{op.step.name}': a resize needs an input of known size")
    return resize_to(b, op.x, axes, mode, first=first, sizes=size, shape=op.shape)


def squeeze(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.squeeze``, ``tf.squeeze``."""
    x = b.logical(op.x)
    axes = op.axes("axis", 1, x.rank)
    axes = [i for i, d in enumerate(x.shape) if d == 1] if axes is None else axes
    return Tensor(b.node("Squeeze", [x.name, b.integers(axes, "axes")]), op.shape, None, x.dtype)


def expand_dims(b: Builder, op: Operation) -> Tensor:
    """``keras.ops.expand_dims``, ``tf.expand_dims``."""
    x, axes = b.logical(op.x), op.axes("axis", 1, len(op.shape))
    return Tensor(b.node("Unsqueeze", [x.name, b.integers(axes, "axes")]), op.shape, None, x.dtype)


def _flattened(b: Builder, x: Tensor) -> Tensor:
    """``x`` as a tensor of the graph, in whichever order."""
    return b.logical(x) if x.unflattened is not None else x


def _list(op: Operation) -> list[Tensor]:
    found: Sequence[Tensor] = op.parameter("xs", 0, aka=("x", "arrays", "values"))
    if not all(isinstance(x, Tensor) for x in found):
        raise ExportError(f"operation '{op.step.name}': constants among what is joined have no ONNX form here")
    return list(found)


def _size(op: Operation, x: Tensor, axis: int) -> int:
    size = x.shape[axis]
    if size is None:
        raise ExportError(f"operation '{op.step.name}': an axis of open size has no ONNX form here")
    return size


def _picked_along(b: Builder, op: Operation, place: int, places: Callable[[int], Any]) -> Tensor:
    """``x`` at places of an axis, which is the last parameter."""
    x = _flattened(b, op.x)
    axes = op.axes("axis", place, x.rank)
    if axes is None:
        raise ExportError(f"operation '{op.step.name}': without an axis it has no ONNX form here")
    wanted = b.integers(places(_size(op, x, axes[0])), "places")
    return b.like(x, b.node("Gather", [x.name, wanted], axis=x.axis(axes[0])), op.shape)
