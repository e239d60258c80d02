# SPDX-License-Identifier: Apache-2.0
"""Q and DQ come in pairs."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import ModelProto

from wia_quant.qdq import DEQUANTIZE, QUANTIZE, ModelView, view_model
from wia_quant.rules.base import Place, Rule, Severity, at

#: Operators that may stand between Q and DQ: they take integers of any grid as they are.
_ON_INTEGERS = frozenset({"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Gather", "Identity"})


def find(model: ModelView) -> Iterator[Place]:
    """QuantizeLinear whose integers no DequantizeLinear reads and the model does not return."""
    for view, node in model.nodes():
        if node.op_type != QUANTIZE or node.output[0] in view.output_names:
            continue
        readers = view.consumers.get(node.output[0], ())
        if view.children and not readers:
            continue  # a subgraph reads it
        stray = [r for r in readers if r.op_type != DEQUANTIZE and r.op_type not in _ON_INTEGERS]
        if not readers:
            yield at(view, node, "nobody reads its integers", "drop it", tensor=node.output[0], fixable=True)
        elif stray:
            message = f"its integers go into {view.where(stray[0])}"
            yield at(view, node, message, "put a DequantizeLinear between", tensor=node.output[0])


def fix(model: ModelProto) -> int:
    """Drops a Q whose integers nobody reads."""
    changed = 0
    for view in view_model(model).graphs:
        if view.children:
            continue  # a subgraph may read them
        unread = [
            n
            for n in view.graph.node
            if n.op_type == QUANTIZE and n.output[0] not in view.output_names and not view.consumers.get(n.output[0])
        ]
        for node in unread:
            view.graph.node.remove(node)
        changed += len(unread)
    return changed


RULE = Rule("Q and DQ come in pairs", Severity.ERROR, find, fix)
