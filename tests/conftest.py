# SPDX-License-Identifier: Apache-2.0
"""What every test may use: golden files, made anew by ``pytest --update-golden``."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

GoldenCheck = Callable[[Path, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write golden files instead of comparing with them")


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts a command in the background lets it ignore SIGINT, and so would every child: tests of Ctrl-C
    # must work there too.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> GoldenCheck:
    """Compares a text with a file; with --update-golden writes the file."""
    update = request.config.getoption("--update-golden")

    def check(path: Path, text: str) -> None:
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.is_file(), f"{path} is missing; run pytest --update-golden and look at what it wrote"
        assert path.read_text(encoding="utf-8") == text, f"{path} differs; if that is meant: pytest --update-golden"

    return check
