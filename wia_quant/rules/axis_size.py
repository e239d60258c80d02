# SPDX-License-Identifier: Apache-2.0
"""A per-axis scale has one value for each index of an axis that exists."""

from __future__ import annotations

from collections.abc import Iterator

from wia_quant.qdq import ModelView, attribute
from wia_quant.rules.base import Place, Rule, Severity, at


def find(model: ModelView) -> Iterator[Place]:
    """Weights whose scale does not match their axis, and zero points of another shape."""
    for view, tensor in model.tensors():
        if tensor.scale is None or tensor.zero_point is None or attribute(tensor.node, "block_size", 0):
            continue
        if tensor.zero_point.shape != tensor.scale.shape:
            shapes = f"{list(tensor.zero_point.shape)} against the scale's {list(tensor.scale.shape)}"
            yield at(view, tensor.node, f"zero point of shape {shapes}", "give both one shape", tensor=tensor.name)
        if tensor.levels is None or tensor.scale.size == 1:
            continue
        rank, axis = tensor.levels.ndim, tensor.axis
        if not -rank <= axis < rank:
            message = f"axis {axis} of a tensor with {rank} dimensions"
            yield at(view, tensor.node, message, "set the axis of the output channels", tensor=tensor.name)
        elif tensor.levels.shape[axis] != tensor.scale.size:
            message = f"{tensor.scale.size} scales for axis {axis} of size {tensor.levels.shape[axis]}"
            yield at(view, tensor.node, message, "one scale for each output channel", tensor=tensor.name)


RULE = Rule("a per-axis scale fits its axis", Severity.ERROR, find)
