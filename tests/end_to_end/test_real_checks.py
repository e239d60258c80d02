# SPDX-License-Identifier: Apache-2.0
"""check and doctor on real models: nothing is found that is not so, and wrong data is caught."""

from __future__ import annotations

import pytest

from benchmarks import check, doctor
from benchmarks.models import TRAINED

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CASES = [c for c in doctor.CASES if c.subject.startswith("digits")]
CASES += [c for c in doctor.CASES if c.subject == "lite0" and c.name in ("BGR for RGB", "photographs and ImageNet's")]


@pytest.mark.parametrize("producer", check.TOOLS)
def test_every_finding_in_a_real_file_is_so(producer: str) -> None:
    row = check.measure(TRAINED["magika"], producer)
    assert row.not_proved == []
    assert row.mended_equal
    assert row.left_to_mend == 0
    if producer == "wia-quant":
        assert (row.errors, row.notes) == ({}, {})


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.subject}: {c.name}")
def test_data_is_judged_rightly(case: doctor.Case) -> None:
    row = doctor.measure(case)
    assert row.ok, row.said
