# SPDX-License-Identifier: Apache-2.0
"""What an accuracy algorithm works on: a model between its ranges and its export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from wia_quant.affine import Range
from wia_quant.graph import Model
from wia_quant.grids import Grids, Rounded, Scales, WeightKey, choose_grids
from wia_quant.policy import Plan

Feeds = Mapping[str, npt.NDArray[Any]]  # Any: the element type is the model's
Progress = Callable[[int, int | None, str], None]


@dataclass
class Draft:
    """Everything that is still open to change. Algorithms edit it in place.

    Attributes:
        model: the folded float model; biases may be changed.
        plan: what becomes integers; made again by the caller if the graph changes.
        ranges: of the tensors in ``plan.observe``.
        weights: scales chosen instead of max |w| / 127.
        rounded: levels chosen instead of the nearest.
        extremes: the smallest and largest value ever seen of each tensor, where known.
        finished: the ranges are of a table that an earlier run finished, and stay.
        keep_float: nodes that an algorithm wants float -> reason; the plan is made again with them.
    """

    model: Model
    plan: Plan
    ranges: dict[str, Range]
    weights: dict[WeightKey, Scales] = field(default_factory=dict)
    rounded: dict[WeightKey, Rounded] = field(default_factory=dict)
    extremes: dict[str, Range] = field(default_factory=dict)
    finished: bool = False
    keep_float: dict[str, str] = field(default_factory=dict)

    def grids(self) -> Grids:
        """Where the levels lie as things stand."""
        return choose_grids(self.model, self.plan, self.ranges, self.weights, self.rounded)


#: ``algorithm(draft, batches, progress)`` edits the draft; returns what the recipe records (JSON).
Algorithm = Callable[[Draft, Sequence[Feeds], Progress | None], dict[str, Any]]
