# SPDX-License-Identifier: Apache-2.0
"""Agreement with the float model, without labels: top-1 agreement, SQNR, cosine, KL of every output."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from wia_quant.errors import DataError
from wia_quant.evaluators.base import Array, Sample, Scored
from wia_quant.evaluators.embedding import cosine
from wia_quant.evaluators.metric import Metric, mean, proportion

#: Two outputs that are equal to the bit have no noise; this stands for it, in dB.
SQNR_CEILING_DB = 200.0


class Agreement:
    """Compares each floating output with the reference's, sample by sample."""

    def __init__(self) -> None:
        self._by_output: dict[str, dict[str, list[float]]] = {}

    def score(self, sample: Sample) -> Scored:
        if sample.reference is None:
            raise DataError("agreement needs the float model to compare with; give --reference FLOAT")
        first = ""
        flat: dict[str, float] = {}
        for name, y in sample.outputs.items():
            scores, prediction = compare_outputs(y, sample.reference[name])
            first = first or prediction
            flat |= {f"{score}/{name}": value for score, value in scores.items()}
        return Scored(flat, first)

    def add(self, scored: Scored) -> None:
        for label, value in scored.scores.items():
            score, _, output = label.partition("/")
            self._by_output.setdefault(output, {}).setdefault(score, []).append(value)

    def metrics(self) -> tuple[Metric, ...]:
        found = []
        for output, scores in self._by_output.items():
            for score, values in scores.items():
                found.append(_summarise(score, f"{score}/{output}", values))
        return tuple(sorted(found, key=lambda m: list(_FORMS).index(m.name.split("/")[0])))

    def details(self) -> Mapping[str, object]:
        return {}


def compare_outputs(y: Array, reference: Array) -> tuple[dict[str, float], str]:
    """Scores of one output against the reference's, and the answer that ``y`` gives."""
    if y.shape != reference.shape:
        raise DataError(f"output shapes differ: {list(y.shape)} against the reference's {list(reference.shape)}")
    a, b = np.asarray(y, np.float64), np.asarray(reference, np.float64)
    rows_a, rows_b = a.reshape(-1, a.shape[-1] if a.ndim else 1), b.reshape(-1, b.shape[-1] if b.ndim else 1)
    scores = {"sqnr": sqnr_db(b, a), "cosine": cosine(a.reshape(-1), b.reshape(-1))}
    if rows_a.shape[-1] > 1 and a.size:
        best = rows_a.argmax(-1)
        same = best == rows_b.argmax(-1)
        scores = {"top1_agreement": float(same.mean())} | scores | {"kl": kl_divergence(rows_b, rows_a)}
        return scores, " ".join(map(str, best[:8]))
    return scores, f"{float(a.reshape(-1)[0]):.4g}" if a.size else ""


def sqnr_db(reference: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """Signal to quantization noise ratio, ``10 log10(sum(ref^2) / sum((ref - y)^2))``, at most 200 dB."""
    noise, signal = float(np.square(reference - y).sum()), float(np.square(reference).sum())
    if noise == 0.0:
        return SQNR_CEILING_DB
    return min(10 * math.log10(signal / noise), SQNR_CEILING_DB) if signal else -SQNR_CEILING_DB


def kl_divergence(reference: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> float:
    """Mean KL(reference || y) over rows [n, classes], in nats; rows that are no distribution pass a softmax."""
    p, q = (_as_log_probabilities(rows) for rows in (reference, y))
    return max(0.0, float((np.exp(p) * (p - q)).sum(axis=-1).mean()))


def _as_log_probabilities(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    if (rows >= 0).all() and np.allclose(rows.sum(-1), 1, atol=1e-3):
        return np.asarray(np.log(np.maximum(rows, 1e-30)), np.float64)
    shifted = rows - rows.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)), np.float64)


#: score -> (unit, higher is better, factor), the headline first.
_FORMS: Mapping[str, tuple[str, bool, float]] = {
    "top1_agreement": ("%", True, 100.0),
    "sqnr": ("dB", True, 1.0),
    "cosine": ("", True, 1.0),
    "kl": ("", False, 1.0),
}


def _summarise(score: str, name: str, values: list[float]) -> Metric:
    unit, higher, factor = _FORMS[score]
    if score == "top1_agreement" and all(v in (0.0, 1.0) for v in values):
        return proportion(name, int(sum(values)), len(values))
    return mean(name, values, unit=unit, higher_is_better=higher, scale=factor)
