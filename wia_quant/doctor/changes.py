# SPDX-License-Identifier: Apache-2.0
"""What may be wrong with the preprocessing of pictures, and the change of the data that would put it right."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_IMAGENET_MEAN: Final = np.array([0.485, 0.456, 0.406], np.float32)
_IMAGENET_STD: Final = np.array([0.229, 0.224, 0.225], np.float32)

#: Pixels reach 255; what is normalised by a mean and a deviation stays below.
_MOST_NORMALISED: Final = 8.0
#: Values of pictures that never reach this were divided by 255 once too often.
_LEAST_UNIT: Final = 0.1
#: Bars of one colour, as share of a side, that are worth cutting off.
_LEAST_BAR: Final = 0.05
#: The key of the change that cuts bars off.
BARS: Final = "the bars at the edges cut off"


@dataclass(frozen=True)
class Domain:
    """The values and axes of the data, as all samples together show them.

    Attributes:
        lo: the smallest value.
        hi: the largest value.
        channels: the axis of the channels: 1 or 3.
        n_channels: 1 or 3.
    """

    lo: float
    hi: float
    channels: int
    n_channels: int

    @property
    def is_pixels(self) -> bool:
        """0 to 255."""
        return self.lo >= 0 and self.hi > _MOST_NORMALISED

    @property
    def is_unit(self) -> bool:
        """0 to 1."""
        return self.lo >= 0 and _LEAST_UNIT <= self.hi <= 1.01

    @property
    def is_centred(self) -> bool:
        """Negative and positive, as after a mean and a deviation."""
        return self.lo < 0 < self.hi <= _MOST_NORMALISED

    @property
    def is_tiny(self) -> bool:
        """0 to 1/255."""
        return self.lo >= 0 and self.hi < _LEAST_UNIT

    @property
    def spatial(self) -> tuple[int, int]:
        """The axes of height and width."""
        return (2, 3) if self.channels == 1 else (1, 2)

    def by_channel(self, v: Array) -> Array:
        """``v`` of three colours, or their mean for grey, shaped to broadcast."""
        if self.n_channels == 1:
            return np.asarray(v.mean(keepdims=True)).reshape(1, 1, 1, 1)
        shape = [1, 1, 1, 1]
        shape[self.channels] = 3
        return v.reshape(shape)


@dataclass(frozen=True)
class Change:
    """One mistake.

    Attributes:
        applies: for which data it is tried.
        make: the data without the mistake; None where this batch does not have it.
        remedy: what to do.
    """

    applies: Callable[[Domain], bool]
    make: Callable[[Array, Domain], Array | None]
    remedy: str


def _imagenet(x: Array, d: Domain) -> Array:
    return (x - d.by_channel(_IMAGENET_MEAN)) / d.by_channel(_IMAGENET_STD)


def _back_from_imagenet(x: Array, d: Domain) -> Array:
    return np.asarray(x * d.by_channel(_IMAGENET_STD) + d.by_channel(_IMAGENET_MEAN))


def _upside_down(x: Array, d: Domain) -> Array:
    return np.flip(x, d.spatial)


def _transposed(x: Array, d: Domain) -> Array | None:
    return x.swapaxes(*d.spatial) if x.shape[d.spatial[0]] == x.shape[d.spatial[1]] else None


def _without_bars(x: Array, d: Domain) -> Array | None:
    """The picture between two bars of one colour, its middle scaled up to the whole; None without such bars."""
    for axis, other in (d.spatial, d.spatial[::-1]):
        if _bars(x, other) > 0:
            continue  # a margin all around is part of the picture
        n = _bars(x, axis)
        size = x.shape[axis]
        if n >= _LEAST_BAR * size and 2 * n < size:
            inner = size - 2 * n
            side = x.shape[other] * inner // size
            start = (x.shape[other] - side) // 2
            rows = np.round(np.linspace(n, n + inner - 1, size)).astype(int)
            columns = np.round(np.linspace(start, start + side - 1, x.shape[other])).astype(int)
            return x.take(rows, axis).take(columns, other)
    return None


def _bars(x: Array, axis: int) -> int:
    """How many lines along ``axis`` hold one value, as those at the edge do, at both ends; 0 where they do not."""
    lines = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    flat = (lines.min(axis=1) == lines.max(axis=1)) & (lines[:, 0] == lines[0, 0])
    if flat.all():
        return 0
    first, last = int(flat.argmin()), int(flat[::-1].argmin())
    return min(first, last)


#: What the data would be with the change -> the mistake.
CHANGES: Final[Mapping[str, Change]] = MappingProxyType(
    {
        "the channels in the other order": Change(
            lambda d: d.n_channels == 3,
            lambda x, d: np.flip(x, d.channels),
            'swap the colour order: "color": "bgr" for "rgb", or the other way',
        ),
        "pixels divided by 255": Change(
            lambda d: d.is_pixels,
            lambda x, d: x / 255,
            'the model wants 0 to 1: use the preset zero_one, or "scale": 1/255',
        ),
        "pixels brought to -1..1": Change(
            lambda d: d.is_pixels, lambda x, d: x / 127.5 - 1, "the model wants -1 to 1: use the preset tf"
        ),
        "ImageNet's mean and deviation of pixels": Change(
            lambda d: d.is_pixels, lambda x, d: _imagenet(x / 255, d), "use the preset imagenet"
        ),
        "values brought to -1..1": Change(
            lambda d: d.is_unit, lambda x, d: x * 2 - 1, "the model wants -1 to 1: use the preset tf"
        ),
        "ImageNet's mean and deviation": Change(lambda d: d.is_unit, _imagenet, "use the preset imagenet"),
        "values of 0 to 255": Change(
            lambda d: d.is_unit, lambda x, d: x * 255, "the model wants pixels of 0 to 255: use the preset raw"
        ),
        "ImageNet's mean and deviation taken back": Change(
            lambda d: d.is_centred,
            _back_from_imagenet,
            "the model wants 0 to 1 without a mean: use the preset zero_one",
        ),
        "ImageNet's mean and deviation in place of -1..1": Change(
            lambda d: d.is_centred, lambda x, d: _imagenet((x + 1) / 2, d), "use the preset imagenet"
        ),
        "-1..1 in place of ImageNet's mean and deviation": Change(
            lambda d: d.is_centred, lambda x, d: _back_from_imagenet(x, d) * 2 - 1, "use the preset tf"
        ),
        "values of 0 to 1 in place of -1..1": Change(
            lambda d: d.is_centred, lambda x, d: (x + 1) / 2, "the model wants 0 to 1: use the preset zero_one"
        ),
        "values of 0 to 255 in place of -1..1": Change(
            lambda d: d.is_centred,
            lambda x, d: (x + 1) * 127.5,
            "the model wants pixels of 0 to 255: use the preset raw",
        ),
        "values 255 times as large": Change(
            lambda d: d.is_tiny, lambda x, d: x * 255, "the data was divided by 255 twice: leave out one"
        ),
        "the pictures turned by 180 degrees": Change(
            lambda d: True, _upside_down, "the pictures stand upside down: turn them"
        ),
        "rows and columns exchanged": Change(
            lambda d: True, _transposed, "the pictures lie on their side: height comes before width"
        ),
        "light and dark exchanged": Change(
            lambda d: d.n_channels == 1,
            lambda x, d: np.asarray(d.lo + d.hi - x),
            "the model wants the negative: light on dark, or the other way",
        ),
        BARS: Change(
            lambda d: True, _without_bars, 'the bars are not what the model learned: "resize": "shortest" and a crop'
        ),
    }
)
