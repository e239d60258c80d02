# SPDX-License-Identifier: Apache-2.0
"""Which submodule it is that torch cannot export: each is tried alone, with the inputs that it had."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

#: Exporting is slow: more submodules than this are not tried.
MOST: Final = 40


def find_culprit(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], export: Callable[..., Any]
) -> tuple[str, Exception] | None:
    """The innermost submodule that cannot be exported alone, and why; None where all that were tried can be."""
    calls: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
    probe = copy.deepcopy(model)
    for name, module in probe.named_modules():
        if name:

            def remember(m: nn.Module, a: tuple[Any, ...], k: dict[str, Any], name: str = name) -> None:
                calls.setdefault(name, (a, k))

            module.register_forward_pre_hook(remember, with_kwargs=True)
    try:
        with torch.no_grad():
            probe(*args, **kwargs)
    except Exception:  # it does not even run: the caller's own error says more
        return None
    innermost_first = sorted(calls, key=lambda name: -name.count("."))
    for name in innermost_first[:MOST]:
        try:
            export(model.get_submodule(name), *calls[name])
        except Exception as error:  # the exporter raises many kinds
            return name, error
    return None


def reason_of(error: BaseException) -> str:
    """The innermost message, where the operator or the line of the user's code stands."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
