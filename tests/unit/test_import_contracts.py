# SPDX-License-Identifier: Apache-2.0
"""A forbidden import breaks the build, with file and line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()", "--no-cache"]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "wia_quant", tmp_path / "wia_quant", ignore=ignored)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("affine", "import rich", "Only the command line draws"),
        ("errors", "import wia_quant.affine", "Dependencies point down"),
        ("granularity", "import onnxruntime", "onnxruntime"),
        ("affine", "import torch", "torch only in its folder"),
    ],
    ids=["a terminal library", "an upward import", "a peer runtime", "a training framework"],
)
def test_a_forbidden_import_is_caught(tree: Path, module: str, line: str, contract: str) -> None:
    file = tree / "wia_quant" / f"{module}.py"
    file.write_text(file.read_text() + f"\n{line}\n")
    done = lint(tree)
    assert done.returncode == 1
    broken = [text for text in done.stdout.splitlines() if " BROKEN" in text]
    assert any(contract in text for text in broken), done.stdout
    assert f"wia_quant.{module} -> {line.split()[1]} (l." in done.stdout


def test_the_tree_keeps_its_contracts(tree: Path) -> None:
    done = lint(tree)
    assert done.returncode == 0, done.stdout
