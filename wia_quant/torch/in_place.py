# SPDX-License-Identifier: Apache-2.0
"""Operators that write into their input: who reads that input later reads their result."""

from __future__ import annotations

import inspect
import operator
from typing import Final

from torch import fx, nn

#: Python's ``x += y`` and the like.
_ASSIGNMENTS: Final = frozenset({operator.iadd, operator.isub, operator.imul, operator.itruediv})


def name_results(model: nn.Module, graph: fx.Graph) -> None:
    """After ``F.relu(y, inplace=True)`` a reader of ``y`` becomes a reader of what it returned.

    Running code the two are one tensor; in a graph with a quantizer between them they are not.
    """
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        written = next((a for a in node.args if isinstance(a, fx.Node)), None)
        if written is None or not _writes(model, node):
            continue
        for reader in [r for r in written.users if place[r] > place[node]]:
            reader.replace_input_with(written, node)


def _writes(model: nn.Module, node: fx.Node) -> bool:
    """True for relu_(), nn.ReLU(inplace=True), F.relu(x, inplace=True) and ``+=``."""
    if node.op == "call_module":
        return bool(getattr(model.get_submodule(str(node.target)), "inplace", False))
    if node.op == "call_method":
        return _says_so(str(node.target))
    if node.op != "call_function":
        return False
    if node.target in _ASSIGNMENTS or _says_so(getattr(node.target, "__name__", "")):
        return True
    try:
        given = inspect.signature(node.target).bind_partial(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a builtin that says nothing of its arguments
        return False
    return given.arguments.get("inplace") is True


def _says_so(name: str) -> bool:
    """torch's names of what works in place: ``relu_``."""
    return name.endswith("_") and not name.endswith("__")
