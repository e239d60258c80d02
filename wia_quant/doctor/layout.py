# SPDX-License-Identifier: Apache-2.0
"""Pictures whose axes were mixed up: neighbouring pixels of a picture are alike, neighbouring channels are not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from wia_quant.doctor.base import Case, Symptom

#: A reading of the data as the other layout must be so many times smoother.
_SMOOTHER: Final = 2.0


def find(case: Case) -> Iterator[Symptom]:
    """[N, 3, H, W] that holds the bytes of [N, H, W, 3], or the other way: reshaped where it had to be transposed."""
    axis = case.channel_axis()
    if axis is None:
        return
    as_given, other = [], []
    for batch in case.kept:
        x = batch[case.input_name].astype(np.float32)
        n, shape = x.shape[0], x.shape
        h, w = (shape[2], shape[3]) if axis == 1 else (shape[1], shape[2])
        given = x if axis == 1 else x.transpose(0, 3, 1, 2)
        read = x.reshape(n, h, w, 3).transpose(0, 3, 1, 2) if axis == 1 else x.reshape(n, 3, h, w)
        as_given.append(_roughness(given))
        other.append(_roughness(read))
    given_mean, other_mean = float(np.mean(as_given)), float(np.mean(other))
    if given_mean > _SMOOTHER * other_mean:
        names = ("NCHW", "NHWC") if axis == 1 else ("NHWC", "NCHW")
        message = (
            f"as {names[0]} the pictures are noise, as {names[1]} they are smooth ({given_mean / other_mean:.1f}x)"
        )
        yield Symptom("layout", message, "transpose the array instead of reshaping it")


def _roughness(x: npt.NDArray[np.float32]) -> float:
    """Mean difference of horizontal neighbours over the mean distance from the mean."""
    spread = float(np.abs(x - x.mean()).mean())
    return float(np.abs(np.diff(x, axis=3)).mean()) / spread if spread else 0.0
