# SPDX-License-Identifier: Apache-2.0
"""Wrong preprocessing, told by the model itself: with the right one it is surest of its answers.

The model runs on the data as given and on the data with one thing changed (changes.py). A model that is clearly surer
with a change (surety.py) was trained on data with that change. Differences are taken sample by sample, so that hard
samples do not count against either side, and are judged by their standard error. A few samples come first; only
changes that look better on them are tried on the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.doctor import surety
from wia_quant.doctor.base import Case, Symptom
from wia_quant.doctor.changes import BARS, CHANGES, Change, Domain

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Least:
    """Standard errors by which a change must be better.

    Attributes:
        mean: on average over the measures.
        each: in each of them.
        alone: in information alone, where the change makes values no larger.
    """

    mean: float
    each: float
    alone: float


_LEAST: Final = _Least(2.7, 1.2, 4.0)
#: On the first few samples, to go on with a change.
_FIRST_LEAST: Final = _Least(1.0, 0.0, 1.0)
_FIRST: Final = 16
#: A gain smaller than this share in every measure is rounding, however sure it is.
_LEAST_SHARE: Final = 0.002
#: Deviations over those before from which values count as larger.
_LARGER: Final = 1.05
#: Information that alone speaks for a change, over that of the data as given.
_MORE: Final = 1.2
#: Nats that the right data must tell apart: less, and the output is no scores of classes, but an embedding.
_LEAST_INFORMATION: Final = 0.1
#: Maps are sure of most of their pixels either way: a change must double what they tell, or halve their doubt.
_MAP_RATIO: Final = 2.0
_MAP_ERRORS: Final = 3.0
#: Fewer samples than this decide nothing.
_LEAST_SAMPLES: Final = 8


def find(case: Case) -> Iterator[Symptom]:
    """The change that makes the model surest, if one clearly does."""
    domain = case.domain()
    if domain is None or case.kept_samples() < _LEAST_SAMPLES:
        return
    trial = _Trial(case, domain)
    judge = trial.judge()
    if judge is None:
        return
    best: tuple[float, str, Change] | None = None
    for name, change in CHANGES.items():
        if not change.applies(domain):
            continue
        evidence = judge(change)
        if evidence > 0 and (best is None or evidence > best[0]):
            best = (evidence, name, change)
    if best is not None:
        evidence, name, change = best
        message = f"the model is surer of its answers with {name}: by {evidence:.1f} standard errors"
        yield Symptom("confidence", message, change.remedy)
    elif trial.classifies:
        yield from _bars(case, domain)


def _bars(case: Case, domain: Domain) -> Iterator[Symptom]:
    """A classifier that does not mind bars may still have been trained without; grey drawings have their margins."""
    if domain.n_channels != 3:
        return
    change = CHANGES[BARS]
    n = sum(change.make(batch[case.input_name], domain) is not None for batch in case.kept)
    if 2 * n > len(case.kept):
        message = f"{n} of {len(case.kept)} pictures stand between two bars of one colour, as detectors take them"
        yield Symptom("confidence", message, change.remedy, sure=False)


class _Trial:
    """Runs the model on the kept batches, as given and changed, as far as is needed."""

    def __init__(self, case: Case, domain: Domain) -> None:
        self._case = case
        self._domain = domain
        self._given: list[Array] = []
        self._output = ""
        self.classifies = False

    def judge(self) -> Callable[[Change], float] | None:
        """By the kind of the model's output; None where no output says how sure it is."""
        first = self._run(None, 0)
        for name, y in first.items():
            if surety.is_scores(y):
                self._output, self.classifies = name, y.ndim == 2
                return self._scores
        for name, y in first.items():
            if surety.is_map(y):
                self._output = name
                return self._maps
        return None

    def _scores(self, change: Change) -> float:
        """Mean of the measures' gains in standard errors; 0 where it is not enough."""
        n = self._enough(_FIRST)
        if self._gain(change, n, _FIRST_LEAST) == 0:
            return 0.0
        return self._gain(change, len(self._case.kept), _LEAST)

    def _gain(self, change: Change, n: int, least: _Least) -> float:
        pair = self._pair(change, n)
        if pair is None or surety.are_saturated(pair[1]):
            return 0.0
        given, changed = surety.of_scores(pair[0]), surety.of_scores(pair[1])
        told_before, told = given[0].mean(), changed[0].mean()
        if told < _LEAST_INFORMATION:
            return 0.0
        errors = _errors(changed - given)
        if (changed.mean(axis=1) < (1 + _LEAST_SHARE) * given.mean(axis=1)).all():
            return 0.0
        if errors.mean() >= least.mean and errors.min() >= least.each:
            return float(errors.mean())
        # Larger values make larger logits, which only look surer; a change that leaves them as large has no such help.
        if not self._enlarges(change) and errors[0] >= least.alone and told >= _MORE * told_before:
            return float(errors[0])
        return 0.0

    def _enlarges(self, change: Change) -> bool:
        x = self._case.kept[0][self._case.input_name]
        made = change.make(x, self._domain)
        return made is None or float(made.std()) > _LARGER * float(x.std())

    def _maps(self, change: Change) -> float:
        """As many standard errors as the change is better by; 0 where it is not enough."""
        return self._maps_of(change, self._enough(_FIRST // 2)) and self._maps_of(change, len(self._case.kept))

    def _maps_of(self, change: Change, n: int) -> float:
        pair = self._pair(change, n)
        if pair is None:
            return 0.0
        given, changed = surety.of_maps(pair[0]), surety.of_maps(pair[1])
        errors = _errors(changed - given)
        told, told_before = changed[0].mean(), given[0].mean()
        doubt, doubt_before = -changed[1].mean(), -given[1].mean()
        least = _MAP_ERRORS if n == len(self._case.kept) else _FIRST_LEAST.mean
        more = errors[0] >= least and told >= _MAP_RATIO * told_before
        surer = errors[1] >= least and doubt_before >= _MAP_RATIO * doubt and told_before <= _MAP_RATIO * told
        return float(errors[0] if more else errors[1] if surer else 0.0)

    def _enough(self, samples: int) -> int:
        """Batches that hold so many samples."""
        n = 0
        for i, batch in enumerate(self._case.kept):
            n += batch[self._case.input_name].shape[0]
            if n >= samples:
                return i + 1
        return len(self._case.kept)

    def _pair(self, change: Change, n: int) -> tuple[list[Array], list[Array]] | None:
        """Outputs of the first ``n`` batches, as given and changed; None where the change does not touch most."""
        given, changed = [], []
        for i in range(n):
            y = self._run(change, i)
            if y:
                given.append(self._as_given(i))
                changed.append(y[self._output])
        if 2 * len(given) < n or sum(y.shape[0] for y in given) < _LEAST_SAMPLES:
            return None
        return given, changed

    def _as_given(self, i: int) -> Array:
        while len(self._given) <= i:
            self._given.append(self._run(None, len(self._given))[self._output])
        return self._given[i]

    def _run(self, change: Change | None, i: int) -> dict[str, Array]:
        feed = dict(self._case.kept[i])
        x = feed[self._case.input_name]
        if change is not None:
            made = change.make(x, self._domain)
            if made is None:
                return {}
            feed[self._case.input_name] = np.ascontiguousarray(made, dtype=x.dtype)
        return self._case.run(feed)


def _errors(gains: Array) -> Array:
    """Means of [measures, samples] in their standard errors."""
    error = gains.std(axis=1, ddof=1) / math.sqrt(gains.shape[1])
    return np.asarray(gains.mean(axis=1) / np.maximum(error, 1e-12))
