# SPDX-License-Identifier: Apache-2.0
"""A tensor is quantized once: no Q -> DQ -> Q -> DQ in a row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from onnx import ModelProto, NodeProto

from wia_quant.qdq import DEQUANTIZE, QUANTIZE, GraphView, ModelView, view_model
from wia_quant.rules.base import Place, Rule, Severity, at


def find(model: ModelView) -> Iterator[Place]:
    """QuantizeLinear straight after DequantizeLinear."""
    for view, node in model.nodes():
        before = view.producers.get(node.input[0]) if node.op_type == QUANTIZE else None
        if before is None or before.op_type != DEQUANTIZE:
            continue
        same = _same_parameters(view, before, node)
        yield at(
            view,
            node,
            f"'{node.input[0]}' is already quantized" + (" with the same parameters" if same else " on another grid"),
            "drop this pair" if same else "give the two one scale",
            tensor=node.input[0],
            fixable=same,
        )


def fix(model: ModelProto) -> int:
    """Drops a Q that returns the very integers its DQ came from."""
    changed = 0
    for view in view_model(model).graphs:
        for node in list(view.graph.node):
            before = view.producers.get(node.input[0]) if node.op_type == QUANTIZE else None
            if before is None or before.op_type != DEQUANTIZE or not _same_parameters(view, before, node):
                continue
            if node.output[0] in view.output_names:
                continue
            for reader in view.graph.node:
                for i, name in enumerate(reader.input):
                    if name == node.output[0]:
                        reader.input[i] = before.input[0]
            view.graph.node.remove(node)
            changed += 1
    return changed


def _same_parameters(view: GraphView, a: NodeProto, b: NodeProto) -> bool:
    if len(a.input) != len(b.input):
        return False
    for x, y in zip(a.input[1:], b.input[1:], strict=True):
        left, right = view.constant(x), view.constant(y)
        if left is None or right is None or left.dtype != right.dtype or not np.array_equal(left, right):
            return False
    return True


RULE = Rule("a tensor is quantized once", Severity.ERROR, find, fix)
