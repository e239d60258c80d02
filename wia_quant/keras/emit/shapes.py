# SPDX-License-Identifier: Apache-2.0
"""What moves values: reshaping, padding, cropping, resizing, slicing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wia_quant.builder import Builder, Tensor, channels_first
from wia_quant.errors import ExportError
from wia_quant.keras.emit.products import numbers
from wia_quant.keras.steps import Step

_END: Final = 2**63 - 1  # ONNX: to the end, whatever the size


def same(b: Builder, step: Step, x: Tensor, *ignored: Any) -> Tensor:
    """What does nothing in inference: Dropout and its kin."""
    return x


def flatten(b: Builder, step: Step, x: Tensor) -> Tensor:
    """Flatten; of a tensor that lies otherwise than in Keras, put off until it is known who reads it."""
    if x.rank <= 2:
        return x
    if _is_channels_first(step):
        x = permuted(x, (0, *range(2, x.rank), 1))
    shape = step.outputs[0].shape
    wide = [d for d in x.shape[1:] if d != 1]
    if x.order is None or (len(wide) <= 1 and None not in x.shape[1:]):
        return Tensor(b.node("Flatten", [x.name], axis=1), shape, None, x.dtype)
    if None in x.shape[1:]:
        return Tensor(b.node("Flatten", [b.logical(x).name], axis=1), shape, None, x.dtype)
    return Tensor("", shape, None, x.dtype, unflattened=x)


def permuted(x: Tensor, perm: Sequence[int]) -> Tensor:
    """Axis i of the result is axis ``perm[i]`` of ``x``: nothing moves, it is only seen otherwise."""
    order = x.order or tuple(range(x.rank))
    found = tuple(list(perm).index(axis) for axis in order)
    shape = tuple(x.shape[axis] for axis in perm)
    return Tensor(x.name, shape, None if found == tuple(range(x.rank)) else found, x.dtype)


def permute(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer Permute."""
    return permuted(x, (0, *(int(d) for d in step.layer.dims)))


def reshape(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer Reshape."""
    return reshape_to(b, x, [int(d) for d in step.layer.target_shape], step.outputs[0].shape)


def reshape_to(b: Builder, x: Tensor, target: Sequence[int], shape: tuple[int | None, ...]) -> Tensor:
    """Every sample of ``x`` reshaped to ``target``, which may hold one -1."""
    rank = len(target) + 1
    if x.rank == 2 and x.unflattened is None and rank > 2 and all(d == 1 for d in target[:-1]):
        # One pixel of channels: the channels can go first without moving.
        name = b.node("Reshape", [x.name, b.integers([0, target[-1], *[1] * (rank - 2)], "shape")])
        return Tensor(name, shape, channels_first(rank), x.dtype)
    x = b.logical(x)
    return Tensor(b.node("Reshape", [x.name, b.integers([0, *target], "shape")]), shape, None, x.dtype)


def repeat_vector(b: Builder, step: Step, x: Tensor) -> Tensor:
    """RepeatVector."""
    wide = b.node("Unsqueeze", [b.logical(x).name, b.integers([1], "axes")])
    return Tensor(b.node("Tile", [wide, b.integers([1, int(step.layer.n), 1], "repeats")]), step.outputs[0].shape)


def _pairs(value: Any, rank: int) -> list[tuple[int, int]]:
    """Keras' int, pair or pairs as (before, after) for each spatial axis."""
    if isinstance(value, int):
        return [(value, value)] * rank
    if rank == 1 and len(value) == 2 and all(isinstance(v, int) for v in value):
        return [(int(value[0]), int(value[1]))]
    return [(v, v) if isinstance(v, int) else (int(v[0]), int(v[1])) for v in value]


def _is_channels_first(step: Step) -> bool:
    return getattr(step.layer, "data_format", None) == "channels_first"


def _spatial_axes(step: Step, x: Tensor) -> list[int]:
    return list(range(2, x.rank)) if _is_channels_first(step) else list(range(1, x.rank - 1))


def zero_padding(b: Builder, step: Step, x: Tensor) -> Tensor:
    """ZeroPadding1D to 3D."""
    axes = _spatial_axes(step, x)
    before, after = [0] * x.rank, [0] * x.rank
    for axis, (lo, hi) in zip(axes, _pairs(step.layer.padding, len(axes)), strict=True):
        before[x.axis(axis)], after[x.axis(axis)] = lo, hi
    name = b.node("Pad", [x.name, b.integers([*before, *after], "pads"), b.floats(0.0, "zero")])
    return b.like(x, name, step.outputs[0].shape)


def cropping(b: Builder, step: Step, x: Tensor) -> Tensor:
    """Cropping1D to 3D."""
    axes = _spatial_axes(step, x)
    pairs = _pairs(step.layer.cropping, len(axes))
    starts, ends = [lo for lo, _ in pairs], [-hi if hi else _END for _, hi in pairs]
    return _slice(b, x, [x.axis(a) for a in axes], starts, ends, [1] * len(axes), step.outputs[0].shape)


def _slice(
    b: Builder, x: Tensor, axes: list[int], starts: list[int], ends: list[int], steps: list[int], shape: Any
) -> Tensor:
    inputs = [b.integers(v, n) for v, n in ((starts, "starts"), (ends, "ends"), (axes, "axes"), (steps, "steps"))]
    return b.like(x, b.node("Slice", [x.name, *inputs]), shape)


def up_sampling(b: Builder, step: Step, x: Tensor) -> Tensor:
    """UpSampling1D to 3D."""
    axes = _spatial_axes(step, x)
    factors = numbers(step.layer.size, len(axes))
    mode, first = getattr(step.layer, "interpolation", "nearest"), _is_channels_first(step)
    by = [float(f) for f in factors]
    return resize_to(b, x, axes, mode, first=first, factors=by, shape=step.outputs[0].shape)


def resizing(b: Builder, step: Step, x: Tensor) -> Tensor:
    """The layer Resizing."""
    layer = step.layer
    if getattr(layer, "crop_to_aspect_ratio", False) or getattr(layer, "pad_to_aspect_ratio", False):
        raise ExportError(f"layer '{b.where}': Resizing that keeps the aspect ratio has no ONNX form here")
    axes, wanted = _spatial_axes(step, x), [int(layer.height), int(layer.width)]
    sizes = [x.shape[a] for a in axes]
    if any(s is None for s in sizes):
        raise ExportError(f"layer '{b.where}': Resizing needs an input of known size")
    first = _is_channels_first(step)
    return resize_to(b, x, axes, layer.interpolation, first=first, sizes=wanted, shape=step.outputs[0].shape)


#: Keras' interpolation -> ONNX' mode, coordinates and rounding.
_INTERPOLATION: Final = {
    "nearest": ("nearest", "half_pixel", "round_prefer_ceil"),
    "bilinear": ("linear", "half_pixel", None),
}


def resize_to(
    b: Builder,
    x: Tensor,
    axes: list[int],
    interpolation: str,
    *,
    first: bool,
    shape: tuple[int | None, ...],
    factors: list[float] | None = None,
    sizes: list[int] | None = None,
) -> Tensor:
    """``x`` by so many ``factors``, or to so many ``sizes``, along Keras' ``axes``; ``first`` where channels are."""
    if interpolation not in _INTERPOLATION:
        raise ExportError(f"layer '{b.where}': interpolation '{interpolation}' has no ONNX form here")
    mode, coordinates, rounding = _INTERPOLATION[interpolation]
    if factors is not None and mode == "nearest":
        coordinates, rounding = "asymmetric", "floor"
    x = b.logical(x) if first else b.first(x)
    scales = [1.0] * x.rank
    if factors is None:
        assert sizes is not None
        factors = [n / (x.shape[a] or 1) for a, n in zip(axes, sizes, strict=True)]
    for axis, factor in zip(axes, factors, strict=True):
        scales[x.axis(axis)] = factor
    inputs = [x.name, "", b.floats(scales, "scales")]
    extra: dict[str, Any] = {"coordinate_transformation_mode": coordinates, "mode": mode, "nearest_mode": rounding}
    return b.like(x, b.node("Resize", inputs, **extra), shape)


def reversed_along(b: Builder, x: Tensor, axes: list[int], shape: tuple[int | None, ...]) -> Tensor:
    """``x`` from its end to its beginning, along axes of the graph's tensor."""
    n = len(axes)
    return _slice(b, x, axes, [_END] * n, [-_END] * n, [-1] * n, shape)


def get_item(b: Builder, x: Tensor, key: Any, shape: tuple[int | None, ...]) -> Tensor:
    """``x[key]`` of slices, integers, ``...`` and ``None``."""
    keys = list(key) if isinstance(key, tuple | list) else [key]
    if any(not isinstance(k, slice | int | np.integer | type(None) | type(...)) for k in keys):
        raise ExportError(f"layer '{b.where}': an index that is a tensor has no ONNX form here")
    named = sum(k is not None and k is not ... for k in keys)
    at = next((i for i, k in enumerate(keys) if k is ...), len(keys))
    keys = [*keys[:at], *[slice(None)] * (x.rank - named), *keys[at + 1 :]]
    if any(not isinstance(k, slice) for k in keys):
        x = b.logical(x)
    axes, starts, ends, steps, dropped, added = [], [], [], [], [], []
    axis = place = 0
    for k in keys:
        if k is None:
            added.append(place)
            place += 1
            continue
        if isinstance(k, slice):
            if (k.start, k.stop, k.step) != (None, None, None):
                stride = int(k.step or 1)
                axes.append(x.axis(axis))
                starts.append(int(k.start) if k.start is not None else (0 if stride > 0 else _END))
                ends.append(int(k.stop) if k.stop is not None else (_END if stride > 0 else -_END))
                steps.append(stride)
            place += 1
        else:
            axes.append(x.axis(axis))
            starts.append(int(k))
            ends.append(int(k) + 1 if int(k) != -1 else _END)
            steps.append(1)
            dropped.append(axis)
        axis += 1
    if axes:
        x = _slice(b, x, axes, starts, ends, steps, x.shape)
    name = x.name
    if dropped:
        name = b.node("Squeeze", [name, b.integers(dropped, "axes")])
    if added:
        name = b.node("Unsqueeze", [name, b.integers(added, "axes")])
    return Tensor(name, shape, x.order, x.dtype)
