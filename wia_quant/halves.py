# SPDX-License-Identifier: Apache-2.0
"""Scheme fp16: which tensors become float16, and the model written so; inputs and outputs stay float32.

A node computes in float16 when its operator allows it (the types of the ONNX standard) and the table of operators does
not ask for float precision. Nodes that meet a value beyond float16's largest stay float32, and the value is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from onnx import TensorProto, defs

from wia_quant.affine import Range
from wia_quant.errors import PolicyError
from wia_quant.graph import Graph, Model, Node, make_node
from wia_quant.operators import Kind, operator

#: The largest finite float16.
LARGEST: Final = 65504.0

#: Other data may go this many times beyond what calibration saw.
HEADROOM: Final = 4

_FLOAT, _HALF = "tensor(float)", "tensor(float16)"


@dataclass(frozen=True)
class HalfNode:
    """Which inputs and outputs of a node become float16, by position."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def values(self, node: Node) -> list[str]:
        """Their names."""
        return [node.inputs[i] for i in self.inputs] + [node.outputs[i] for i in self.outputs]


def half_nodes(
    model: Model, exclude: Mapping[str, str], keep_float: Mapping[str, str]
) -> tuple[dict[str, HalfNode], dict[str, str]]:
    """What computes in float16, and why the other nodes do not.

    Args:
        model: folded, types inferred.
        exclude: node -> the rule that keeps it float32.
        keep_float: further nodes to keep -> reason.

    Returns:
        {node: its float16 inputs and outputs}, {node: reason to stay float32}.
    """
    halves: dict[str, HalfNode] = {}
    reasons: dict[str, str] = {}
    for graph, node in model.nodes():
        found = _positions(model, node)
        reason = _reason(model, graph, node, found, exclude, keep_float)
        if reason is None and found is not None:
            halves[node.name] = found
        else:
            reasons[node.name] = reason or "no operator of float16 exists for it"
    if not halves:
        raise PolicyError("nothing to make float16: no node of the model can compute in it")
    return halves, reasons


def observed(model: Model, halves: Mapping[str, HalfNode]) -> tuple[str, ...]:
    """The values that will be float16 and are made while running."""
    values = (v for _, node in model.nodes() if node.name in halves for v in halves[node.name].values(node))
    return tuple(dict.fromkeys(v for v in values if v not in model.constants))


def too_large(model: Model, halves: Mapping[str, HalfNode], seen: Mapping[str, Range]) -> dict[str, str]:
    """Node -> the value it makes or reads that float16 does not hold, from what was seen."""
    found: dict[str, str] = {}
    for _, node in model.nodes():
        for value in halves[node.name].values(node) if node.name in halves else ():
            size = max(-seen[value].lo, seen[value].hi) if value in seen else 0.0
            if size * HEADROOM > LARGEST:
                found.setdefault(
                    node.name,
                    f"{value!r} reaches {size:.6g}, or {HEADROOM} times that on other data: "
                    f"beyond float16's largest, {LARGEST:.0f}",
                )
    return found


def _reason(
    model: Model,
    graph: Graph,
    node: Node,
    found: HalfNode | None,
    exclude: Mapping[str, str],
    keep_float: Mapping[str, str],
) -> str | None:
    if node.name in exclude:
        return f"excluded by {exclude[node.name]!r}"
    if node.name in keep_float:
        return keep_float[node.name]
    if graph is not model.main:
        return "inside a subgraph"
    line = operator(model, node)
    if line.kind is Kind.FLOAT:
        return line.why
    if line.kind is Kind.OWN and line.condition and (reason := line.condition(model, node)) is not None:
        return reason
    if found is None:
        return "works on no float32 tensor that could be float16"
    for value in (v for v in found.values(node) if v in model.constants):
        size = float(np.abs(model.floats(value)).max(initial=0.0))
        if not size <= LARGEST:
            return f"its constant {value!r} reaches {size:.6g}, beyond float16's largest, {LARGEST:.0f}"
    return None


def _positions(model: Model, node: Node) -> HalfNode | None:
    """By the standard's types: the inputs and outputs whose type may be float16 as well as float32."""
    if not node.standard or node.graphs or not defs.has(node.op_type):
        return None
    schema = defs.get_schema(node.op_type, max_inclusive_version=model.opset)
    either = {c.type_param_str for c in schema.type_constraints if {_FLOAT, _HALF} <= set(c.allowed_type_strs)}
    inputs = [i for i, t in enumerate(_types(schema.inputs, len(node.inputs))) if node.inputs[i] and t in either]
    outputs = [i for i, t in enumerate(_types(schema.outputs, len(node.outputs))) if node.outputs[i] and t in either]
    inputs = [i for i in inputs if model.is_float(node.inputs[i])]
    outputs = [i for i in outputs if model.is_float(node.outputs[i])]
    if not outputs or (all(node.inputs[i] in model.constants for i in inputs) and node.op_type != "Gather"):
        return None
    return HalfNode(tuple(inputs), tuple(outputs)) if inputs else None


def _types(formal: object, n: int) -> Iterator[str]:
    parameters = list(formal)  # type: ignore[call-overload]  # of OpSchema, untyped
    for i in range(n):
        yield parameters[min(i, len(parameters) - 1)].type_str


@dataclass(eq=False)
class _Writer:
    model: Model
    halves: Mapping[str, HalfNode]
    made: dict[str, str] = field(default_factory=dict)  # value -> its float16 form
    names: set[str] = field(default_factory=set)  # of nodes

    def write(self) -> None:
        graph = self.model.main
        order = list(graph.nodes)
        self.names = {node.name for _, node in self.model.nodes()}
        for node in order:
            if node.name not in self.halves:
                continue
            for i in self.halves[node.name].inputs:
                node.inputs[i] = self._half(graph, node.inputs[i])
            for i in self.halves[node.name].outputs:
                value = node.outputs[i]
                node.outputs[i] = self.made[value] = self.model.fresh(f"{value}/half")
                self._cast(graph, self.made[value], value, TensorProto.FLOAT)
        self.model.index()
        self.model.sort()
        self.model.drop_unused()

    def _half(self, graph: Graph, value: str) -> str:
        if value not in self.made:
            if value in self.model.constants:
                half = self.model.floats(value).astype(np.float16)
                self.made[value] = self.model.add_constant(graph, f"{value}/half", half)
            else:
                self.made[value] = self.model.fresh(f"{value}/half")
                self._cast(graph, value, self.made[value], TensorProto.FLOAT16)
        return self.made[value]

    def _cast(self, graph: Graph, source: str, result: str, to: int) -> None:
        name = f"{result}/cast"
        while name in self.names:
            name += "_"
        self.names.add(name)
        graph.nodes.append(make_node("Cast", [source], [result], name, {"to": to}))
        self.model.owners[result] = graph


def write_halves(model: Model, halves: Mapping[str, HalfNode]) -> None:
    """Edit the model so that ``halves`` compute in float16; a Cast stands where float32 and float16 meet."""
    _Writer(model, halves).write()
