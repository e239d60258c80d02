# SPDX-License-Identifier: Apache-2.0
"""PP-OCRv4 recognition: a convolutional net with attention on top that reads one line of text."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from PIL import Image

from benchmarks.models.base import Feeds, Model, Outputs, package_folder, stored
from benchmarks.models.pictures import UInt8Array
from benchmarks.models.texts import lines

HEIGHT, NARROWEST = 48, 320
N_LINES = 200


def source() -> Path:
    """The file of the rapidocr-onnxruntime package."""
    return package_folder("rapidocr_onnxruntime") / "models" / "ch_PP-OCRv4_rec_infer.onnx"


def write(path: Path) -> None:
    """The package's own file, untouched."""
    shutil.copyfile(source(), path)


def feeds(line: UInt8Array) -> Feeds:
    """BGR [1, 3, 48, width], (x / 255 - 0.5) / 0.5, short lines padded with zeros to 320."""
    height, width = line.shape[:2]
    width = max(1, round(width * HEIGHT / height))
    image = Image.fromarray(line).resize((width, HEIGHT), Image.Resampling.BILINEAR)
    x = (np.asarray(image, dtype=np.float32)[:, :, ::-1].transpose(2, 0, 1) / 255.0 - 0.5) / 0.5
    padded = np.zeros((1, 3, HEIGHT, max(width, NARROWEST)), dtype=np.float32)
    padded[0, :, :, :width] = x
    return {"x": padded}


@cache
def calibration() -> Sequence[Feeds]:
    """A hundred lines that evaluation does not use."""
    return stored("ppocr_rec.calibration", lambda: [feeds(line) for _, line in lines(100, skip=N_LINES)])


@cache
def evaluation() -> Sequence[Feeds]:
    """Two hundred lines whose text is known."""
    return stored("ppocr_rec.evaluation", lambda: [feeds(line) for _, line in lines(N_LINES)])


@cache
def alphabet() -> tuple[str, ...]:
    """What each output index means; 0 is CTC's blank."""
    model = onnx.load(source(), load_external_data=False)
    characters = next(p.value for p in model.metadata_props if p.key == "character").splitlines()
    return ("", *characters, " ")


def read(output: Outputs) -> str:
    """CTC: the best index at each step, repeats and blanks removed, no spaces around."""
    best = np.asarray(output[0])[0].argmax(1)
    kept = best[np.concatenate([[True], best[1:] != best[:-1]])]
    return "".join(alphabet()[i] for i in kept).strip()


def metrics(reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> dict[str, float]:
    """Character error rate against the drawn text, lines without error, lines read as by the float model."""
    texts = [text for text, _ in lines(len(candidate))]
    readings = [read(output) for output in candidate]
    errors = sum(edits(reading, text) for reading, text in zip(readings, texts, strict=True))
    return {
        "character_error_rate": errors / sum(map(len, texts)),
        "exact_lines": float(np.mean([a == b for a, b in zip(readings, texts, strict=True)])),
        "agreement": float(np.mean([a == read(b) for a, b in zip(readings, reference, strict=True)])),
    }


def edits(a: str, b: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            previous, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, previous + (x != y))
    return row[-1]


def timing() -> Feeds:
    """[1, 3, 48, 320], the width the package pads to."""
    return {"x": np.ascontiguousarray(evaluation()[0]["x"][:, :, :, :NARROWEST])}


MODEL = Model("ppocr_rec", write, calibration, timing, evaluation, metrics)
