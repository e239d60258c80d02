# SPDX-License-Identifier: Apache-2.0
"""No command writes over what it reads, whatever --force says."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from typer.core import TyperCommand

from wia_quant.errors import UsageError

#: The parameters that name what a command writes; every other text that is a path names something it reads.
WRITTEN: Final = frozenset({"out", "fix", "junit", "markdown"})


class Command(TyperCommand):
    """A command that compares the paths it was given before it runs."""

    def invoke(self, ctx: Any) -> Any:  # Any: click's context, of which typer may carry a copy
        refuse_overwriting(ctx.params)
        return super().invoke(ctx)


def refuse_overwriting(parameters: Mapping[str, object]) -> None:
    """Raise UsageError when a path to write is, or lies as a file in, one of those to read, or is no file."""
    read = [found for name, value in parameters.items() if name not in WRITTEN for found in _existing(value)]
    for name in sorted(WRITTEN & parameters.keys()):
        for out in _existing(parameters[name]):
            if out.is_dir():
                continue
            if not out.is_file():
                raise UsageError(f"{out} is no ordinary file; choose another name")
            if any(source == out or (source in out.parents and source.is_dir()) for source in read):
                raise UsageError(f"{out} is what this command reads; choose another name")


def _existing(value: object) -> list[Path]:
    values = value if isinstance(value, (list, tuple)) else [value]
    found = []
    for one in values:
        if isinstance(one, (str, Path)) and str(one):
            try:
                path = Path(one)
                if path.exists():
                    found.append(path.resolve())
            except (OSError, RuntimeError, ValueError):  # too long for a name, a loop of links, a null character
                continue
    return found
