# SPDX-License-Identifier: Apache-2.0
"""Is this the data that the model was trained for? One file a check, and the table of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from wia_quant.data import Batch
from wia_quant.doctor import amount, confidence, halves, layout, values, wrapped
from wia_quant.doctor.base import Case, Check, LazyRun, Notebook, Symptom, open_case

__all__ = ["CHECKS", "Case", "LazyRun", "Notebook", "Symptom", "diagnose", "examine"]

CHECKS: Mapping[str, Check] = MappingProxyType(
    {
        "values": values.find,
        "amount": amount.find,
        "layout": layout.find,
        "wrapped": wrapped.find,
        "confidence": confidence.find,
        "halves": halves.find,
    }
)


def examine(model: bytes, batches: Iterable[Batch]) -> list[Symptom]:
    """Everything that is suspicious about the data, the surest first.

    Args:
        model: the float model.
        batches: as ``open_data`` gives them; read once.

    Raises:
        DataError: there is no sample, or the model cannot run on one.
    """
    return diagnose(open_case(model, batches))


def diagnose(case: Case) -> list[Symptom]:
    """What every check says of a case, the surest first; nothing else where the values alone are surely wrong."""
    found = list(values.find(case))
    if not any(s.sure for s in found):
        found += [s for name, check in CHECKS.items() if name != "values" for s in check(case)]
    return sorted(found, key=lambda s: not s.sure)
