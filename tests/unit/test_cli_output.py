# SPDX-License-Identifier: Apache-2.0
"""Results go to stdout, everything else to stderr; no name is cut; progress estimates."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from wia_quant.cli import output


def test_json_has_numpy_values_and_paths_as_plain_ones(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_json({"scale": np.float32(0.5), "shape": np.array([1, 2]), "path": Path("a/b"), "text": "żółw"})
    assert json.loads(capsys.readouterr().out) == {"scale": 0.5, "shape": [1, 2], "path": "a/b", "text": "żółw"}


def test_json_never_holds_not_a_number() -> None:
    with pytest.raises(ValueError, match="JSON"):
        output.show_json({"scale": float("nan")})


def test_a_long_name_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    name = "model/" + "block/" * 60 + "conv"
    output.show_table("", ("tensor", "why"), [(name, "because " * 30)])
    printed = capsys.readouterr().out
    assert name in "".join(line.split(" ")[0] for line in printed.splitlines()[1:])


def test_brackets_in_a_name_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_table("", ("tensor",), [("x[red]",)])
    output.show_line("[bold]y")
    printed = capsys.readouterr().out
    assert "x[red]" in printed
    assert "[bold]y" in printed


def test_an_empty_table_is_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_table("Nothing", ("a",), [])
    assert capsys.readouterr().out == ""


def test_an_error_is_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    output.error("Conv 'a[0]': scale is 0; " + "calibrate again " * 20)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: Conv 'a[0]'")
    assert printed.err.count("\n") == 1


def test_progress_without_a_terminal_is_a_line_a_phase_and_one_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 1.0, 2.0, 12.0, 13.0])
    monkeypatch.setattr(output.time, "monotonic", lambda: next(clock))
    with output.progress() as progress:
        progress(0, 100, "calibrating")
        progress(5, 100, "calibrating")
        progress(0, 100, "reading data")
        progress(50, 100, "calibrating")
        progress(99, 100, "reading data")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "calibrating: 100 to do",
        "reading data: 100 to do",
        "calibrating: 50 of 100, about 12 s left",
    ]


def test_progress_on_a_terminal_is_drawn_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with output.progress() as progress:
        progress(1, 4, "calibrating")
        progress(4, 4, "calibrating")
    assert "calibrating" in screen.getvalue()
    assert "4/4" in screen.getvalue()
