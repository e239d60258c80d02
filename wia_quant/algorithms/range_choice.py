# SPDX-License-Identifier: Apache-2.0
"""Between the calibrated range and everything seen: the range that costs the products reading it least.

A calibrator clips outliers without knowing what they are worth. Rows of each product's input are put on the grids of a
few ranges between the two, and the one with the smallest error of the products' results is kept (relative, summed over
the products that read the tensor).

What no product reads (sums, gates, functions' inputs) goes half way: nothing says there what clipping costs, and its
rare large values are often the answer, such as the one line of text of a picture; all the way, the others are too
coarse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wia_quant.affine import Range, choose_qparams
from wia_quant.algorithms.base import Draft, Feeds, Progress
from wia_quant.algorithms.products import products, show_rows, weights_of
from wia_quant.grids import group_ranges

#: How far to go from the calibrated range (0) to everything seen (1).
STEPS: Final = (0.0, 0.5, 1.0)
#: As far goes what no product reads.
UNREAD: Final = 0.5

#: Batches looked at, and rows drawn from them for each product.
MAX_BATCHES: Final = 16
N_ROWS: Final = 512

#: A wider range must win by this factor: less is noise of the rows looked at.
MARGIN: Final = 0.97


def range_choice(draft: Draft, batches: Sequence[Feeds], progress: Progress | None) -> dict[str, Any]:
    """Widen the range of the inputs of products where that lowers the error of their results; of the rest, half way."""
    if draft.finished:
        return {"widened": 0, "reason": "the table's ranges were chosen when it was made"}
    plan = draft.plan
    calibrated = group_ranges(draft.model, plan, draft.ranges)
    # The plan, made again, may observe less than what has a range: nodes that mix ranges became float.
    ranges = {name: draft.ranges[name] for name in plan.observe if name in draft.ranges}
    seen = {name: _union(r, draft.extremes[name]) for name, r in ranges.items() if name in draft.extremes}
    if len(seen) != len(ranges):
        return {"widened": 0, "reason": "the table does not say what was seen"}
    widest = group_ranges(draft.model, plan, seen)
    candidates = {
        g: [_between(calibrated[g], widest[g], t) for t in STEPS] for g in calibrated if calibrated[g] != widest[g]
    }
    grids = draft.grids()
    group_of = {name: activation.group for name, activation in plan.activations.items()}
    chosen = [(p, N_ROWS) for p in products(draft) if group_of.get(p.node.inputs[0]) in candidates]
    weights = {p.node.name: weights_of(draft, p, grids) for p, _ in chosen}
    signal = dict.fromkeys(weights, 0.0)
    noise = {name: np.zeros(len(STEPS)) for name in weights}
    for product, rows in show_rows(draft, chosen, batches[:MAX_BATCHES], progress, "choosing ranges"):
        name, value = product.node.name, product.node.inputs[0]
        exact, rounded = (w.transpose(0, 2, 1) for w in weights[name])
        result = np.matmul(rows, exact)
        signal[name] += float(np.vdot(result, result))
        for i, r in enumerate(candidates[group_of[value]]):
            on_grid = product.on_grid(rows, choose_qparams(r, plan.activations[value].qtype))
            error = result - np.matmul(on_grid, rounded)
            noise[name][i] += float(np.vdot(error, error))
    totals: dict[str, Any] = {}
    for product, _ in chosen:
        name, group = product.node.name, group_of[product.node.inputs[0]]
        if signal[name] > 0:
            totals[group] = totals.get(group, 0.0) + noise[name] / signal[name]
    steps = dict.fromkeys(candidates.keys() - {group_of[p.node.inputs[0]] for p, _ in chosen}, UNREAD)
    unread = len(steps)
    for group, total in totals.items():
        best = int(np.argmin(total))
        if best and total[best] < MARGIN * total[0]:
            steps[group] = STEPS[best]
    for name, r in ranges.items():
        if (step := steps.get(group_of[name])) is not None:
            draft.ranges[name] = _between(r, seen[name], step)
    return {"widened": len(steps) - unread, "unread": unread, "of": len(calibrated)}


def _union(a: Range, b: Range) -> Range:
    return Range(min(a.lo, b.lo), max(a.hi, b.hi))


def _between(a: Range, b: Range, t: float) -> Range:
    return Range(a.lo + t * (b.lo - a.lo), a.hi + t * (b.hi - a.hi))
