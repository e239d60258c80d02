# SPDX-License-Identifier: Apache-2.0
"""Every node test of onnx whose operators libwia has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wia_quant.errors import WiaError

sys.path.insert(0, str(Path(__file__).parent))
import node_cases
from node_cases import all_cases, eligible, reason_not_run, run_case

MUST_PASS = [name for name in eligible() if reason_not_run(name) is None]
REFUSED = [name for name in eligible() if reason_not_run(name) is not None]


@pytest.mark.parametrize("name", MUST_PASS)
def test_gives_what_onnx_says(name: str) -> None:
    run_case(all_cases()[name])


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_in_one_clear_line(name: str) -> None:
    with pytest.raises(WiaError) as refusal:
        run_case(all_cases()[name])
    text = str(refusal.value)
    assert text
    assert "\n" not in text


@pytest.mark.parametrize("pattern", [pattern for pattern, _ in node_cases.UNSUPPORTED])
def test_no_reason_outlives_its_cases(pattern: str) -> None:
    matched = [name for name in REFUSED if node_cases.re.fullmatch(pattern, name)]
    assert matched, f"no eligible case is called {pattern}: take the line out"


def test_the_document_names_every_operator() -> None:
    text = node_cases.DOCUMENT.read_text(encoding="utf-8")
    missing = [op for domain, op in node_cases._native.operators() if domain == "" and f"| {op} |" not in text]
    assert not missing, "run python tests/runtime/node_cases.py --write"
    passed = len(MUST_PASS)
    print(f"node tests: {passed} passed, {len(eligible())} eligible, {len(all_cases())} in all")
    other_version = f"of onnx {node_cases.onnx.__version__}," not in text
    assert other_version or f"{passed} of those pass" in text, "run python tests/runtime/node_cases.py --write"
