# SPDX-License-Identifier: Apache-2.0
"""A per-axis scale has one value for each index of an axis that exists."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto, NodeProto, numpy_helper

from wia_quant.qdq import DEQUANTIZE, QUANTIZE, GraphView, ModelView, attribute, view_model
from wia_quant.rules.base import Place, Rule, Severity, at


def find(model: ModelView) -> Iterator[Place]:
    """Weights whose scale does not match their axis, and zero points of another shape."""
    for view, node in model.nodes():
        shapes = _shapes(view, node)
        if shapes is not None and shapes[0] != shapes[1]:
            # One value is one value: [] beside [1] computes the same everywhere.
            harmless = _size(shapes[0]) == _size(shapes[1]) == 1
            message = f"zero point of shape {list(shapes[1])} against the scale's {list(shapes[0])}"
            yield at(
                view,
                node,
                message,
                "give both one shape",
                tensor=node.input[2],
                fixable=harmless,
                severity=Severity.NOTE if harmless else None,
            )
    for view, tensor in model.tensors():
        if tensor.scale is None or attribute(tensor.node, "block_size", 0):
            continue
        if tensor.levels is None or tensor.scale.size == 1:
            continue
        rank, axis = tensor.levels.ndim, tensor.axis
        if not -rank <= axis < rank:
            message = f"axis {axis} of a tensor with {rank} dimensions"
            yield at(view, tensor.node, message, "set the axis of the output channels", tensor=tensor.name)
        elif tensor.levels.shape[axis] != tensor.scale.size:
            message = f"{tensor.scale.size} scales for axis {axis} of size {tensor.levels.shape[axis]}"
            yield at(view, tensor.node, message, "one scale for each output channel", tensor=tensor.name)


def fix(model: ModelProto) -> int:
    """Gives zero points of one value the shape of their scale: copies, as others may read the first."""
    changed = 0
    for view in view_model(model).graphs:
        taken = {name for n in view.graph.node for name in (*n.input, *n.output)} | set(view.initializers)
        for node in view.graph.node:
            shapes = _shapes(view, node)
            if shapes is None or shapes[0] == shapes[1] or not _size(shapes[0]) == _size(shapes[1]) == 1:
                continue
            value = view.constant(node.input[2])
            assert value is not None  # its shape is known
            name = f"{node.input[2]}/{'x'.join(map(str, shapes[0])) or 'scalar'}"
            while name in taken and name not in {t.name for t in view.graph.initializer}:
                name += "_"
            if name not in taken:
                view.graph.initializer.append(numpy_helper.from_array(value.reshape(shapes[0]), name))
                taken.add(name)
            node.input[2] = name
            changed += 1
    return changed


def _shapes(view: GraphView, node: NodeProto) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shapes of scale and zero point; None where there are not both, or not constant."""
    if node.op_type not in (QUANTIZE, DEQUANTIZE) or len(node.input) < 3 or attribute(node, "block_size", 0):
        return None
    scale, zero_point = view.constant(node.input[1]), view.constant(node.input[2])
    return None if scale is None or zero_point is None else (scale.shape, zero_point.shape)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for d in shape:
        size *= d
    return size


RULE = Rule("a per-axis scale fits its axis", Severity.ERROR, find, fix)
