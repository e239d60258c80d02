# SPDX-License-Identifier: Apache-2.0
"""From what a user has to what the quantizer works on: read, named, excluded, raised, folded."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx

from wia_quant import exclude as exclusion
from wia_quant.folding import fold
from wia_quant.graph import Model, load, source_sha256
from wia_quant.opset import raise_opset
from wia_quant.windows import check_windows

Source = str | Path | bytes | onnx.ModelProto


@dataclass(frozen=True)
class Prepared:
    """A folded float model that computes what its source does.

    Attributes:
        model: folded, types inferred.
        excluded: node -> the rule that keeps it float.
        sha256: digest of the source.
        folds: fold -> number of edits.
    """

    model: Model
    excluded: dict[str, str]
    sha256: str
    folds: dict[str, int]


def prepare(source: Source, *, opset: int, exclude: Iterable[str] = (), keep: frozenset[str] = frozenset()) -> Prepared:
    """Load and simplify; ``exclude`` is matched against the nodes of the source, which are then left as they are.

    So are the nodes named in ``keep``; they need not stay float.

    The same source gives the same names every time.

    Raises:
        ModelError: the source cannot be read, converted or understood, or a node's attributes fit no input.
        PolicyError: a rule matches nothing.
    """
    model = load(source)
    check_windows(model)
    excluded = exclusion.resolve(model, exclude)
    model = raise_opset(model, opset)
    folds = fold(model, frozenset(excluded) | keep)
    check_windows(model)  # once more, with the shapes and constants that are known now
    return Prepared(model, excluded, source_sha256(source), folds)
