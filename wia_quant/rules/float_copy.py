# SPDX-License-Identifier: Apache-2.0
"""No float copy of a quantized weight remains in the file."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto, numpy_helper

from wia_quant.qdq import QUANTIZE, ModelView, view_model
from wia_quant.rules.base import Place, Rule, Severity, at


def find(model: ModelView) -> Iterator[Place]:
    """QuantizeLinear of a constant, and initializers that nobody reads."""
    for view, node in model.nodes():
        if node.op_type == QUANTIZE and view.constant(node.input[0]) is not None:
            message = f"'{node.input[0]}' is stored as floats and quantized on every run"
            foldable = view.quantized_constant(node) is not None and node.output[0] not in view.output_names
            yield at(view, node, message, "store its integers", tensor=node.input[0], fixable=foldable)
    for view in model.graphs:
        if view.parent is not None or view.children:
            continue  # a subgraph may read an outer graph's initializers
        read = {name for node in view.graph.node for name in node.input} | view.output_names
        inputs = {v.name for v in view.graph.input}
        for tensor in view.graph.initializer:
            if tensor.name not in read:
                message = f"nobody reads initializer '{tensor.name}'"
                yield Place(message, "drop it", tensor=tensor.name, fixable=tensor.name not in inputs)


def fix(model: ModelProto) -> int:
    """Quantizes constants by equation (1), which is what the node does on every run, and drops what nobody reads."""
    changed = 0
    for view in view_model(model).graphs:
        folded = []
        for node in view.graph.node:
            q = view.quantized_constant(node) if node.op_type == QUANTIZE else None
            if q is None or node.output[0] in view.output_names:
                continue
            view.graph.initializer.append(numpy_helper.from_array(q, node.output[0]))
            folded.append(node)
        for node in folded:
            view.graph.node.remove(node)
        changed += len(folded)
    main = view_model(model).graphs
    if len(main) == 1:
        read = {name for node in model.graph.node for name in node.input} | main[0].output_names
        read |= {v.name for v in model.graph.input}  # a caller may give it: the interface stays
        unread = [t for t in model.graph.initializer if t.name not in read]
        for tensor in unread:
            model.graph.initializer.remove(tensor)
        changed += len(unread)
    return changed


RULE = Rule("no float copy of a quantized weight remains", Severity.NOTE, find, fix)
