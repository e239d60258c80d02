# SPDX-License-Identifier: Apache-2.0
"""Image classification: top-1, top-5, and which classes are taken for which. Target: the class index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from wia_quant.errors import DataError
from wia_quant.evaluators.base import Sample, Scored, only_output
from wia_quant.evaluators.metric import Metric, proportion

#: The confusion is listed as its most frequent pairs: a matrix of 1,000 classes is no picture.
MOST_CONFUSED = 50


class Classification:
    """Scores the first output [classes]; a tie counts for the lower index, as numpy's argmax."""

    def __init__(self) -> None:
        self._n, self._right1, self._right5, self._classes = 0, 0, 0, 0
        self._confused: Counter[tuple[int, int]] = Counter()

    def score(self, sample: Sample) -> Scored:
        logits = np.asarray(only_output(sample), dtype=np.float64).reshape(-1)
        target = _class_index(sample, logits.size)
        # Stable: among equal scores the lower index comes first.
        order = np.argsort(-logits, kind="stable")[:5]
        top1, top5 = bool(order[0] == target), bool(target in order)
        kept = {"target": target, "predicted": int(order[0]), "classes": logits.size}
        return Scored({"top1": float(top1), "top5": float(top5)}, str(int(order[0])), kept)

    def add(self, scored: Scored) -> None:
        self._n += 1
        self._right1 += bool(scored.scores["top1"])
        self._right5 += bool(scored.scores["top5"])
        self._classes = max(self._classes, scored.kept["classes"])
        if not scored.scores["top1"]:
            self._confused[scored.kept["target"], scored.kept["predicted"]] += 1

    def metrics(self) -> tuple[Metric, ...]:
        top1 = proportion("top1", self._right1, self._n)
        return (top1, proportion("top5", self._right5, self._n)) if self._classes > 5 else (top1,)

    def details(self) -> Mapping[str, object]:
        pairs = sorted(self._confused.items(), key=lambda item: (-item[1], item[0]))[:MOST_CONFUSED]
        return {"confusion": [{"target": t, "predicted": p, "count": c} for (t, p), c in pairs]}


def _class_index(sample: Sample, n_classes: int) -> int:
    if not isinstance(sample.target, int | np.integer) or not 0 <= int(sample.target) < n_classes:
        raise DataError(
            f"sample '{sample.name}': label {sample.target!r} is not a class index from 0 to {n_classes - 1};"
            " check --labels"
        )
    return int(sample.target)
