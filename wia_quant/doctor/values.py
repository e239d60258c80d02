# SPDX-License-Identifier: Apache-2.0
"""Values that cannot be meant: NaN, infinity, constant samples."""

from __future__ import annotations

import math
from collections.abc import Iterator

from wia_quant.doctor.base import Case, Symptom


def find(case: Case) -> Iterator[Symptom]:
    """Samples that are not finite, and samples whose every value is the same."""
    broken = [n.source for n in case.notes if not (math.isfinite(n.lo) and math.isfinite(n.hi))]
    if broken:
        yield Symptom("values", f"{len(broken)} samples hold NaN or infinity, first {broken[0]}", "repair or drop them")
    flat = [n.source for n in case.notes if n.lo == n.hi]
    if flat:
        message = f"{len(flat)} of {len(case.notes)} samples are one value throughout, first {flat[0]}"
        yield Symptom(
            "values", message, "drop them: they say nothing about ranges", sure=2 * len(flat) > len(case.notes)
        )
