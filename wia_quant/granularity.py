# SPDX-License-Identifier: Apache-2.0
"""How many scales a tensor has, and along what."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PerTensor:
    """One scale for all. x [8, 3, 32, 32] -> scale []."""


@dataclass(frozen=True)
class PerAxis:
    """One scale for each index of ``axis``. w [64, 3, 7, 7], axis 0 -> scale [64]."""

    axis: int


@dataclass(frozen=True)
class PerBlock:
    """One scale for each run of ``size`` along ``axis``; the last may be shorter.

    w [768, 100], axis 1, size 32 -> scale [768, 4].
    """

    axis: int
    size: int


Granularity = PerTensor | PerAxis | PerBlock
