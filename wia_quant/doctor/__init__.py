# SPDX-License-Identifier: Apache-2.0
"""Is this the data that the model was trained for? One file a check, and the table of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from wia_quant.doctor import amount, confidence, halves, layout, values
from wia_quant.doctor.base import Check, Symptom, open_case

__all__ = ["CHECKS", "Symptom", "examine"]

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "values": values.find,
        "amount": amount.find,
        "layout": layout.find,
        "confidence": confidence.find,
        "halves": halves.find,
    }
)


def examine(model: bytes, batches: Iterable[Any], preprocess: dict[str, Any] | None = None) -> list[Symptom]:
    """Everything that is suspicious about the data, the surest first.

    Args:
        model: the float model.
        batches: as ``open_data`` gives them.
        preprocess: the specification in force, for messages.

    Raises:
        DataError: the model cannot run on the data at all.
    """
    case = open_case(model, batches, preprocess)
    found = list(values.find(case))
    if not any(s.sure for s in found):
        found += [s for name, check in CHECKS.items() if name != "values" for s in check(case)]
    return sorted(found, key=lambda s: not s.sure)
