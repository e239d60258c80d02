# SPDX-License-Identifier: Apache-2.0
"""Expressions of parameters alone, such as ``self.w * self.g``: one constant of the file, without grids inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn

from wia_quant.torch.paths import get


def is_constant(node: fx.Node) -> bool:
    """Whether a parameter, a buffer, or computed of such by functions alone."""
    if node.op == "get_attr":
        return True
    inputs = node.all_input_nodes
    return node.op in ("call_function", "call_method") and bool(inputs) and all(is_constant(n) for n in inputs)


def value_of(model: nn.Module, node: fx.Node) -> Any:  # Any: a function may give a tuple
    """What a constant ``node`` is now."""
    if node.op == "get_attr":
        return get(model, str(node.target))
    args: Any = fx.node.map_arg(node.args, lambda n: value_of(model, n))
    kwargs: Any = fx.node.map_arg(node.kwargs, lambda n: value_of(model, n))
    target: Any = node.target
    with torch.no_grad():
        return getattr(args[0], target)(*args[1:], **kwargs) if node.op == "call_method" else target(*args, **kwargs)
