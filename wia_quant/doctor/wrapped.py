# SPDX-License-Identifier: Apache-2.0
"""uint8 pixels read as int8: everything lighter than the middle became darker than black."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from wia_quant.doctor.base import Case, Symptom

#: Taken back, the pictures must be so many times smoother.
_SMOOTHER: Final = 1.5


def find(case: Case) -> Iterator[Symptom]:
    """Pictures that become smooth when their lower half of values is put above the upper one."""
    domain = case.domain()
    if domain is None or domain.hi <= domain.lo:
        return
    middle, whole = (domain.lo + domain.hi) / 2, (domain.hi - domain.lo) * 256 / 255
    as_given, taken_back = [], []
    for batch in case.kept:
        x = batch[case.input_name].astype(np.float32)
        x = x if domain.channels == 1 else x.transpose(0, 3, 1, 2)
        as_given.append(float(np.abs(np.diff(x, axis=3)).mean()))
        taken_back.append(float(np.abs(np.diff(np.where(x < middle, x + whole, x), axis=3)).mean()))
    given_mean, back_mean = float(np.mean(as_given)), float(np.mean(taken_back))
    if given_mean > _SMOOTHER * back_mean:
        message = (
            f"light and dark pixels were wrapped around: taken back, they are {given_mean / back_mean:.1f}x smoother"
        )
        yield Symptom("wrapped", message, "read the pixels as uint8, not int8")
