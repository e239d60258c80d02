# SPDX-License-Identifier: Apache-2.0
"""What users build on changes only on purpose: names in Python, symbols in C, commands and their help."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import wia_quant
from tests.conftest import GoldenCheck
from wia_quant.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "kernels" / "include" / "wia" / "ai011.h"


def help_of(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    command = [sys.executable, "-m", "wia_quant", *arguments, "--help"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_the_names_of_the_package(golden: GoldenCheck) -> None:
    golden(ROOT / "tests" / "golden" / "python_names.txt", "".join(f"{n}\n" for n in sorted(wia_quant.__all__)))


def test_the_functions_of_the_c_header(golden: GoldenCheck) -> None:
    names = re.findall(r"WIA_API\b[^;]*?\b(wia_\w+)\s*\(", HEADER.read_text(encoding="utf-8"))
    golden(ROOT / "tests" / "golden" / "c_functions.txt", "".join(f"{n}\n" for n in sorted(names)))


def test_the_help_of_every_command_is_the_manual(golden: GoldenCheck) -> None:
    parts = ["# The command line\n\nMade from the help texts by `pytest --update-golden`.\n"]
    for title, arguments in [("wia-quant", ())] + [(f"wia-quant {name}", (name,)) for name in COMMANDS]:
        parts.append(f"\n## {title}\n\n```text\n{help_of(*arguments)}\n```\n")
    golden(ROOT / "docs" / "cli.md", "".join(parts))


def test_every_command_can_print_json() -> None:
    assert [name for name in COMMANDS if "--json" not in help_of(name)] == []
