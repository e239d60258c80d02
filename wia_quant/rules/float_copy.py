# SPDX-License-Identifier: Apache-2.0
"""No float copy of a quantized weight remains in the file."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, TensorProto, numpy_helper

from wia_quant.affine import INT8, INT16_SYMMETRIC, UINT8, QParams, QType, quantize
from wia_quant.qdq import QUANTIZE, GraphView, ModelView, attribute, view_model
from wia_quant.rules.base import Place, Rule, Severity, at

_GRIDS: dict[int, QType] = {
    TensorProto.INT8: INT8,
    TensorProto.UINT8: UINT8,
    TensorProto.INT16: QType("int16", np.dtype(np.int16), -32768, 32767, INT16_SYMMETRIC.symmetric),
}


def find(model: ModelView) -> Iterator[Place]:
    """QuantizeLinear of a constant, and initializers that nobody reads."""
    for view, node in model.nodes():
        if node.op_type == QUANTIZE and view.constant(node.input[0]) is not None:
            message = f"'{node.input[0]}' is stored as floats and quantized on every run"
            foldable = _parameters(view, node.input, attribute(node, "axis", 1)) is not None
            yield at(view, node, message, "store its integers", tensor=node.input[0], fixable=foldable)
    for view in model.graphs:
        if view.parent is not None or view.children:
            continue  # a subgraph may read an outer graph's initializers
        read = {name for node in view.graph.node for name in node.input} | view.output_names
        for tensor in view.graph.initializer:
            if tensor.name not in read:
                yield Place(f"nobody reads initializer '{tensor.name}'", "drop it", tensor=tensor.name, fixable=True)


def fix(model: ModelProto) -> int:
    """Quantizes constants by equation (1), which is what the node does on every run, and drops what nobody reads."""
    changed = 0
    for view in view_model(model).graphs:
        folded = []
        for node in view.graph.node:
            x = view.constant(node.input[0]) if node.op_type == QUANTIZE else None
            qp = None if x is None else _parameters(view, node.input, attribute(node, "axis", 1))
            if x is None or qp is None or node.output[0] in view.output_names:
                continue
            q = quantize(x.astype(np.float32), qp)
            view.graph.initializer.append(numpy_helper.from_array(q, node.output[0]))
            folded.append(node)
        for node in folded:
            view.graph.node.remove(node)
        changed += len(folded)
    main = view_model(model).graphs
    if len(main) == 1:
        read = {name for node in model.graph.node for name in node.input} | main[0].output_names
        unread = [t for t in model.graph.initializer if t.name not in read]
        for tensor in unread:
            model.graph.initializer.remove(tensor)
            for entry in [v for v in model.graph.input if v.name == tensor.name]:
                model.graph.input.remove(entry)
        changed += len(unread)
    return changed


def _parameters(view: GraphView, inputs: object, axis: int) -> QParams | None:
    names = [str(n) for n in inputs]  # type: ignore[attr-defined]  # a protobuf sequence
    if len(names) < 3:
        return None
    scale, zero_point = view.constant(names[1]), view.constant(names[2])
    tensor = view.initializers.get(names[2])
    x = view.constant(names[0])
    if scale is None or zero_point is None or tensor is None or x is None or tensor.data_type not in _GRIDS:
        return None
    grid = _GRIDS[tensor.data_type]
    if scale.size == 1:
        return QParams(grid, scale.astype(np.float32).reshape(()), zero_point.astype(grid.dtype).reshape(()))
    if scale.ndim != 1 or not -x.ndim <= axis < x.ndim or x.shape[axis] != scale.size:
        return None
    return QParams(grid, scale.astype(np.float32), zero_point.astype(grid.dtype), axis % x.ndim)


RULE = Rule("no float copy of a quantized weight remains", Severity.NOTE, find, fix)
