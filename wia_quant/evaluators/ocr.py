# SPDX-License-Identifier: Apache-2.0
"""Text recognition: character and word error rate of a CTC output. Target: the text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from wia_quant.errors import DataError
from wia_quant.evaluators.base import Sample, Scored, Scores, only_output
from wia_quant.evaluators.metric import Metric, proportion, ratio


class Ocr:
    """Decodes [steps, classes] greedily: repeats collapsed, class 0 is the blank, class i + 1 is charset[i].

    Without a charset the text is the class indices, which suits agreement with a float model.
    """

    def __init__(self, charset: Sequence[str] = ()) -> None:
        self._charset = tuple(charset)
        self._scores = Scores()

    @staticmethod
    def for_model(metadata: Mapping[str, str]) -> Ocr:
        """With the charset that the model carries, as PaddleOCR's do: ``character``, one a line, then the space."""
        text = metadata.get("character", "")
        return Ocr([*text.split("\n"), " "] if text else ())

    def score(self, sample: Sample) -> Scored:
        text = self.decode(np.asarray(only_output(sample)))
        if not isinstance(sample.target, str | int):
            raise DataError(f"sample '{sample.name}': label {sample.target!r} is not a text; check --labels")
        target = str(sample.target)  # a line of digits is read as a number
        words, target_words = text.split(), target.split()
        scores = {
            "character_errors": float(edit_distance(text, target)),
            "characters": float(len(target)),
            "word_errors": float(edit_distance(words, target_words)),
            "words": float(len(target_words)),
            "exact": float(text == target),
        }
        return Scored(scores, text)

    def add(self, scored: Scored) -> None:
        self._scores.add(scored.scores)

    def decode(self, y: np.ndarray) -> str:
        """The text of one output [steps, classes]."""
        best = y.reshape(-1, y.shape[-1]).argmax(axis=-1)
        kept = best[(best != 0) & np.concatenate(([True], best[1:] != best[:-1]))]
        spell: Callable[[int], str] = (
            (lambda i: self._charset[i - 1] if i - 1 < len(self._charset) else f"<{i}>")
            if self._charset
            else (lambda i: f"<{i}>")
        )
        return "".join(spell(int(i)) for i in kept)

    def metrics(self) -> tuple[Metric, ...]:
        of = self._scores.by_name
        exact = of.get("exact", [])
        return (
            _rate("cer", of.get("character_errors", []), of.get("characters", [])),
            _rate("wer", of.get("word_errors", []), of.get("words", [])),
            proportion("exact_lines", int(sum(exact)), len(exact)),
        )

    def details(self) -> Mapping[str, object]:
        return {}


def edit_distance(a: Sequence[object], b: Sequence[object]) -> int:
    """Insertions, deletions and substitutions that turn ``a`` into ``b`` (Levenshtein 1966)."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(diagonal + (x != y), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def _rate(name: str, errors: Sequence[float], of: Sequence[float]) -> Metric:
    return ratio(name, np.asarray(errors) * 100, of, unit="%", higher_is_better=False)
