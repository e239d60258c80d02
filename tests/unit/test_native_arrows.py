# SPDX-License-Identifier: Apache-2.0
"""The C++ folders include only what is below them (docs/architecture.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "kernels"

#: Folder -> the folders whose headers it may include, besides its own.
MAY_INCLUDE = {
    "base": {"wia"},
    "ops": {"base"},
    "graph": {"ops", "base"},
    "onnx": {"graph", "base"},
    "runtime": {"onnx", "graph", "ops", "base"},
    "capi": {"runtime", "onnx", "graph", "ops", "base", "wia"},
    "python": {"capi", "runtime", "base", "wia"},
    "include": set(),
}
#: Tests may look at whatever they test with.
TESTS = re.compile(r"(^|_)(test|bench)\.cc$|^fuzz_")


def includes(file: Path) -> set[str]:
    """The first folders of what a file includes in quotes."""
    return set(re.findall(r'^\s*#\s*include "(\w+)/', file.read_text(encoding="utf-8"), re.MULTILINE))


def test_every_folder_is_in_the_table() -> None:
    folders = {path.parent.relative_to(KERNELS).parts[0] for path in KERNELS.rglob("*.h")}
    assert folders <= MAY_INCLUDE.keys()


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_a_folder_includes_only_what_is_below_it(folder: str) -> None:
    files = [path for path in (KERNELS / folder).rglob("*") if path.suffix in (".cc", ".h", ".inc")]
    allowed = MAY_INCLUDE[folder] | {folder}
    wrong = {
        f"{file.relative_to(KERNELS)} includes {name}/"
        for file in files
        if not TESTS.search(file.name)
        for name in includes(file) - allowed
    }
    assert wrong == set()


def test_an_upward_include_would_be_seen(tmp_path: Path) -> None:
    file = tmp_path / "x.cc"
    file.write_text('#include <vector>\n#include "runtime/kernel.h"\n')
    assert includes(file) == {"runtime"}
