# SPDX-License-Identifier: Apache-2.0
"""What is at a dotted path in a module: submodules, parameters, buffers, other attributes."""

from __future__ import annotations

from typing import Any

from torch import nn


def holder_of(model: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The submodule that has it, and its name there."""
    owner, _, name = path.rpartition(".")
    return model.get_submodule(owner), name


def get(model: nn.Module, path: str) -> Any:
    """What is at ``path``."""
    return getattr(*holder_of(model, path))


def put(model: nn.Module, path: str, module: nn.Module) -> None:
    """Makes ``module`` the submodule at ``path``."""
    setattr(*holder_of(model, path), module)
