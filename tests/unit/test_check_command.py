# SPDX-License-Identifier: Apache-2.0
"""The command ./check fails where it should: a skipped test, a file that is too long, a step that is unknown."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]

REPORT = """<testsuites><testsuite>
<testcase classname="tests.unit.test_a" name="test_one"/>
<testcase classname="tests.unit.test_a" name="test_two"><skipped message="torch is missing"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture(scope="module")
def check() -> ModuleType:
    loader = SourceFileLoader("check_command", str(ROOT / "check"))
    spec = spec_from_loader("check_command", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def judge(check: ModuleType, folder: Path, allowed: str) -> None:
    (folder / "report.xml").write_text(REPORT)
    (folder / "allowed.txt").write_text(allowed)
    check.check_skips(folder / "report.xml", folder / "allowed.txt")


def test_a_skipped_test_fails_the_check(check: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(check.Failed, match=r"tests\.unit\.test_a::test_two: torch is missing"):
        judge(check, tmp_path, "# nothing\n")


def test_a_skip_with_a_reason_on_the_list_passes(check: ModuleType, tmp_path: Path) -> None:
    judge(check, tmp_path, "tests.unit.test_a::test_two only where torch has a wheel\n")


def test_a_line_without_a_reason_allows_nothing(check: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(check.Failed, match="gives no reason"):
        judge(check, tmp_path, "tests.unit.test_a::test_two\n")


def test_an_unknown_step_is_a_usage_error() -> None:
    done = subprocess.run([sys.executable, ROOT / "check", "spelling"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no step spelling" in done.stderr


def test_every_step_says_what_it_does(check: ModuleType) -> None:
    assert all(step.__doc__ for step in check.STEPS.values())
    assert set(check.FAST) <= set(check.STEPS)
