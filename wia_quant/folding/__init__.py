# SPDX-License-Identifier: Apache-2.0
"""Simplify an exported float model without changing what it computes: the table of folds, in order."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

from wia_quant.folding.affine import fold_affine
from wia_quant.folding.batchnorm import batchnorm_to_conv
from wia_quant.folding.constants import fold_constants
from wia_quant.folding.forms import choose_forms
from wia_quant.folding.gemm import normalize_gemm
from wia_quant.folding.identity import remove_identities
from wia_quant.folding.pad import fold_pad
from wia_quant.folding.shapes import fold_shapes
from wia_quant.graph import Model

Fold = Callable[[Model, frozenset[str]], int]

#: Each takes the model and the names of nodes it must leave alone, edits in place, returns how many edits.
FOLDS: Final = MappingProxyType(
    {
        "constants": fold_constants,
        "identities": remove_identities,
        "shapes": fold_shapes,
        "pad": fold_pad,
        "gemm": normalize_gemm,
        "affine": fold_affine,
        "batchnorm": batchnorm_to_conv,
        "forms": choose_forms,
    }
)

_MAX_ROUNDS: Final = 16


def fold(model: Model, keep: frozenset[str] = frozenset()) -> dict[str, int]:
    """Apply every fold until none finds anything; the counts of edits by fold.

    Args:
        model: edited in place; names of graph inputs and outputs stay.
        keep: names of nodes that must stay as they are.
    """
    counts = dict.fromkeys(FOLDS, 0)
    for _ in range(_MAX_ROUNDS):
        model.drop_unused()
        model.infer()
        before = sum(counts.values())
        for name, function in FOLDS.items():
            edits = function(model, keep)
            counts[name] += edits
            if edits:
                model.drop_unused()
        if sum(counts.values()) == before:
            break
    model.sort()
    model.drop_unused()
    model.infer()
    return {name: n for name, n in counts.items() if n}
