# SPDX-License-Identifier: Apache-2.0
"""Did a model get worse? Two evaluations compared metric by metric and layer by layer, with a gate for CI."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from wia_quant.evaluation import Evaluation, EvaluationError
from wia_quant.evaluators.agreement import SQNR_CEILING_DB
from wia_quant.evaluators.metric import Metric

#: The fall of a layer's own SQNR, in dB, below which it is no suspect: what rounding one scale differently can do.
SUSPECT_DB: Final = 1.0
#: A plain --max-drop counts a metric without unit (a cosine, a KL) in hundredths.
_POINTS: Final = {"%": 1.0, "dB": 1.0, "": 100.0}


@dataclass(frozen=True)
class MetricChange:
    """One metric before and after.

    Attributes:
        drop: how much worse it is, in points (percent and dB as they are, others times 100); < 0 when better.
        allowed: the largest drop that passes.
    """

    name: str
    baseline: float
    current: float
    drop: float
    allowed: float
    unit: str

    @property
    def ok(self) -> bool:
        """True when the drop is allowed. A NaN on one side only never is."""
        return bool(self.drop <= self.allowed)


@dataclass(frozen=True)
class LayerChange:
    """One layer before and after; ``drop_db`` is how much its own SQNR fell."""

    node: str
    op_type: str
    baseline_db: float
    current_db: float
    drop_db: float


@dataclass(frozen=True)
class Regression:
    """The comparison. ``suspects`` are the layers most likely responsible, the likeliest first."""

    metrics: tuple[MetricChange, ...]
    suspects: tuple[LayerChange, ...]
    flipped: tuple[tuple[str, str, str], ...]
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """True when no metric dropped by more than it may."""
        return all(m.ok for m in self.metrics)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"ok": self.ok} | asdict(self)


def compare(
    baseline: Evaluation, current: Evaluation, *, max_drop: float = 0.5, max_drop_of: Mapping[str, float] | None = None
) -> Regression:
    """Compares ``current`` with ``baseline``.

    Args:
        baseline: the evaluation to hold on to.
        current: the evaluation under test, of the same task and data.
        max_drop: points that any metric may lose: percent and dB as they are, other metrics times 100.
        max_drop_of: metric name -> points, for metrics with a limit of their own.

    Raises:
        EvaluationError: other tasks, other data, or a metric that only the baseline has.
    """
    if baseline.task != current.task:
        raise EvaluationError(f"baseline is of task '{baseline.task}', current of '{current.task}'")
    if baseline.data.get("digest") != current.data.get("digest"):
        raise EvaluationError("the two were measured on other data (their digests differ); record a new baseline")
    if baseline.data.get("preprocess") != current.data.get("preprocess"):
        raise EvaluationError("the two prepared their pictures differently; give both the same --preprocess")
    limits = dict(max_drop_of or {})
    unknown = sorted(set(limits) - {m.name for m in baseline.metrics})
    if unknown:
        known = ", ".join(m.name for m in baseline.metrics)
        raise EvaluationError(f"--max-drop {unknown[0]}: no such metric; the baseline has {known}")
    after = {m.name: m for m in current.metrics}
    missing = [m.name for m in baseline.metrics if m.name not in after]
    if missing:
        raise EvaluationError(f"metric '{missing[0]}' is in the baseline only; record a new baseline")
    gated = [m for m in baseline.metrics if m.name in limits or not _of_itself(baseline, m)]
    metrics = tuple(_change(m, after[m.name], limits.get(m.name, max_drop)) for m in gated)
    warnings = _warnings(baseline, current)
    if left := [m.name for m in baseline.metrics if m not in gated]:
        warnings += (f"the baseline is its own reference, so {', '.join(left)} is not gated but by --max-drop NAME=",)
    return Regression(metrics, _suspects(baseline, current), _flipped(baseline, current), warnings)


def _of_itself(baseline: Evaluation, metric: Metric) -> bool:
    """A distance of the baseline from itself in dB: without bound, so that no drop of it means anything."""
    return metric.unit == "dB" and _is_its_own_reference(baseline)


def _is_its_own_reference(found: Evaluation) -> bool:
    return bool(found.reference) and found.reference.get("sha256") == found.model.get("sha256")


def _change(before: Metric, after: Metric, allowed: float) -> MetricChange:
    both_nan = math.isnan(before.value) and math.isnan(after.value)
    fall = before.value - after.value if before.higher_is_better else after.value - before.value
    drop = 0.0 if both_nan or before.value == after.value else fall * _POINTS[before.unit]
    return MetricChange(before.name, before.value, after.value, drop, allowed, before.unit)


def _suspects(baseline: Evaluation, current: Evaluation) -> tuple[LayerChange, ...]:
    """Layers whose own error grew, the largest growth first; equal growth in the order of the graph."""
    # A layer of the float model has no error.
    exact = SQNR_CEILING_DB if not baseline.layers and _is_its_own_reference(baseline) else None
    before = {layer.tensor: layer.local_sqnr_db for layer in baseline.layers}
    pairs = [(x, before.get(x.tensor, exact)) for x in current.layers]
    changes = [
        LayerChange(x.node, x.op_type, was, x.local_sqnr_db, was - x.local_sqnr_db)
        for x, was in pairs
        if was is not None
    ]
    return tuple(sorted((c for c in changes if c.drop_db > SUSPECT_DB), key=lambda c: -c.drop_db))


def _flipped(baseline: Evaluation, current: Evaluation) -> tuple[tuple[str, str, str], ...]:
    before = {s.name: s.prediction for s in baseline.samples}
    return tuple(
        (s.name, before[s.name], s.prediction)
        for s in current.samples
        if s.name in before and before[s.name] != s.prediction
    )


def _warnings(baseline: Evaluation, current: Evaluation) -> tuple[str, ...]:
    found = []
    for what in ("name", "version", "isa", "threads"):
        a, b = baseline.executor.get(what), current.executor.get(what)
        if a != b:
            found.append(f"executor {what} differs: {a} in the baseline, {b} now")
    added = [m.name for m in current.metrics if m.name not in {b.name for b in baseline.metrics}]
    if added:
        found.append(f"metrics that the baseline lacks are not gated: {', '.join(added)}")
    if bool(baseline.layers) != bool(current.layers) and not _is_its_own_reference(baseline):
        found.append("only one side has layer errors: no layer can be named; evaluate both with --layers")
    return tuple(found)
