# SPDX-License-Identifier: Apache-2.0
"""Object detection: COCO's mAP by pycocotools. Target: boxes in the pixels of the model's input.

A target is a list of ``{"bbox": [x, y, width, height], "category_id": c}`` with optional ``"iscrowd"``.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wia_quant.errors import DataError, MissingExtraError
from wia_quant.evaluators.base import Sample, Scored
from wia_quant.evaluators.metric import Metric

#: COCO keeps this many boxes a picture.
MAX_DETECTIONS = 100
#: The twelve numbers of COCOeval.stats that users quote first.
_STATS = {"map": 0, "map50": 1, "map75": 2}


class Detection:
    """Collects boxes, then asks COCOeval once.

    Outputs, recognised by shape: one of [n, 6] (x1, y1, x2, y2, score, class), or three of boxes [n, 4],
    scores [n], classes [n] in this order.
    """

    def __init__(self) -> None:
        self._found: list[dict[str, object]] = []
        self._truth: list[dict[str, object]] = []
        self._n = 0

    def score(self, sample: Sample) -> Scored:
        truth = [_annotation(box) for box in _targets(sample)]
        boxes = _boxes(sample)
        boxes = boxes[np.argsort(-boxes[:, 4], kind="stable")][:MAX_DETECTIONS]
        found = [
            {"category_id": int(category), "bbox": [x1, y1, x2 - x1, y2 - y1], "score": score}
            for x1, y1, x2, y2, score, category in boxes.tolist()
        ]
        answer = " ".join(f"{int(c)}:{s:.2f}" for *_, s, c in boxes[:3].tolist())
        return Scored({"boxes": float(len(boxes))}, answer, {"truth": truth, "found": found})

    def add(self, scored: Scored) -> None:
        self._n += 1
        self._found += [{"image_id": self._n, **box} for box in scored.kept["found"]]
        for box in scored.kept["truth"]:
            self._truth.append({"id": len(self._truth) + 1, "image_id": self._n, **box})

    def metrics(self) -> tuple[Metric, ...]:
        stats = self._stats()
        values = {name: 100 * stats[i] for name, i in _STATS.items()}
        return tuple(Metric(name, value, value, value, self._n, "%") for name, value in values.items())

    def details(self) -> Mapping[str, object]:
        return {"boxes_found": len(self._found), "boxes_labelled": len(self._truth)}

    def _stats(self) -> Sequence[float]:
        try:
            from pycocotools.coco import COCO
            from pycocotools.cocoeval import COCOeval
        except ImportError as error:
            raise MissingExtraError("detection needs pycocotools: pip install 'wia-quant[report]'") from error
        categories = sorted({int(str(b["category_id"])) for b in self._truth + self._found})
        if not self._truth or not self._found:
            return [0.0] * 12 if self._truth else [float("nan")] * 12
        # pycocotools prints its progress; the figures are read from .stats.
        with contextlib.redirect_stdout(io.StringIO()):
            truth: Any = COCO()
            truth.dataset = {
                "info": {},
                "images": [{"id": i + 1} for i in range(self._n)],
                "annotations": self._truth,
                "categories": [{"id": c} for c in categories],
            }
            truth.createIndex()
            judge: Any = COCOeval(truth, truth.loadRes(self._found), "bbox")
            judge.evaluate()
            judge.accumulate()
            judge.summarize()
        return [float(v) for v in judge.stats]


def _annotation(box: Mapping[str, Any]) -> dict[str, object]:
    x, y, w, h = (float(v) for v in box["bbox"])
    return {
        "category_id": int(box["category_id"]),
        "bbox": [x, y, w, h],
        "area": float(box.get("area", w * h)),
        "iscrowd": int(box.get("iscrowd", 0)),
    }


def _targets(sample: Sample) -> Sequence[Mapping[str, Any]]:
    target = sample.target
    if not isinstance(target, list) or not all(isinstance(b, Mapping) and len(b.get("bbox", ())) == 4 for b in target):
        raise DataError(
            f"sample '{sample.name}': label is not a list of {{'bbox': [x, y, width, height], 'category_id': c}};"
            " check --labels"
        )
    return target


def _boxes(sample: Sample) -> npt.NDArray[np.float64]:
    arrays = [np.asarray(y, dtype=np.float64) for y in sample.outputs.values()]
    if len(arrays) == 1 and arrays[0].ndim == 2 and arrays[0].shape[1] == 6:
        return arrays[0]
    if len(arrays) >= 3 and arrays[0].ndim == 2 and arrays[0].shape[1] == 4:
        n = arrays[0].shape[0]
        return np.column_stack([arrays[0], arrays[1].reshape(n), arrays[2].reshape(n)])
    shapes = [list(a.shape) for a in arrays]
    raise DataError(
        f"sample '{sample.name}': outputs {shapes} are not boxes; give [n, 6] (x1, y1, x2, y2, score, class) or"
        " boxes [n, 4], scores [n], classes [n], or your own --task module:function"
    )
