# SPDX-License-Identifier: Apache-2.0
"""A histogram whose bins are 2**e wide, e growing with the data: exact counts, whatever the order.

Bin k counts the values x with trunc(x / width) == k: [k, k + 1) * width above 0, mirrored below, and bin 0 is
(-width, width). A width is a power of two, so the division is exact, and two bins of one width are one bin
of the next: trunc(k / 2). The width is the smallest whose bins from the smallest to the largest value (and
0) are at most ``MAX_BINS``. So the state is a function of the multiset of values alone.
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from wia_quant.calibrators.base import Float32Array, State, extremes_of, flat_float32
from wia_quant.calibrators.extremes import Extremes
from wia_quant.errors import CalibrationError

#: Of these at least half are in use (a quarter on the longer side of 0 if there are two).
MAX_BINS: Final = 8192

#: float32 holds 2**126, by which values are multiplied at this width; a narrower bin is of no use.
MIN_EXPONENT: Final = -126


class Histogram:
    """Counts of float32 values in at most ``MAX_BINS`` bins. About 64 KiB at most."""

    def __init__(self) -> None:
        self.seen = Extremes()
        self.exponent = MIN_EXPONENT
        self.first = 0  # the index k of counts[0]; <= 0, and the last index is >= 0
        self.counts = np.zeros(1, dtype=np.int64)

    @property
    def width(self) -> float:
        """The width of a bin."""
        return math.ldexp(1.0, self.exponent)

    def observe(self, x: npt.NDArray[Any]) -> None:
        """Count the values of ``x``; CalibrationError if one is not finite."""
        flat = flat_float32(x)
        if flat.size == 0:
            return
        lo, hi = extremes_of(flat)
        if not self.seen.lo <= lo <= hi <= self.seen.hi:
            self._make_room(lo, hi)
        self.seen.add(lo, hi, flat.size)
        fast_count_bins(flat, math.ldexp(1.0, -self.exponent), self.first, self.counts)

    def merge(self, other: Histogram) -> None:
        """Add the counts of ``other``; exact."""
        if other.seen.n_values == 0:
            return
        self._make_room(other.seen.lo, other.seen.hi)
        self.seen.merge(other.seen)
        first, counts = coarsened(other.first, other.counts, self.exponent - other.exponent)
        at = first - self.first
        self.counts[at : at + counts.size] += counts

    def edges(self) -> npt.NDArray[np.float64]:
        """The ends of the bins [len(counts) + 1], ascending, cut to the extremes (and 0)."""
        return cut_edges(self.first, self.counts.size, self.width, self.seen)

    def outside(self, lo: float, hi: float) -> float:
        """The share of values outside [lo, hi]; a bin that only reaches over an end counts as inside."""
        edges = self.edges()
        out = (edges[1:] <= lo) & (edges[:-1] < lo) | (edges[:-1] >= hi) & (edges[1:] > hi)
        return float(self.counts[out].sum()) / max(self.seen.n_values, 1)

    def state(self) -> State:
        """As JSON: the counts as base64 of zlib of little-endian int64."""
        packed = zlib.compress(self.counts.astype("<i8").tobytes(), 6)
        return self.seen.state() | {
            "exponent": self.exponent,
            "first": self.first,
            "n_bins": self.counts.size,
            "counts": base64.b64encode(packed).decode("ascii"),
        }

    @classmethod
    def from_state(cls, state: State) -> Self:
        """From JSON; CalibrationError if it does not hold together."""
        new = cls()
        new.seen = Extremes.from_state(state)
        new.exponent, new.first, n_bins = int(state["exponent"]), int(state["first"]), int(state["n_bins"])
        if not 0 < n_bins <= MAX_BINS:
            raise CalibrationError(f"a histogram of {n_bins} bins is not one of ours (at most {MAX_BINS})")
        try:
            # One byte more than there should be shows an oversized blob without unpacking all of it.
            packed = base64.b64decode(state["counts"], validate=True)
            raw = zlib.decompressobj().decompress(packed, n_bins * 8 + 1)
        except (binascii.Error, zlib.error, TypeError, ValueError) as e:
            raise CalibrationError(f"the counts of a histogram cannot be unpacked: {e}") from e
        if len(raw) != n_bins * 8:
            raise CalibrationError(f"the counts of a histogram are {len(raw)} bytes, not {n_bins * 8}")
        new.counts = np.frombuffer(raw, dtype="<i8").astype(np.int64)
        if int(new.counts.sum()) != new.seen.n_values or int(new.counts.min()) < 0:
            raise CalibrationError("the counts of a histogram do not add up to its number of values")
        return new

    def _make_room(self, lo: float, hi: float) -> None:
        """Coarsen and widen until the bins hold ``lo``, ``hi``, 0 and all that was seen."""
        lo, hi = min(lo, self.seen.lo, 0.0), max(hi, self.seen.hi, 0.0)
        exponent = _exponent(lo, hi)
        if exponent > self.exponent:
            self.first, self.counts = coarsened(self.first, self.counts, exponent - self.exponent)
            self.exponent = exponent
        first, last = int(math.ldexp(lo, -self.exponent)), int(math.ldexp(hi, -self.exponent))
        if first < self.first or last >= self.first + self.counts.size:
            counts = np.zeros(last - first + 1, dtype=np.int64)
            counts[self.first - first :][: self.counts.size] = self.counts
            self.first, self.counts = first, counts


def coarsened(first: int, counts: npt.NDArray[np.int64], doublings: int) -> tuple[int, npt.NDArray[np.int64]]:
    """The same counts in bins 2**doublings as wide: index of the first bin, counts."""
    if doublings == 0:
        return first, counts
    index = np.arange(first, first + counts.size)
    index = np.sign(index) * (np.abs(index) >> min(doublings, 62))
    wider = np.zeros(int(index[-1] - index[0]) + 1, dtype=np.int64)
    np.add.at(wider, index - index[0], counts)
    return int(index[0]), wider


def cut_edges(first: int, n_bins: int, width: float, seen: Extremes) -> npt.NDArray[np.float64]:
    """The ends of the bins first..first + n_bins - 1 [n_bins + 1], cut to what was seen and 0."""
    left, right = np.arange(first - 1, 0), np.arange(1, first + n_bins + 1)
    edges = np.concatenate([left, right]) * width
    return np.clip(edges, min(seen.lo, 0.0), max(seen.hi, 0.0))


def _exponent(lo: float, hi: float) -> int:
    """The smallest e such that MAX_BINS bins of width 2**e reach from ``lo`` <= 0 to ``hi`` >= 0."""
    if lo == hi:
        return MIN_EXPONENT
    exponent = max(math.frexp((hi - lo) / MAX_BINS)[1] - 1, MIN_EXPONENT)
    while int(math.ldexp(hi, -exponent)) - int(math.ldexp(lo, -exponent)) + 1 > MAX_BINS:
        exponent += 1
    return exponent


def count_bins(x: Float32Array, inverse_width: float, first: int, counts: npt.NDArray[np.int64]) -> int:
    """``counts[trunc(x * inverse_width) - first] += 1`` for every x that has such a bin; how many have none.

    The definition of the native function of the same name, and what runs where that is not built.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        bins = np.trunc(x * np.float32(inverse_width)) - np.float32(first)
    counted = (bins >= 0) & (bins < counts.size)
    counts += np.bincount(bins[counted].astype(np.int64), minlength=counts.size)
    return x.size - int(counted.sum())


try:
    from wia_quant._native import count_bins as fast_count_bins
except ImportError:
    fast_count_bins = count_bins
