# SPDX-License-Identifier: Apache-2.0
"""Runs of elementwise operators that are a function of one tensor: SiLU, decomposed HardSwish and Gelu, scales.

Such a run is one table of 256 levels for libwia, so only its two ends are quantized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from wia_quant.graph import Graph, Model, Node
from wia_quant.operators import Kind, operator

#: With one scalar constant, or the same tensor on both sides, these are functions of one value.
_BINARY: Final = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max"})


@dataclass(eq=False)
class Regions:
    """Which values belong to a run, and where each run begins.

    Attributes:
        source: value inside or at the end of a run -> the value the run begins with.
        inside: values that stay unquantized because only their own run reads them.
    """

    source: dict[str, str] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)


def find_regions(model: Model, refused: Callable[[Node], bool]) -> Regions:
    """The pointwise runs of every graph.

    Args:
        model: with types inferred.
        refused: nodes that must not join a run (excluded ones, activations fused into a product).
    """
    boundaries: set[str] = set()
    while True:
        source = _sources(model, refused, boundaries)
        cut = {value for value in source if value not in boundaries and _leaves(model, source, value)}
        if not cut:
            return Regions(source, {v for v in source if v not in boundaries and not _is_end(model, source, v)})
        # Cut the earliest only: what follows may then close by itself.
        order = [o for _, n in model.nodes() for o in n.outputs if o in cut]
        boundaries.add(order[0])


def _sources(model: Model, refused: Callable[[Node], bool], boundaries: set[str]) -> dict[str, str]:
    source: dict[str, str] = {}
    for graph, node in model.nodes():
        if refused(node) or len(node.outputs) != 1 or not _eligible(model, node):
            continue
        start = _common_source(model, graph, node, source, boundaries)
        if start is not None:
            source[node.outputs[0]] = start
    return source


def _eligible(model: Model, node: Node) -> bool:
    kind = operator(model, node).kind
    if not model.is_float(node.outputs[0]):
        return False
    if node.op_type in _BINARY and node.standard:
        return len(node.inputs) == 2
    line = operator(model, node)
    return kind is Kind.POINTWISE and (line.condition is None or line.condition(model, node) is None)


def _common_source(model: Model, graph: Graph, node: Node, source: dict[str, str], boundaries: set[str]) -> str | None:
    """The value of which this node is a function of one value; None when it takes two."""
    operands = node.inputs[:2] if node.op_type in _BINARY else node.inputs[:1]
    variables = [v for v in operands if model.array(v) is None]
    constants = [v for v in operands if model.array(v) is not None]
    if not variables or not all(model.is_float(v) for v in variables):
        return None
    for name in constants:
        array = model.array(name)
        rank = model.rank(variables[0])
        if array is None or array.size != 1 or (array.ndim > 1 and (rank is None or array.ndim > rank)):
            return None
    if node.op_type == "Div" and (len(variables) == 2 or variables[0] != operands[0]):
        return None
    candidates = [_starts(graph, model, v, source, boundaries) for v in variables]
    common = [s for s in candidates[0] if all(s in c for c in candidates[1:])]
    return common[-1] if common else None


def _starts(graph: Graph, model: Model, value: str, source: dict[str, str], boundaries: set[str]) -> list[str]:
    if value in source and value not in boundaries and model.owners.get(value) is graph:
        return [value, source[value]]
    return [value]


def _leaves(model: Model, source: dict[str, str], value: str) -> bool:
    """True when a value inside a run is also read from outside, so that the run must end at it."""
    return not _is_end(model, source, value) and not _only_inside(model, source, value)


def _only_inside(model: Model, source: dict[str, str], value: str) -> bool:
    readers = model.consumers(value)
    return value not in model.outputs and all(source.get(r.outputs[0]) == source[value] for r in readers)


def _is_end(model: Model, source: dict[str, str], value: str) -> bool:
    """True when nobody in the run reads the value."""
    return all(source.get(r.outputs[0]) != source[value] for r in model.consumers(value))
