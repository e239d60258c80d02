# SPDX-License-Identifier: Apache-2.0
"""What an evaluator is: it scores samples one by one, in any thread, adds the scores in order, says the figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from wia_quant.evaluators.metric import Metric

Array = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Sample:
    """One sample's outputs and what they are measured against.

    Attributes:
        name: the file or index it came from.
        outputs: output name -> array, the batch axis taken off.
        target: its label, in the form the task's evaluator documents; None without labels.
        reference: the float model's outputs in the form of ``outputs``; None without a reference.
    """

    name: str
    outputs: Mapping[str, Array]
    target: object | None = None
    reference: Mapping[str, Array] | None = None


@dataclass(frozen=True)
class Scored:
    """What became of one sample.

    Attributes:
        scores: score name -> value; the means of these are what most metrics are.
        prediction: the answer in a few characters, compared between two models to find samples that flipped.
        kept: what else ``add`` needs; JSON values, because an interrupted run goes on from a file.
    """

    scores: Mapping[str, float]
    prediction: str
    kept: Mapping[str, Any] = field(default_factory=dict)


class Evaluator(Protocol):
    """State over the samples of one evaluation; constant memory but for a few numbers a sample."""

    def score(self, sample: Sample) -> Scored:
        """Scores one sample; changes no state. Raises DataError when its target is not of the task's form."""
        ...

    def add(self, scored: Scored) -> None:
        """Takes one sample's scores into the figures, in the order of the data."""
        ...

    def metrics(self) -> tuple[Metric, ...]:
        """The figures over everything added, the headline first."""
        ...

    def details(self) -> Mapping[str, object]:
        """What else a report may show (a confusion matrix ...); JSON-serialisable, may be empty."""
        ...


@dataclass
class Scores:
    """The per-sample numbers of a simple evaluator, by score name."""

    by_name: dict[str, list[float]] = field(default_factory=dict)

    def add(self, scores: Mapping[str, float]) -> None:
        """Appends one sample's scores."""
        for name, value in scores.items():
            self.by_name.setdefault(name, []).append(float(value))


def observe(evaluator: Evaluator, sample: Sample) -> Scored:
    """Scores a sample and adds it."""
    scored = evaluator.score(sample)
    evaluator.add(scored)
    return scored


def only_output(sample: Sample) -> Array:
    """The first output: the one that single-output tasks score."""
    return next(iter(sample.outputs.values()))
