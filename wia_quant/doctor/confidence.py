# SPDX-License-Identifier: Apache-2.0
"""Wrong preprocessing, told by the model itself: with the right one it is surest of its answers.

The model runs on the data as given and on the data with one thing changed: channels reversed, another scale, another
mean and deviation. A classifier that is clearly surer with a change was trained on data with that change. What is
compared is the entropy of its output, sample by sample, so that hard samples do not count against either side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.doctor.base import Case, Symptom

Array = npt.NDArray[Any]

_IMAGENET_MEAN: Final = np.array([0.485, 0.456, 0.406], np.float32)
_IMAGENET_STD: Final = np.array([0.229, 0.224, 0.225], np.float32)

#: A change must lower the mean entropy by this many nats and by this share of it ...
_LEAST_NATS: Final = 0.10
_LEAST_SHARE: Final = 0.12
#: ... and by so many standard errors of the paired differences.
_LEAST_ERRORS: Final = 2.5
#: Fewer samples than this decide nothing.
_LEAST_SAMPLES: Final = 8


def find(case: Case) -> Iterator[Symptom]:
    """The change that makes the model surest, if it clearly does."""
    axis = case.channel_axis()
    as_given = _entropies(case, lambda x: x)
    if axis is None or as_given is None or as_given.size < _LEAST_SAMPLES:
        return
    best: tuple[float, str, str] | None = None
    for name, (applies, change, remedy) in CHANGES.items():
        x = np.concatenate([batch[case.input_name].reshape(-1) for batch in case.kept])
        if not applies(x):
            continue
        changed = _entropies(case, lambda x, c=change: c(x, axis))  # type: ignore[misc]
        if changed is None:
            continue
        gain = as_given - changed
        error = float(gain.std(ddof=1)) / math.sqrt(gain.size)
        mean = float(gain.mean())
        least = max(_LEAST_NATS, _LEAST_SHARE * float(as_given.mean()), _LEAST_ERRORS * error)
        if mean > least and (best is None or mean > best[0]):
            best = (mean, name, remedy)
    if best is not None:
        gain_nats, name, remedy = best
        before = float(as_given.mean())
        message = f"the model is surer with {name}: entropy {before:.2f} -> {before - gain_nats:.2f} nats"
        yield Symptom("confidence", message, remedy)


def _entropies(case: Case, change: Callable[[Array], Array]) -> Array | None:
    """Entropy of each row of the first output that looks like scores of classes [samples]; None without one."""
    found = []
    for batch in case.kept:
        feed = dict(batch)
        x = batch[case.input_name]
        feed[case.input_name] = np.ascontiguousarray(change(x), dtype=x.dtype)
        scores = next((y for y in case.run(feed).values() if _looks_like_scores(y)), None)
        if scores is None:
            return None
        found.append(_entropy_of_rows(scores))
    return np.concatenate(found) if found else None


def _looks_like_scores(y: Array) -> bool:
    return y.ndim in (2, 3) and y.shape[-1] >= 3 and bool(np.issubdtype(y.dtype, np.floating))


def _entropy_of_rows(y: Array) -> Array:
    """One number a sample: a sequence [n, steps, classes] counts by its mean over steps."""
    rows = y.astype(np.float64)
    if not ((rows >= 0).all() and np.allclose(rows.sum(-1), 1, atol=1e-3)):
        rows = rows - rows.max(axis=-1, keepdims=True)
        rows = np.exp(rows) / np.exp(rows).sum(axis=-1, keepdims=True)
    entropy = -(rows * np.log(np.maximum(rows, 1e-30))).sum(axis=-1)
    return np.asarray(entropy.reshape(entropy.shape[0], -1).mean(axis=1))


def _by_channel(v: Array, axis: int) -> Array:
    shape = [1, 1, 1, 1]
    shape[axis] = 3
    return v.reshape(shape)


def _is_pixels(x: Array) -> bool:
    """0 to 255."""
    return bool(x.min() >= 0 and x.max() > 8)


def _is_unit(x: Array) -> bool:
    """0 to 1."""
    return bool(x.min() >= 0 and x.max() <= 1.01)


def _is_centred(x: Array) -> bool:
    """Negative and positive, as after a mean and a deviation."""
    return bool(x.min() < 0 and x.max() <= 8)


#: What may be wrong -> (for which data it is tried, the change, what to do).
CHANGES: Final[Mapping[str, tuple[Callable[[Array], bool], Callable[[Array, int], Array], str]]] = MappingProxyType(
    {
        "the channels in the other order": (
            lambda x: True,
            lambda x, axis: np.flip(x, axis),
            'swap the colour order: "color": "bgr" for "rgb", or the other way',
        ),
        "pixels divided by 255": (
            _is_pixels,
            lambda x, axis: x / 255,
            'the model wants 0 to 1: use the preset zero_one, or "scale": 1/255',
        ),
        "pixels brought to -1..1": (
            _is_pixels,
            lambda x, axis: x / 127.5 - 1,
            "the model wants -1 to 1: use the preset tf",
        ),
        "ImageNet's mean and deviation of pixels": (
            _is_pixels,
            lambda x, axis: (x / 255 - _by_channel(_IMAGENET_MEAN, axis)) / _by_channel(_IMAGENET_STD, axis),
            "use the preset imagenet",
        ),
        "values brought to -1..1": (
            _is_unit,
            lambda x, axis: x * 2 - 1,
            "the model wants -1 to 1: use the preset tf",
        ),
        "ImageNet's mean and deviation": (
            _is_unit,
            lambda x, axis: (x - _by_channel(_IMAGENET_MEAN, axis)) / _by_channel(_IMAGENET_STD, axis),
            "use the preset imagenet",
        ),
        "values of 0 to 255": (
            _is_unit,
            lambda x, axis: x * 255,
            "the model wants pixels of 0 to 255: use the preset raw",
        ),
        "ImageNet's mean and deviation taken back": (
            _is_centred,
            lambda x, axis: x * _by_channel(_IMAGENET_STD, axis) + _by_channel(_IMAGENET_MEAN, axis),
            "the model wants 0 to 1 without a mean: use the preset zero_one",
        ),
        "ImageNet's mean and deviation in place of -1..1": (
            _is_centred,
            lambda x, axis: ((x + 1) / 2 - _by_channel(_IMAGENET_MEAN, axis)) / _by_channel(_IMAGENET_STD, axis),
            "use the preset imagenet",
        ),
        "-1..1 in place of ImageNet's mean and deviation": (
            _is_centred,
            lambda x, axis: (x * _by_channel(_IMAGENET_STD, axis) + _by_channel(_IMAGENET_MEAN, axis)) * 2 - 1,
            "use the preset tf",
        ),
        "values of 0 to 255 in place of -1..1": (
            _is_centred,
            lambda x, axis: (x + 1) * 127.5,
            "the model wants pixels of 0 to 255: use the preset raw",
        ),
    }
)
