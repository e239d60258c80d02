# SPDX-License-Identifier: Apache-2.0
"""Values that cannot be meant: NaN, infinity, constant samples, pictures scaled twice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from wia_quant.doctor.base import Case, Symptom

#: Deviation over mean of pictures; of ordinary ones it is about 0.5, of foggy ones 0.1.
_LEAST_CONTRAST: Final = 0.03


def find(case: Case) -> Iterator[Symptom]:
    """Samples that are not finite or of one value; pictures whose values leave their place by a hair only."""
    broken = [n.source for n in case.notes if not (math.isfinite(n.lo) and math.isfinite(n.hi))]
    if broken:
        yield Symptom("values", f"{len(broken)} samples hold NaN or infinity, first {broken[0]}", "repair or drop them")
    flat = [n.source for n in case.notes if n.lo == n.hi]
    if flat:
        message = f"{len(flat)} of {len(case.notes)} samples are one value throughout, first {flat[0]}"
        yield Symptom(
            "values", message, "drop them: they say nothing about ranges", sure=2 * len(flat) > len(case.notes)
        )
    domain = case.domain()
    if broken or 2 * len(flat) > len(case.notes) or domain is None:
        return
    contrast = float(np.median([n.std / max(abs(n.mean), 1e-12) for n in case.notes if n.lo != n.hi]))
    if contrast < _LEAST_CONTRAST or domain.is_tiny:
        message = f"the pictures' values lie between {domain.lo:.4g} and {domain.hi:.4g}, all but one another"
        yield Symptom("values", message, "they were scaled twice: leave one scaling out")
