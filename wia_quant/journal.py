# SPDX-License-Identifier: Apache-2.0
"""What an interrupted evaluation had measured: one JSON line a batch, behind a line that says of which run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from wia_quant.errors import UsageError
from wia_quant.evaluators.base import Scored
from wia_quant.files import OutputError

_KIND: Final = "wia-quant/evaluation-journal"


@dataclass(frozen=True)
class Entry:
    """One batch.

    Attributes:
        digest: of the data up to and with this batch.
        names: of the samples.
        scored: what became of each.
        ms: milliseconds that the model took for one sample.
    """

    digest: str
    names: tuple[str, ...]
    scored: tuple[Scored, ...]
    ms: float


class Journal:
    """Appends entries to a file, and has those that an earlier run of the same identity left."""

    def __init__(self, path: str | Path, identity: Mapping[str, Any]) -> None:
        """Opens ``path``, made when it is not there.

        Raises:
            UsageError: it is of another run.
            OutputError: it cannot be written.
        """
        self.path = Path(path)
        head = {"kind": _KIND} | dict(identity)
        self.entries = _read(self.path, head)
        try:
            # Written anew: the last line of a run that was killed may be cut off.
            self._file = self.path.open("w", encoding="utf-8")
            self._line(head)
            for entry in self.entries:
                self.append(entry)
        except OSError as error:
            raise OutputError(f"cannot write {path}: {error.strerror}") from error

    def append(self, entry: Entry) -> None:
        """Keeps one batch."""
        self._line(asdict(entry))

    def close(self, *, done: bool) -> None:
        """Closes the file; removes it when the evaluation is done."""
        self._file.close()
        if done:
            self.path.unlink(missing_ok=True)

    def _line(self, value: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(value) + "\n")
        self._file.flush()


def _read(path: Path, head: Mapping[str, Any]) -> Sequence[Entry]:
    if not path.exists():
        return ()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise OutputError(f"cannot read {path}: {error}") from error
    parsed = list(_whole(lines))
    if not parsed or parsed[0] != json.loads(json.dumps(head)):
        raise UsageError(f"{path} is of an interrupted evaluation of another kind; remove it or choose another output")
    try:
        return tuple(
            Entry(e["digest"], tuple(e["names"]), tuple(Scored(**s) for s in e["scored"]), e["ms"]) for e in parsed[1:]
        )
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} is no journal of an evaluation; remove it or choose another output") from error


def _whole(lines: Sequence[str]) -> Sequence[Any]:
    """The parsed lines up to the first that was cut off."""
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError):
            break
    return found
