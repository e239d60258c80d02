# SPDX-License-Identifier: Apache-2.0
"""Puts a report into a folder: report.html, report.json, report.md."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from wia_quant.files import OutputError, check_writable, replacing
from wia_quant.reports.gather import Report
from wia_quant.reports.html import render_html
from wia_quant.reports.summary import render_markdown

FILES: Final = ("report.html", "report.json", "report.md")


def check_folder(folder: Path, *, force: bool = False) -> None:
    """Raises OutputError when the folder's files could not be written, or the folder not be made; makes nothing."""
    if folder.is_dir():
        check_writable([folder / name for name in FILES], force=force)
        return
    if folder.exists():
        raise OutputError(f"{folder} is a file; give the name of a folder")
    above = next(p for p in folder.absolute().parents if p.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise OutputError(f"cannot make folder {folder}: {above} cannot be written")


def write_report(report: Report, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
    """The three files, each at once or not at all."""
    folder = Path(folder)
    check_folder(folder, force=force)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"cannot make folder {folder}: {error.strerror}") from error
    texts = (render_html(report), report.to_json(), render_markdown(report))
    paths = tuple(folder / name for name in FILES)
    for path, text in zip(paths, texts, strict=True):
        with replacing(path, force=force) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return paths
