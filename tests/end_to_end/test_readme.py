# SPDX-License-Identifier: Apache-2.0
"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.end_to_end.conftest import Cli

ROOT = Path(__file__).parents[2]


def blocks(language: str) -> list[str]:
    """The code blocks of that language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)


def test_its_commands_do_what_they_say(cli: Cli, folder: Path) -> None:
    (block,) = [block for block in blocks("sh") if block.startswith("wia-quant")]
    for line in block.splitlines():
        done = cli(*shlex.split(line, comments=True)[1:])
        assert done.code == 0, f"{line}: {done.err}"
    assert (folder / "model.wia.onnx").is_file()


def test_its_python_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = blocks("python")
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    assert isinstance(names["outputs"], list)
    assert names["outputs"][0].shape == (1, 10)


def test_continuous_integration_calls_its_test_command() -> None:
    assert "./check\n" in blocks("sh")
    assert re.search(r"^exec .*\./check$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), re.M)


def test_every_file_it_links_to_is_there() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)#]+)\)", text)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
