# SPDX-License-Identifier: Apache-2.0
"""Where fake quantizers go: on which values of a traced graph, and which values share one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import fx

from wia_quant.torch.roles import MATRIX_PRODUCTS, Role


class Groups:
    """Nodes that share one fake quantizer (union-find; the first node in the graph stands for its group)."""

    def __init__(self) -> None:
        self._parent: dict[fx.Node, fx.Node] = {}

    def find(self, node: fx.Node) -> fx.Node:
        """The node that stands for ``node``'s group."""
        while (parent := self._parent.get(node, node)) is not node:
            node = parent
        return node

    def join(self, a: fx.Node, b: fx.Node) -> None:
        """Makes the groups of ``a`` and ``b`` one."""
        ra, rb = self.find(a), self.find(b)
        if ra is not rb:
            self._parent[rb] = ra


@dataclass(frozen=True)
class Placement:
    """What ``place`` found.

    Attributes:
        roles: node -> its role; float where no integers reach it.
        wanted: the nodes whose values are quantized, in the order of the graph.
        groups: which of them share one quantizer.
    """

    roles: Mapping[fx.Node, Role]
    wanted: tuple[fx.Node, ...]
    groups: Groups

    def members(self, node: fx.Node) -> list[fx.Node]:
        """The wanted nodes of its group."""
        return [n for n in self.wanted if self.groups.find(n) is self.groups.find(node)]

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """Who reads the quantized value: all, but float operators read the reals of a float source."""
        return [u for u in node.users if not (self.makes_reals(node) and self.roles[u] is Role.FLOAT)]

    def makes_reals(self, node: fx.Node) -> bool:
        """Whether its value is also read as it is."""
        return self.roles[node] in _FLOAT


def place(
    graph: fx.Graph,
    roles: Mapping[fx.Node, Role],
    inputs_of: Callable[[fx.Node], list[fx.Node]],
    absorbed: Collection[fx.Node] = (),
    halves: bool = False,
) -> Placement:
    """Decides for every node.

    Args:
        graph: traced.
        roles: of all its nodes.
        inputs_of: the inputs that hold reals.
        absorbed: products whose values only a normalization sees that is folded into them; they have none of their own.
        halves: float16 instead of integers: every value of an operator that computes in it, as its size counts.
    """
    if halves:
        roles = {node: Role.PRODUCT if role is Role.LOOKUP else role for node, role in roles.items()}
    else:
        roles = _settled(roles, inputs_of)
    groups, wanted = Groups(), set[fx.Node]()
    for node, role in roles.items():
        if role in _FLOAT or (role is Role.MOVER and not halves):
            continue
        inputs = inputs_of(node)
        if halves or not (role is Role.CLIP and _is_fused(node, roles)):
            wanted.update(grid_of(n, roles) for n in inputs)
        if role is Role.MOVER:
            continue
        if role is Role.CONCAT and not halves:
            for n in inputs:
                groups.join(grid_of(n, roles), node)
        if halves or not (node in absorbed or _is_bounded(node, roles) or _is_output(node, roles)):
            wanted.add(node)
    return Placement(roles, tuple(n for n in graph.nodes if n in wanted), groups)


#: The roles of what makes reals.
_FLOAT: Final = (Role.FLOAT, Role.LOOKUP)


def _settled(roles: Mapping[fx.Node, Role], inputs_of: Callable[[fx.Node], list[fx.Node]]) -> dict[fx.Node, Role]:
    """Float is also what no integers reach: quantizing for an elementwise operator alone costs more than it saves."""
    products = [n for n, role in roles.items() if role is Role.PRODUCT or is_matrix_product(n)]
    read_by_products = {n for product in products for n in inputs_of(product)}
    found = dict(roles)
    for node, role in roles.items():
        if role in (Role.FLOAT, Role.LOOKUP, Role.PRODUCT, Role.MOVER) or is_matrix_product(node):
            continue
        inputs = [n for n in inputs_of(node) if n.op != "get_attr"]
        if inputs and not any(n in read_by_products or found[n] not in _FLOAT for n in inputs):
            found[node] = Role.FLOAT
    return found


def is_matrix_product(node: fx.Node) -> bool:
    """Of two tensors that the graph makes, or of one and a parameter."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        target = str(target._schema.name).rpartition("::")[2]
    return node.op in ("call_function", "call_method") and target in MATRIX_PRODUCTS


def grid_of(node: fx.Node, roles: Mapping[fx.Node, Role]) -> fx.Node:
    """The node whose quantizer puts ``node``'s values on their grid: movers pass it on."""
    while roles[node] is Role.MOVER:
        node = node.all_input_nodes[0]
    return node


def _is_fused(node: fx.Node, roles: Mapping[fx.Node, Role]) -> bool:
    before = node.all_input_nodes[0]
    return roles[before] in (Role.PRODUCT, Role.ARITHMETIC) and len(before.users) == 1


def _is_bounded(node: fx.Node, roles: Mapping[fx.Node, Role]) -> bool:
    """Whether a clip's output, which is quantized, is all that is seen of it."""
    users = list(node.users)
    return len(users) == 1 and roles[users[0]] is Role.CLIP and _is_fused(users[0], roles)


def _is_output(node: fx.Node, roles: Mapping[fx.Node, Role]) -> bool:
    """Whether its value only leads to the model's outputs, by what is no integer operator."""
    return all(u.op == "output" or (roles[u] in (Role.MOVER, Role.FLOAT) and _is_output(u, roles)) for u in node.users)
