# SPDX-License-Identifier: Apache-2.0
"""Semantic segmentation: mean intersection over union.

Target: class of each pixel [H, W], 255 ignored; as numbers, or a .png or .npy that the labels name.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from wia_quant.errors import DataError
from wia_quant.evaluators.base import Sample, Scored, Scores, only_output
from wia_quant.evaluators.metric import Metric, mean, proportion

IGNORED = 255


class Segmentation:
    """Scores [classes, H, W] (or [H, W] of class indices) by the confusion of pixels."""

    def __init__(self) -> None:
        self._confusion: npt.NDArray[np.int64] = np.zeros((0, 0), np.int64)
        self._scores = Scores()

    def score(self, sample: Sample) -> Scored:
        y = only_output(sample)
        predicted = (y.argmax(axis=0) if y.ndim == 3 else y.reshape(y.shape[-2:])).astype(np.int64)
        target = None if sample.target is None else _mask(sample.target)
        if target is None or target.shape != predicted.shape:
            found = "none" if target is None else f"{list(target.shape)}"
            raise DataError(f"sample '{sample.name}': a mask {list(predicted.shape)} expected, {found} found")
        kept = target != IGNORED
        n = max(y.shape[0] if y.ndim == 3 else 0, int(predicted.max(initial=0)) + 1)
        if kept.any():
            n = max(n, int(target[kept].max()) + 1)
        one = np.bincount(target[kept].astype(np.int64) * n + predicted[kept], minlength=n * n).reshape(n, n)
        scores = {"miou": _mean_iou(one), "pixel_accuracy": float(np.trace(one) / max(one.sum(), 1))}
        cells = [[int(t), int(p), int(one[t, p])] for t, p in np.argwhere(one)]
        return Scored(scores, f"{scores['miou']:.3f}", {"classes": n, "confusion": cells})

    def add(self, scored: Scored) -> None:
        grow = max(0, scored.kept["classes"] - self._confusion.shape[0])
        self._confusion = np.pad(self._confusion, ((0, grow), (0, grow)))
        for target, predicted, n_pixels in scored.kept["confusion"]:
            self._confusion[target, predicted] += n_pixels
        self._scores.add(scored.scores)

    def metrics(self) -> tuple[Metric, ...]:
        spread = mean("miou", self._scores.by_name.get("miou", []), unit="%", scale=100)
        value = 100 * _mean_iou(self._confusion)
        # The set's mIoU is not the mean of the pictures': its interval is the pictures' spread around it.
        lo, hi = value + spread.lo - spread.value, value + spread.hi - spread.value
        miou = Metric("miou", value, lo, hi, spread.n, "%", method=spread.method)
        pixels = proportion("pixel_accuracy", int(np.trace(self._confusion)), int(self._confusion.sum()))
        return (miou, pixels)

    def details(self) -> Mapping[str, object]:
        return {"iou": _iou(self._confusion).tolist()}


def _mask(target: object) -> npt.NDArray[Any]:
    """Class indices [H, W]; of a picture its pixels as they are stored, a palette's indices."""
    if isinstance(target, Path):
        if target.suffix == ".npy":
            return np.asarray(np.load(target))
        with Image.open(target) as picture:
            return np.asarray(picture)
    return np.asarray(target)


def _iou(confusion: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """IoU of each class that occurs on either side; NaN-free: classes that never occur are left out."""
    both = np.diag(confusion).astype(np.float64)
    union = confusion.sum(0) + confusion.sum(1) - np.diag(confusion)
    return np.asarray(both[union > 0] / union[union > 0], np.float64)


def _mean_iou(confusion: npt.NDArray[np.int64]) -> float:
    iou = _iou(confusion)
    return float(iou.mean()) if iou.size else float("nan")
