# SPDX-License-Identifier: Apache-2.0
"""What a person or a script sees: tables or JSON on stdout, progress and errors on stderr."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

ProgressCallback = Callable[[int, int | None, str], None]

#: Columns of a table that goes to a file or a pipe: wide enough that no name is cut.
PIPE_WIDTH: Final = 160
#: Seconds between two progress lines where there is no terminal to draw on.
LINE_EVERY_S: Final = 10.0


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr, made anew so that redirection is always seen."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else PIPE_WIDTH, highlight=False, soft_wrap=True)


def say(line: str) -> None:
    """One line to the person at the terminal; to stderr, so that results stay clean."""
    console(stderr=True).print(Text(line))


def say_data(data: Mapping[str, Any]) -> None:
    """What was skipped or guessed while the data was read."""
    for file, reason in data.get("skipped", {}).items():
        say(f"skipped: {file}: {reason}")
    for note in data.get("notes", ()):
        say(f"note: {note}")


def error(message: str) -> None:
    """The one way an error is shown."""
    say(f"error: {message}")


def show_json(result: Mapping[str, Any]) -> None:
    """``result`` as one JSON object on stdout."""
    sys.stdout.write(json.dumps(result, indent=2, ensure_ascii=False, allow_nan=False, default=_plain) + "\n")


def show_line(line: str = "") -> None:
    """One line of a result on stdout."""
    console().print(Text(line))


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table on stdout; columns of numbers are right-aligned. Nothing is printed where there are no rows."""
    body = [[_cell(value) for value in row] for row in rows]
    if not body:
        return
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for index, name in enumerate(columns):
        numeric = all(_is_number(row[index]) for row in body)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in body:
        table.add_row(*(Text(cell) for cell in row))
    target = console()
    if target.is_terminal:
        target.print(table, soft_wrap=False)
        return
    with target.capture() as drawn:
        target.print(table, soft_wrap=False)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in drawn.get().splitlines()))


@contextmanager
def progress() -> Iterator[ProgressCallback]:
    """A callback ``(done, total, what)`` drawn on stderr: a bar with the time left, or lines now and then."""
    target = console(stderr=True)
    if not target.is_terminal:
        yield _Lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=target, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def update(done: int, total: int | None, what: str) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield update


class _Lines:
    """Progress where there is no terminal: the start of each phase, then a line every ten seconds."""

    def __init__(self) -> None:
        self._began: dict[str, float] = {}
        self._last = 0.0

    def __call__(self, done: int, total: int | None, what: str) -> None:
        now = time.monotonic()
        if what not in self._began:
            self._began[what] = self._last = now
            say(what if total is None else f"{what}: {total} to do")
        elif now - self._last >= LINE_EVERY_S:
            self._last = now
            left = ""
            if total and done:
                left = f" of {total}, about {(now - self._began[what]) * (total - done) / done:.0f} s left"
            say(f"{what}: {done}{left}")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def _is_number(cell: str) -> bool:
    return bool(cell) and cell[0] in "-0123456789" and cell.replace("-", "").replace(".", "").replace("%", "").isdigit()


def _plain(value: object) -> object:
    """numpy scalars and arrays, paths and mappings as JSON has them."""
    for attribute in ("tolist", "as_posix"):
        if hasattr(value, attribute):
            return getattr(value, attribute)()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
