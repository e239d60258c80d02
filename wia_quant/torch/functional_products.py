# SPDX-License-Identifier: Apache-2.0
"""``F.conv2d(x, self.weight, ...)`` becomes a module, as subclasses of Conv2d with their own padding write it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx, nn
from torch.nn import functional

_CONV: Final = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
_LINEAR: Final = ("input", "weight", "bias")

#: The function -> the module that computes it, and the names of its arguments.
FUNCTIONS: Final[Mapping[Callable[..., Any], tuple[type[nn.Module], tuple[str, ...]]]] = MappingProxyType(
    {
        functional.conv1d: (nn.Conv1d, _CONV),
        functional.conv2d: (nn.Conv2d, _CONV),
        functional.conv3d: (nn.Conv3d, _CONV),
        functional.linear: (nn.Linear, _LINEAR),
    }
)

#: The name of the new submodule, in the module that owns the weight.
PRODUCT: Final = "wia_product"


def modularize(model: nn.Module, graph: fx.Graph) -> None:
    """Every function of the table whose weight and bias are parameters of ``model`` becomes a call of a module.

    The parameters move to the new submodule: ``conv.weight`` is then ``conv.wia_product.weight``.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in FUNCTIONS:
            continue
        kind, names = FUNCTIONS[node.target]
        given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
        weight, bias = given.pop("weight", None), given.pop("bias", None)
        if not _is_own(weight) or not (bias is None or _is_own(bias)):
            continue
        owner, _, name = str(weight.target).rpartition(".")
        place = f"{owner}.{PRODUCT}".lstrip(".")
        if any(place == n for n, _ in model.named_modules()):
            continue  # a weight that is used twice stays as it is written
        x = given.pop("input")
        parameter = getattr(model.get_submodule(owner), name)
        if not isinstance(parameter, nn.Parameter):
            continue
        product = _module(kind, parameter, bias is not None, given)
        product.register_parameter("weight", parameter)
        if bias is not None:
            product.register_parameter("bias", model.get_parameter(str(bias.target)))
        product.train(model.training)
        model.get_submodule(owner).add_module(PRODUCT, product)
        with graph.inserting_before(node):
            call = graph.call_module(place, (x,))
        call.meta = dict(node.meta)
        node.replace_all_uses_with(call)
        graph.erase_node(node)
        for source in (weight, bias):
            if source is not None and not source.users:
                graph.erase_node(source)
                holder, _, attribute = str(source.target).rpartition(".")
                delattr(model.get_submodule(holder), attribute)


def _is_own(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "get_attr" and len(node.users) == 1


def _module(kind: type[nn.Module], weight: torch.Tensor, bias: bool, settings: Mapping[str, Any]) -> nn.Module:
    """An empty one of the right shape."""
    make: Any = kind
    if kind is nn.Linear:
        return make(weight.shape[1], weight.shape[0], bias=bias, device="meta")
    groups = settings.get("groups", 1)
    options = {k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()}
    return make(weight.shape[1] * groups, weight.shape[0], tuple(weight.shape[2:]), bias=bias, device="meta", **options)
