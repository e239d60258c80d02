# SPDX-License-Identifier: Apache-2.0
"""The judge of the wheel finds what is missing and what does not belong."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

GOOD = (
    "wia_quant/py.typed",
    "wia_quant/_native.pyi",
    "wia_quant/_native.abi3.so",
    "wia_quant/targets/schema.json",
    "wia_quant/targets/wia-cpu.json",
    "wia_quant/targets/example-npu.json",
    "wia_quant/cli/app.py",
    "wia_quant-0.1.0.dist-info/METADATA",
)


@pytest.fixture(scope="module")
def judge() -> ModuleType:
    spec = spec_from_file_location("wheel_contents", Path(__file__).parents[1] / "wheel_contents.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_good_wheel_has_no_problem(judge: ModuleType) -> None:
    assert judge.problems_of_wheel(GOOD) == []


@pytest.mark.parametrize("name", GOOD[:5])
def test_a_missing_file_is_named(judge: ModuleType, name: str) -> None:
    assert len(judge.problems_of_wheel([n for n in GOOD if n != name])) == 1


@pytest.mark.parametrize("name", ["cli/app.py", "calibrators/minmax.py", "tests/tiny.py", "wia_quant/libwia.a"])
def test_a_stray_file_is_named(judge: ModuleType, name: str) -> None:
    assert len(judge.problems_of_wheel([*GOOD, name])) == 1


def test_an_empty_folder_is_no_success(judge: ModuleType, tmp_path: Path) -> None:
    assert judge.main(tmp_path) == 1
