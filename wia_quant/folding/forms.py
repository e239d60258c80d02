# SPDX-License-Identifier: Apache-2.0
"""One form for what exporters write in several: a Reshape that flattens is Flatten, a mean of the picture its pool."""

from __future__ import annotations

import math

from wia_quant.graph import Model, Node


def choose_forms(model: Model, keep: frozenset[str]) -> int:
    """Rewrite nodes to the operator that says what they do; their names and results stay."""
    edits = 0
    for _, node in model.nodes():
        if node.standard and node.name not in keep:
            edits += _flatten(model, node) + _global_average_pool(model, node)
    return edits


def _flatten(model: Model, node: Node) -> int:
    """Reshape of [n, c, h, w] to [n, c * h * w]."""
    if node.op_type != "Reshape" or model.opset < 13:
        return 0
    shape, target = model.shape(node.inputs[0]), model.array(node.input(1))
    if shape is None or len(shape) < 3 or target is None or target.size != 2:
        return 0
    rest = [d for d in shape[1:] if d is not None]
    if len(rest) != len(shape) - 1 or 0 in rest:
        return 0
    batch, features = (int(v) for v in target)
    same_batch = batch == shape[0] or (batch == 0 and not node.integer("allowzero", 0))
    size = math.prod(rest)
    if (batch, features) != (-1, size) and not (same_batch and features in (size, -1)):
        return 0
    node.op_type, node.inputs = "Flatten", node.inputs[:1]
    node.attributes.clear()
    return 1


def _global_average_pool(model: Model, node: Node) -> int:
    """ReduceMean over every spatial axis that keeps their places."""
    if node.op_type != "ReduceMean" or not node.integer("keepdims", 1) or not model.is_float(node.inputs[0]):
        return 0
    rank = model.rank(node.inputs[0])
    given = model.array(node.input(1)) if node.input(1) else node.integers("axes")
    if rank is None or rank < 3 or given is None:
        return 0
    if sorted(int(axis) % rank for axis in given) != list(range(2, rank)):
        return 0
    node.op_type, node.inputs = "GlobalAveragePool", node.inputs[:1]
    node.attributes.clear()
    return 1
