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

_LEAST: Final = 1e-12
_LEAST_OF_MAP: Final = 1e-6


def is_scores(y: Array) -> bool:
    """[samples, classes] or [samples, steps, classes]."""
    return y.ndim in (2, 3) and y.shape[-1] >= 3 and bool(np.issubdtype(y.dtype, np.floating))


def is_map(y: Array) -> bool:
    """[samples, 1, height, width] of probabilities."""
    return y.ndim == 4 and y.shape[1] == 1 and bool(y.min() >= 0) and bool(y.max() <= 1)


def of_scores(outputs: Sequence[Array]) -> Array:
    """Information, peak and tail, [3, samples], of batches of scores; steps of a sequence count by their mean."""
    probabilities = [_probabilities(y.astype(np.float64)) for y in outputs]
    mean = np.mean([p.reshape(-1, p.shape[-1]).mean(axis=0) for p in probabilities], axis=0)
    found = []
    for p in probabilities:
        logits = np.log(p)
        information = (p * (logits - np.log(mean))).sum(-1)
        centred = logits - logits.mean(-1, keepdims=True)
        deviation = np.maximum(centred.std(-1), _LEAST)
        peak = centred.max(-1) / deviation
        tail = np.mean((centred / deviation[..., None]) ** 4, axis=-1)
        found.append([v.reshape(v.shape[0], -1).mean(axis=1) for v in (information, peak, tail)])
    return np.concatenate([np.stack(f) for f in found], axis=1)


def of_maps(outputs: Sequence[Array]) -> Array:
    """Information and negative entropy, [2, samples], of batches of maps."""
    maps = [np.clip(y.astype(np.float64), _LEAST_OF_MAP, 1 - _LEAST_OF_MAP).reshape(y.shape[0], -1) for y in outputs]
    mean = float(np.mean([p.mean() for p in maps]))
    certain = [p * np.log(p) + (1 - p) * np.log(1 - p) for p in maps]
    information = [c - p * np.log(mean) - (1 - p) * np.log(1 - mean) for c, p in zip(certain, maps, strict=True)]
    return np.stack([np.concatenate([v.mean(axis=1) for v in kind]) for kind in (information, certain)])


def _probabilities(y: Array) -> Array:
    if not ((y >= 0).all() and np.allclose(y.sum(-1), 1, atol=1e-3)):
        y = np.exp(y - y.max(axis=-1, keepdims=True))
        y = y / y.sum(axis=-1, keepdims=True)
    return np.maximum(y, _LEAST)
