# SPDX-License-Identifier: Apache-2.0
"""The target has every operator that the model uses, within its limits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from onnx import NodeProto, helper

from wia_quant.qdq import GraphView
from wia_quant.rules.base import Place, Severity, at
from wia_quant.rules.products import products
from wia_quant.rules.target_case import TargetCase, TargetRule

_FALLBACK = "it runs in float there, between two conversions; choose another operator, or calibrate for this target"
_NEEDED = "calibrate the float model again with --target, which keeps it float"


def find(case: TargetCase) -> Iterator[Place]:
    """Integer nodes that the target does not take; float nodes where it has no float operators."""
    target = replace(case.target, max_tensor_dims=None, max_tensor_size=None)  # those are target_size's
    stored = {id(p.node) for p in products(case.model)}
    for view, node in case.integer_nodes:
        reason = target.reason_against(
            node.op_type,
            _attributes(case, node),
            [(name, case.shape(name), 1) for name in _float_tensors(case, view, node)],
        )
        if reason is None:
            continue
        # A product's weights are stored for an integer unit; another node is free to run in float.
        bad = id(node) in stored or not target.runs_float
        yield at(
            view,
            node,
            reason,
            _NEEDED if bad else _FALLBACK,
            tensor=node.output[0],
            severity=Severity.ERROR if bad else Severity.NOTE,
        )
    if not target.runs_float:
        for view, node in case.float_nodes():
            message = f"it runs in float; target {target.name} has no float operators"
            yield at(view, node, message, "quantize its inputs and outputs, or replace it", tensor=node.output[0])


def _float_tensors(case: TargetCase, view: GraphView, node: NodeProto) -> list[str]:
    """What the node reads and writes as levels: shapes, indices and bounds are not among it."""
    first = 2 if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul", "Concat") else 1
    read = [n for i, n in enumerate(node.input) if n and (i < first or n in view.dequantized)]
    return [n for n in dict.fromkeys([*read, *filter(None, node.output)]) if case.is_float(n)]


def _attributes(case: TargetCase, node: NodeProto) -> dict[str, object]:
    found: dict[str, object] = {}
    for a in node.attribute:
        value = helper.get_attribute_value(a)
        found[a.name] = value.decode() if isinstance(value, bytes) else value
    if node.op_type in ("Conv", "ConvTranspose") and (weight := case.shape(node.input[1])) is not None:
        found.setdefault("kernel_shape", [d or 1 for d in weight[2:]])
    return found


RULE = TargetRule("the target has every operator, within its limits", Severity.ERROR, find)
