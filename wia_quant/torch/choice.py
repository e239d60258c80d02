# SPDX-License-Identifier: Apache-2.0
"""Which qconfig holds where: by ``qconfig`` attributes, as eager torch has it, or by a QConfigMapping, as FX has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn
from torch.ao.quantization import QConfig, QConfigMapping

from wia_quant.errors import UsageError


@dataclass(frozen=True)
class Choice:
    """A qconfig for every node; None where it stays float.

    Attributes:
        default: where nothing else is said.
        modules: path -> qconfig, for every submodule.
        functions: function, or name of a method -> qconfig.
    """

    default: QConfig
    modules: Mapping[str, QConfig | None]
    functions: Mapping[Callable[..., Any] | str, QConfig | None] = field(default_factory=dict)

    def of_module(self, path: str) -> QConfig | None:
        """Of a submodule, or of the nearest that holds it."""
        while path and path not in self.modules:
            path = path.rpartition(".")[0]
        return self.modules.get(path, self.default)

    def of_node(self, node: fx.Node) -> QConfig | None:
        """Of a call; inputs and parameters take the qconfig of their first reader."""
        if node.op == "call_module":
            return self.of_module(str(node.target))
        if node.op in ("placeholder", "get_attr"):
            reader = next((u for u in node.users if u.op != "output"), None)
            return self.default if reader is None else self.of_node(reader)
        if node.target in self.functions:
            return self.functions[node.target]
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        return self.of_module(stack[-1][0] if stack else "")


def by_attributes(model: nn.Module, default: QConfig, exclude: Iterable[str] = ()) -> Choice:
    """A submodule's ``qconfig`` attribute holds for all that it holds, unless one further in says otherwise.

    Raises:
        UsageError: a name of ``exclude`` is no submodule.
    """
    known = dict(model.named_modules())
    excluded = tuple(exclude)
    for name in excluded:
        if name not in known:
            near = ", ".join(n for n in known if name in n or n.endswith(name.split(".")[-1])) or "see named_modules()"
            raise UsageError(f"exclude '{name}': the model has no such submodule; {near}")
    chosen: dict[str, QConfig | None] = {"": default}
    for path, module in known.items():
        if not path:
            continue
        above = chosen[path.rpartition(".")[0]]
        chosen[path] = None if path in excluded or above is None else module.__dict__.get("qconfig", above)
    return Choice(default, chosen)


def by_mapping(model: nn.Module, mapping: QConfigMapping) -> Choice:
    """Torch's order: the name of the module or of one that holds it, a regular expression, its type, the global one.

    Raises:
        UsageError: no global qconfig, a name that is no submodule, or rules by type and order of calls.
    """
    default = mapping.global_qconfig
    if default is None:
        raise UsageError("the mapping has no global qconfig; start from get_default_qat_qconfig_mapping('wia')")
    if mapping.module_name_object_type_order_qconfigs:
        raise UsageError("set_module_name_object_type_order is not understood; name the modules with set_module_name")
    known = dict(model.named_modules())
    for name in mapping.module_name_qconfigs:
        if name not in known:
            raise UsageError(f"set_module_name('{name}'): the model has no such submodule")
    chosen = {path: _of(path, module, mapping) for path, module in known.items()}
    functions = {k: v for k, v in mapping.object_type_qconfigs.items() if not isinstance(k, type)}
    return Choice(default, chosen, functions)


def _of(path: str, module: nn.Module, mapping: QConfigMapping) -> QConfig | None:
    above = path
    while above:
        if above in mapping.module_name_qconfigs:
            return mapping.module_name_qconfigs[above]
        above = above.rpartition(".")[0]
    for pattern, qconfig in mapping.module_name_regex_qconfigs.items():
        if re.match(pattern, path):
            return qconfig
    return mapping.object_type_qconfigs.get(type(module), mapping.global_qconfig)
