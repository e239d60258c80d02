# SPDX-License-Identifier: Apache-2.0
"""Operators of TFLite that move, repeat, join or select values: no level changes."""

from __future__ import annotations

from typing import Final

import numpy as np

from wia_quant.builder import Tensor, channels_first
from wia_quant.errors import UnsupportedError
from wia_quant.tflite.emitter import Emit, Graph, shape_of
from wia_quant.tflite.reader import Op


def reshape(g: Graph, op: Op) -> Tensor:
    """RESHAPE, SQUEEZE, EXPAND_DIMS: the shape is what the file says."""
    x, shape = g.x(op, 0), shape_of(g, op)
    if len(shape) == 2 and x.rank > 2 and x.order is not None and None not in x.shape[1:] and x.shape[0] == shape[0]:
        return Tensor("", shape, None, unflattened=x)
    if x.rank == 2 and len(shape) == 4 and shape[1:3] == (1, 1) and x.unflattened is None:
        name = g.b.node("Reshape", [x.name, g.b.integers([0, shape[3], 1, 1], "shape")])
        return Tensor(name, shape, channels_first(4))
    target = [0 if i == 0 and d is None else -1 if d is None else d for i, d in enumerate(shape)]
    return Tensor(g.b.node("Reshape", [g.b.logical(x).name, g.b.integers(target, "shape")]), shape)


def transpose(g: Graph, op: Op) -> Tensor:
    """TRANSPOSE."""
    perm = [int(p) for p in g.constant(op, 1)]
    return Tensor(g.b.node("Transpose", [g.b.logical(g.x(op, 0)).name], perm=perm), shape_of(g, op))


def pad(g: Graph, op: Op) -> Tensor:
    """PAD with level 0, PADV2 with another."""
    x, pairs = g.x(op, 0), g.constant(op, 1)
    value = g.b.floats(0.0, "zero") if len(op.inputs) < 3 else g.b.floats(_number(g, op, 2), "value")
    before, after = [0] * x.rank, [0] * x.rank
    for axis, (lo, hi) in enumerate(pairs):
        before[x.axis(axis)], after[x.axis(axis)] = int(lo), int(hi)
    name = g.b.node("Pad", [x.name, g.b.integers([*before, *after], "pads"), value])
    return g.b.like(x, name, shape_of(g, op))


def strided_slice(g: Graph, op: Op) -> Tensor | None:
    """STRIDED_SLICE; none of a shape, which the file says, too."""
    x, o = g.info(op.inputs[0]), op.options
    if x.grid is None and x.dtype != "float32":
        return None  # of a shape, which the file says, too
    if o.ellipsisMask or o.newAxisMask or getattr(o, "offset", False):
        raise UnsupportedError(f"STRIDED_SLICE '{op.name}': an ellipsis, a new axis or an offset is not read")
    begin, end, strides = ([int(v) for v in g.constant(op, place)] for place in (1, 2, 3))
    if min(strides) < 1:
        raise UnsupportedError(f"STRIDED_SLICE '{op.name}': a negative stride is not read")
    picked = [axis for axis in range(len(begin)) if o.shrinkAxisMask >> axis & 1]
    starts = [0 if o.beginMask >> axis & 1 and axis not in picked else b for axis, b in enumerate(begin)]
    ends = [_FAR if o.endMask >> axis & 1 else e for axis, e in enumerate(end)]
    for axis in picked:
        ends[axis] = starts[axis] + 1 or _FAR
    parts = zip(("starts", "ends", "axes", "steps"), (starts, ends, range(len(begin)), strides), strict=True)
    name = g.b.node("Slice", [g.b.logical(g.x(op, 0)).name, *(g.b.integers(list(v), k) for k, v in parts)])
    if picked:
        name = g.b.node("Squeeze", [name, g.b.integers(picked, "axes")])
    return Tensor(name, shape_of(g, op))


#: Beyond the end of any axis.
_FAR: Final = 2**31 - 1


def split(data: int, axis: int) -> Emit:
    """SPLIT, SPLIT_V: the places of the data and of the axis among the inputs."""

    def emit(g: Graph, op: Op) -> list[Tensor]:
        x, along = g.x(op, data), int(g.constant(op, axis).reshape(-1)[0])
        shapes = [g.info(i).shape for i in op.outputs]
        sizes = g.b.integers([int(shape[along] or 0) for shape in shapes], "sizes")
        x = g.b.arranged(x, x.order)
        names = g.b.node_n("Split", [x.name, sizes], len(shapes), axis=x.axis(along))
        return [g.b.like(x, name, shape) for name, shape in zip(names, shapes, strict=True)]

    return emit


def _number(g: Graph, op: Op, place: int) -> np.float32:
    (level,), grid = g.constant(op, place).reshape(-1), g.info(op.inputs[place]).grid
    return np.float32(level) if grid is None else np.float32(int(level) - grid.zero_point[0]) * grid.scale[0]


def mirror_pad(g: Graph, op: Op) -> Tensor:
    """MIRROR_PAD without the edge itself."""
    if int(op.options.mode) != 0:
        raise UnsupportedError(f"MIRROR_PAD '{op.name}': SYMMETRIC is not read")
    x, pairs = g.b.logical(g.x(op, 0)), g.constant(op, 1)
    ends = [int(n) for side in (0, 1) for n in pairs[:, side]]
    return g.b.like(x, g.b.node("Pad", [x.name, g.b.integers(ends, "pads")], mode="reflect"), shape_of(g, op))


def part(g: Graph, op: Op) -> Tensor:
    """SLICE: from a place, so many."""
    x, begin, size = g.b.logical(g.x(op, 0)), g.constant(op, 1), g.constant(op, 2)
    ends = [_FAR if n < 0 else int(b) + int(n) for b, n in zip(begin, size, strict=True)]
    inputs = [g.b.integers(v, n) for v, n in ((list(begin), "starts"), (ends, "ends"), (range(x.rank), "axes"))]
    return Tensor(g.b.node("Slice", [x.name, *inputs]), shape_of(g, op))


def gather(g: Graph, op: Op) -> Tensor:
    """GATHER of constant places."""
    if int(getattr(op.options, "batchDims", 0)):
        raise UnsupportedError(f"GATHER '{op.name}': batch dimensions are not read")
    x, places = g.b.logical(g.x(op, 0)), g.b.integers(g.constant(op, 1), "places")
    return Tensor(g.b.node("Gather", [x.name, places], axis=int(op.options.axis) % x.rank), shape_of(g, op))


def tile(g: Graph, op: Op) -> Tensor:
    """TILE."""
    x = g.b.logical(g.x(op, 0))
    return Tensor(g.b.node("Tile", [x.name, g.b.integers(g.constant(op, 1), "repeats")]), shape_of(g, op))


def reverse(g: Graph, op: Op) -> Tensor:
    """REVERSE_V2: along some axes from the end to the beginning."""
    x = g.b.logical(g.x(op, 0))
    axes = [int(a) % x.rank for a in g.constant(op, 1).reshape(-1)]
    values = ((_FAR, "starts"), (-_FAR, "ends"), (None, "axes"), (-1, "steps"))
    inputs = [g.b.integers(axes if v is None else [v] * len(axes), name) for v, name in values]
    return Tensor(g.b.node("Slice", [x.name, *inputs]), shape_of(g, op))


def depth_to_space(op_type: str, mode: str | None = None) -> Emit:
    """DEPTH_TO_SPACE, SPACE_TO_DEPTH: the channels are split as ONNX' DCR."""

    def emit(g: Graph, op: Op) -> Tensor:
        x = g.b.first(g.x(op, 0))
        name = g.b.node(op_type, [x.name], blocksize=int(op.options.blockSize), mode=mode)
        return Tensor(name, shape_of(g, op), channels_first(4))

    return emit


def pack(g: Graph, op: Op) -> Tensor | None:
    """PACK; none of a shape, which the file says, too."""
    first = g.info(op.inputs[0])
    if first.grid is None and first.dtype != "float32":
        return None
    axis = int(op.options.axis) % len(shape_of(g, op))
    axes = g.b.integers([axis], "axes")
    wide = [g.b.node("Unsqueeze", [g.b.logical(g.x(op, i)).name, axes]) for i in range(len(op.inputs))]
    return Tensor(g.b.node("Concat", wide, axis=axis), shape_of(g, op))


def unpack(g: Graph, op: Op) -> list[Tensor]:
    """UNPACK."""
    x, n = g.b.logical(g.x(op, 0)), len(op.outputs)
    axis = int(op.options.axis) % x.rank
    parts = g.b.node_n("Split", [x.name, g.b.integers([1] * n, "sizes")], n, axis=axis)
    axes = g.b.integers([axis], "axes")
    return [Tensor(g.b.node("Squeeze", [part, axes]), shape_of(g, op)) for part in parts]


def ends(op_type: str) -> Emit:
    """REDUCE_MAX, REDUCE_MIN."""

    def emit(g: Graph, op: Op) -> Tensor:
        x = g.b.logical(g.x(op, 0))
        axes = sorted(int(a) % x.rank for a in g.constant(op, 1).reshape(-1))
        name = g.b.node(op_type, [x.name, g.b.integers(axes, "axes")], keepdims=int(bool(op.options.keepDims)))
        return Tensor(name, shape_of(g, op))

    return emit
