# SPDX-License-Identifier: Apache-2.0
"""PP-OCRv4 detection: a segmentation net that maps where text is."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.models.base import OPENCV_DOC, Feeds, Model, Outputs, package_folder, stored
from benchmarks.models.pictures import UInt8Array, photographs
from benchmarks.models.texts import pages

LONGEST_SIDE = 640
THRESHOLD = 0.3  # of the map, as the package has it
LEAST_TEXT = 0.001  # of a picture's pixels; with fewer, a speck decides its own score


def write(path: Path) -> None:
    """The package's own file, untouched."""
    shutil.copyfile(package_folder("rapidocr_onnxruntime") / "models" / "ch_PP-OCRv4_det_infer.onnx", path)


def feeds(picture: UInt8Array) -> Feeds:
    """BGR [1, 3, 32k, 32k], (x / 255 - 0.5) / 0.5, the longest side at most 640."""
    height, width = picture.shape[:2]
    scale = min(1.0, LONGEST_SIDE / max(height, width))
    size = [max(32, round(side * scale / 32) * 32) for side in (width, height)]
    image = Image.fromarray(picture).resize((size[0], size[1]), Image.Resampling.BILINEAR)
    x = (np.asarray(image, dtype=np.float32)[:, :, ::-1].transpose(2, 0, 1) / 255.0 - 0.5) / 0.5
    return {"x": np.ascontiguousarray(x[None])}


def scenes() -> list[UInt8Array]:
    """opencv-doc's photographs of text in the street, then a handful of others."""
    files = sorted((OPENCV_DOC / "examples" / "text").rglob("scenetext0*.jpg")) + list(photographs()[::20])
    return [np.asarray(Image.open(path).convert("RGB")) for path in files]


@cache
def calibration() -> Sequence[Feeds]:
    """Half of the scenes, sixteen drawn pages."""
    return stored("ppocr_det.calibration", lambda: [feeds(picture) for picture in scenes()[0::2] + pages(16, skip=32)])


@cache
def evaluation() -> Sequence[Feeds]:
    """Sixteen other pages, the other half of the scenes."""
    return stored("ppocr_det.evaluation", lambda: [feeds(picture) for picture in pages(16) + scenes()[1::2]])


def metrics(reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> dict[str, float]:
    """Intersection over union of the thresholded maps: all pixels together, mean and worst picture with text."""
    both, either, each = 0, 0, []
    for wanted, got in zip(reference, candidate, strict=True):
        a, b = np.asarray(wanted[0]) > THRESHOLD, np.asarray(got[0]) > THRESHOLD
        i, u = int(np.sum(a & b)), int(np.sum(a | b))
        both, either = both + i, either + u
        if a.mean() > LEAST_TEXT:
            each.append(i / u)
    return {"map_iou": both / either, "mean_iou": float(np.mean(each)), "worst_iou": float(np.min(each))}


def timing() -> Feeds:
    """[1, 3, 480, 640]."""
    return feeds(pages(1)[0])


MODEL = Model("ppocr_det", write, calibration, timing, evaluation, metrics)
