# SPDX-License-Identifier: Apache-2.0
"""Every node has a name, and no two share one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onnx import ModelProto

from wia_quant.qdq import ModelView, view_model
from wia_quant.rules.base import Place, Rule, Severity, at


def find(model: ModelView) -> Iterator[Place]:
    """Nodes that a rule of exclusion or a report could not point at."""
    count = Counter(node.name for _, node in model.nodes())
    for view, node in model.nodes():
        if not node.name:
            yield at(view, node, "the node has no name", "name it", fixable=True)
        elif count[node.name] > 1:
            yield at(view, node, f"{count[node.name]} nodes have this name", "make it unique", fixable=True)


def fix(model: ModelProto) -> int:
    """Names empty nodes ``<op_type>_<i>`` and numbers repeated names; nothing refers to node names."""
    taken: set[str] = set()
    changed = 0
    nodes = [node for _, node in view_model(model).nodes()]
    taken.update(node.name for node in nodes)
    seen: set[str] = set()
    for i, node in enumerate(nodes):
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        stem, n = node.name or f"{node.op_type}_{i}", 0
        while (name := stem if n == 0 and stem not in taken else f"{stem}_{n}") in taken:
            n += 1
        node.name = name
        taken.add(name)
        seen.add(name)
        changed += 1
    return changed


RULE = Rule("every node has a unique name", Severity.NOTE, find, fix)
