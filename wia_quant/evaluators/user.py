# SPDX-License-Identifier: Apache-2.0
"""A user's own scorer, ``module:function``: called with (outputs, target) of a sample, returns {score: value}."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from wia_quant.errors import UsageError
from wia_quant.evaluators.base import Sample, Scored, Scores
from wia_quant.evaluators.metric import Metric, mean

Scorer = Callable[[Mapping[str, object], object], Mapping[str, float]]


class User:
    """The mean of each score that the function returns.

    A function may carry ``lower_is_better = {"mae"}``: names of its scores where less is better.
    """

    def __init__(self, scorer: Scorer, name: str) -> None:
        self._scorer, self._name = scorer, name
        self._lower = frozenset(getattr(scorer, "lower_is_better", ()))
        self._scores = Scores()

    def score(self, sample: Sample) -> Scored:
        try:
            scores = self._scorer(sample.outputs, sample.target)
        except Exception as error:  # a user's function may raise anything
            raise UsageError(
                f"{self._name}(outputs, target) failed with {type(error).__name__}: {error}; "
                "it is given a dict of arrays and the right answer, and returns a dict of numbers"
            ) from error
        if not isinstance(scores, Mapping) or not scores:
            raise UsageError(f"{self._name} returned {scores!r}; it must return a dict of score name -> number")
        kept = {str(k): float(v) for k, v in scores.items()}
        return Scored(kept, " ".join(f"{v:.4g}" for v in kept.values()))

    def add(self, scored: Scored) -> None:
        self._scores.add(scored.scores)

    def metrics(self) -> tuple[Metric, ...]:
        return tuple(mean(n, v, higher_is_better=n not in self._lower) for n, v in self._scores.by_name.items())

    def details(self) -> Mapping[str, object]:
        return {}


def load_scorer(spec: str) -> Scorer:
    """The function named ``module:function``; the current folder is searched first, as Python does."""
    module_name, _, function_name = spec.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"--task {spec}: cannot import '{module_name}': {error}") from error
    scorer = getattr(module, function_name, None)
    if not callable(scorer):
        raise UsageError(f"--task {spec}: '{module_name}' has no function '{function_name}'")
    return scorer  # type: ignore[no-any-return]  # a user's function; its result is checked at each call
