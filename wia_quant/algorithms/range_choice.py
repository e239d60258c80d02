# SPDX-License-Identifier: Apache-2.0
"""Between the calibrated range and everything seen: the range that costs the products reading it least.

A calibrator clips outliers without knowing what they are worth. Each product's input is put on the grids of a few
ranges between the two, and the one with the smallest error of the products' results is kept (block error on
calibration data; relative, summed over the products that read the tensor).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wia_quant.affine import QParams, Range, choose_qparams
from wia_quant.algorithms.base import Draft, Feeds, Progress
from wia_quant.algorithms.local import Power, Twin, run_beside
from wia_quant.graph import Node
from wia_quant.grids import group_ranges
from wia_quant.policy import WeightPlan

#: How far to go from the calibrated range (0) to everything seen (1).
STEPS: Final = (0.0, 0.5, 1.0)

#: Batches looked at: each costs a run of the model per step.
MAX_BATCHES: Final = 16

#: A wider range must win by this factor: less is noise of the batches looked at.
MARGIN: Final = 0.97


def range_choice(draft: Draft, batches: Sequence[Feeds], progress: Progress | None) -> dict[str, Any]:
    """Widen the range of the inputs of products where that lowers the error of their results."""
    plan = draft.plan
    calibrated = group_ranges(draft.model, plan, draft.ranges)
    seen = {name: _union(r, draft.extremes[name]) for name, r in draft.ranges.items() if name in draft.extremes}
    if len(seen) != len(draft.ranges):
        return {"widened": 0, "reason": "the table does not say what was seen"}
    widest = group_ranges(draft.model, plan, seen)
    candidates = {
        g: [_between(calibrated[g], widest[g], t) for t in STEPS] for g in calibrated if calibrated[g] != widest[g]
    }
    measured: dict[str, list[tuple[str, list[str]]]] = {}

    def errors(twin: Twin, node: Node, use: WeightPlan) -> list[str]:
        activation = plan.activations.get(node.inputs[0])
        if activation is None or activation.group not in candidates:
            return []
        wanted = []
        for i, r in enumerate(candidates[activation.group]):
            grid: QParams = choose_qparams(r, activation.qtype)
            twin.add(node, use, grid)
            wanted.append(twin.emit("Sub", [twin.exact, twin.rounded], f"{node.name}/error{i}"))
        measured.setdefault(activation.group, []).append((twin.exact, wanted))
        return [twin.exact, *wanted]

    def named(done: int, total: int | None, what: str) -> None:
        if progress:
            progress(done, total, "choosing ranges")

    if not candidates:
        return {"widened": 0}
    powers = run_beside(draft, batches[:MAX_BATCHES], errors, Power, named)
    widened = 0
    for group, products in measured.items():
        totals = np.zeros(len(STEPS))
        for exact, wanted in products:
            signal, noise = powers.get(exact), [powers.get(w) for w in wanted]
            if isinstance(signal, Power) and signal.mean() > 0 and all(isinstance(n, Power) for n in noise):
                totals += np.array([n.mean() for n in noise if isinstance(n, Power)]) / signal.mean()
        best = int(np.argmin(totals))
        if best and totals[best] < MARGIN * totals[0]:
            widened += 1
            for name in plan.group(group):
                if name in draft.ranges:
                    draft.ranges[name] = _between(draft.ranges[name], seen[name], STEPS[best])
    return {"widened": widened, "of": len(calibrated)}


def _union(a: Range, b: Range) -> Range:
    return Range(min(a.lo, b.lo), max(a.hi, b.hi))


def _between(a: Range, b: Range, t: float) -> Range:
    return Range(a.lo + t * (b.lo - a.lo), a.hi + t * (b.hi - a.hi))
