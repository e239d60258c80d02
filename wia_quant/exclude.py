# SPDX-License-Identifier: Apache-2.0
"""Rules that keep nodes float: ``NAME``, ``regex:PATTERN``, ``type:OP``, ``between:A..B``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping

from wia_quant.errors import PolicyError
from wia_quant.graph import Model, Node


def resolve(model: Model, rules: Iterable[str]) -> dict[str, str]:
    """The names of the nodes that ``rules`` match, each with the rule that matched first.

    ``between:A..B`` matches A, B and every node on a path from A to B.

    Raises:
        PolicyError: a rule cannot be read, or matches no node; near names are suggested.
    """
    nodes = {node.name: node for _, node in model.nodes()}
    excluded: dict[str, str] = {}
    for rule in rules:
        matched = _match(model, rule, nodes)
        if not matched:
            raise PolicyError(f"exclusion {rule!r} matches no node{_suggestion(rule, nodes)}")
        for name in matched:
            excluded.setdefault(name, rule)
    return excluded


def _match(model: Model, rule: str, nodes: Mapping[str, Node]) -> list[str]:
    if rule.startswith("regex:"):
        try:
            pattern = re.compile(rule.removeprefix("regex:"))
        except re.error as error:
            raise PolicyError(f"exclusion {rule!r}: not a regular expression ({error})") from None
        return [name for name in nodes if pattern.search(name)]
    if rule.startswith("type:"):
        op_type = rule.removeprefix("type:")
        return [name for name, node in nodes.items() if node.op_type == op_type]
    if rule.startswith("between:"):
        return _between(model, rule, nodes)
    return [rule] if rule in nodes else []


def _between(model: Model, rule: str, nodes: Mapping[str, Node]) -> list[str]:
    ends = rule.removeprefix("between:").split("..")
    if len(ends) != 2 or not all(ends):
        raise PolicyError(f"exclusion {rule!r}: write between:FIRST..LAST with two node names")
    for end in ends:
        if end not in nodes:
            raise PolicyError(f"exclusion {rule!r}: no node {end!r}{_suggestion(end, nodes)}")
    down = _reach(nodes[ends[0]], lambda n: [r for o in n.outputs if o for r in model.consumers(o)])
    up = _reach(nodes[ends[1]], lambda n: [model.producers[i] for i in n.inputs if i in model.producers])
    if ends[1] not in down:
        raise PolicyError(f"exclusion {rule!r}: no path leads from {ends[0]!r} to {ends[1]!r}")
    return [name for name in nodes if name in down and name in up]


def _reach(start: Node, step: Callable[[Node], list[Node]]) -> set[str]:
    seen, stack = {start.name}, [start]
    while stack:
        for node in step(stack.pop()):
            if node.name not in seen:
                seen.add(node.name)
                stack.append(node)
    return seen


def _suggestion(rule: str, nodes: Mapping[str, Node]) -> str:
    if rule.startswith("type:"):
        types = sorted({node.op_type for node in nodes.values()})
        return "; the model has " + ", ".join(types)
    wanted = rule.removeprefix("regex:")
    near = difflib.get_close_matches(wanted, nodes, n=3, cutoff=0.5)
    near = near or [name for name in nodes if wanted.lower() in name.lower()][:3]
    return "; did you mean " + " or ".join(repr(n) for n in near) + "?" if near else "; `--plan` lists the node names"
