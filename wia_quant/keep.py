# SPDX-License-Identifier: Apache-2.0
"""The first batches of the data, kept while it streams by, for algorithms that look at it again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from wia_quant.data import Batch, Dataset, Summary

#: What is kept at most: enough for means by channel, little beside a model.
MAX_BYTES: Final = 32 << 20
MAX_BATCHES: Final = 64


class Kept:
    """A dataset that remembers its first batches, also when it can be read only once.

    ``see`` is shown every batch as it goes by.
    """

    def __init__(self, dataset: Dataset, see: Callable[[Batch], None] = lambda batch: None) -> None:
        self._dataset = dataset
        self._see = see
        self._first: list[Batch] = []
        self._full = False

    @property
    def n_batches(self) -> int | None:
        return self._dataset.n_batches

    @property
    def summary(self) -> Summary:
        return self._dataset.summary

    def __iter__(self) -> Iterator[Batch]:
        self._first, self._full = [], False
        n_bytes = 0
        for batch in self._dataset:
            n_bytes += sum(a.nbytes for a in batch.values())
            self._full = self._full or (bool(self._first) and (n_bytes > MAX_BYTES or len(self._first) == MAX_BATCHES))
            if not self._full:
                # Copied: a source may fill the same array again for its next batch.
                arrays = {name: array.copy() for name, array in batch.items()}
                self._first.append(Batch(arrays, batch.source, batch.n_samples))
            self._see(batch)
            yield batch

    def batches(self) -> list[Batch]:
        """The kept batches; reads the data if nobody has yet."""
        if not self._first:
            for _ in islice(iter(self), MAX_BATCHES):
                if self._full:
                    break
        return self._first
