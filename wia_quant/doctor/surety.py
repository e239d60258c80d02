# SPDX-License-Identifier: Apache-2.0
"""How sure a model is of its answers, sample by sample, in numbers that another scale of the logits does not change.

Three for scores of classes; on data of the kind that a model was trained on, all three are larger:

- information: the divergence of a sample's probabilities from the mean over all samples. A model that gives every
  sample the same sure answer has none, which the entropy alone would not see;
- peak: the largest logit, in deviations of the logits from their mean;
- tail: the fourth moment of the logits, in the same unit.

Maps of probabilities (where in a picture something is) have their information and, negative, their entropy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_LEAST: Final = 1e-37
#: Probabilities below this came out of a softmax that had no room left.
_NONE: Final = 1e-30
_LEAST_OF_MAP: Final = 1e-6


def is_scores(y: Array) -> bool:
    """[samples, classes] or [samples, steps, classes]."""
    return y.ndim in (2, 3) and y.shape[-1] >= 3 and bool(np.issubdtype(y.dtype, np.floating))


def is_map(y: Array) -> bool:
    """[samples, 1, height, width] of probabilities."""
    return y.ndim == 4 and y.shape[1] == 1 and bool(y.min() >= 0) and bool(y.max() <= 1)


def of_scores(outputs: Sequence[Array]) -> Array:
    """Information, peak and tail, [3, samples], of batches of scores; steps of a sequence count by their mean."""
    scores = [y.astype(np.float64) for y in outputs]
    logits = [np.log(np.maximum(y, _LEAST)) if _are_probabilities(y) else y for y in scores]
    logs = [y - y.max(axis=-1, keepdims=True) for y in logits]
    logs = [y - np.log(np.exp(y).sum(axis=-1, keepdims=True)) for y in logs]
    mean = np.mean([np.exp(y).reshape(-1, y.shape[-1]).mean(axis=0) for y in logs], axis=0)
    found = []
    for y, log in zip(logits, logs, strict=True):
        information = (np.exp(log) * (log - np.log(np.maximum(mean, _LEAST)))).sum(-1)
        centred = y - y.mean(-1, keepdims=True)
        deviation = np.maximum(centred.std(-1), _LEAST)
        peak = centred.max(-1) / deviation
        tail = np.mean((centred / deviation[..., None]) ** 4, axis=-1)
        found.append([v.reshape(v.shape[0], -1).mean(axis=1) for v in (information, peak, tail)])
    return np.concatenate([np.stack(f) for f in found], axis=1)


def are_saturated(outputs: Sequence[Array]) -> bool:
    """Whether most probabilities are 0: a softmax of logits that are far too large, whose peak means nothing."""
    return all(_are_probabilities(y) and float(np.mean(y < _NONE)) > 1 / 2 for y in outputs)


def of_maps(outputs: Sequence[Array]) -> Array:
    """Information and negative entropy, [2, samples], of batches of maps."""
    maps = [np.clip(y.astype(np.float64), _LEAST_OF_MAP, 1 - _LEAST_OF_MAP).reshape(y.shape[0], -1) for y in outputs]
    mean = float(np.mean([p.mean() for p in maps]))
    certain = [p * np.log(p) + (1 - p) * np.log(1 - p) for p in maps]
    information = [c - p * np.log(mean) - (1 - p) * np.log(1 - mean) for c, p in zip(certain, maps, strict=True)]
    return np.stack([np.concatenate([v.mean(axis=1) for v in kind]) for kind in (information, certain)])


def _are_probabilities(y: Array) -> bool:
    return bool((y >= 0).all()) and bool(np.allclose(y.sum(-1), 1, atol=1e-3))
