# SPDX-License-Identifier: Apache-2.0
"""Writing results: nothing is overwritten unasked, and no file is ever half written."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wia_quant.errors import WiaError


class OutputError(WiaError):
    """A result that cannot be written: the file is there already, the folder is not, the disk is full."""


def check_writable(paths: Iterable[Path], *, force: bool = False) -> None:
    """Raise before the work starts if its results could not be written.

    Raises:
        OutputError: a path exists (and not ``force``), is a folder, or has no writable parent folder.
    """
    for path in paths:
        if path.is_dir():
            raise OutputError(f"{path} is a folder; give the name of a file")
        if not path.parent.is_dir():
            raise OutputError(f"folder {path.parent} does not exist; create it or choose another output")
        if not os.access(path.parent, os.W_OK):
            raise OutputError(f"folder {path.parent} cannot be written; choose another output with -o")
        if path.exists() and not force:
            raise OutputError(f"{path} exists; use --force (in Python force=True) to overwrite it, or -o")


@contextmanager
def replacing(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A temporary file beside ``path``, which becomes ``path`` when the block ends without an error.

    Raises:
        OutputError: as ``check_writable``, or the file could not be written.
    """
    check_writable([path], force=force)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        os.close(handle)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror}") from error
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
