# SPDX-License-Identifier: Apache-2.0
"""A report inside a notebook's cell: in a frame, so that its style and the notebook's do not meet."""

from __future__ import annotations

from html import escape
from importlib import import_module
from typing import Final

from wia_quant.errors import MissingExtraError
from wia_quant.reports.gather import Report
from wia_quant.reports.html import render_html

#: Of the frame, in pixels; the page scrolls inside it.
HEIGHT: Final = 900


def frame(report: Report) -> str:
    """The page as HTML that may stand inside any other."""
    page = escape(render_html(report))
    return f'<iframe srcdoc="{page}" style="width:100%;height:{HEIGHT}px;border:0" title="wia-quant report"></iframe>'


def show(report: Report) -> None:
    """Displays the frame.

    Raises:
        MissingExtraError: IPython is not installed, so this is no notebook.
    """
    try:
        display = import_module("IPython.display")  # only notebooks have it
    except ImportError as error:
        raise MissingExtraError("report.show() is for notebooks; elsewhere report.save('folder') writes it") from error
    display.display(display.HTML(frame(report)))
