# SPDX-License-Identifier: Apache-2.0
"""Report on two real models and take pictures of the pages: ``PYTHONPATH=. python docs/make_report_pictures.py``.

Needs Chromium and what benchmarks/requirements.txt lists; the data is what benchmarks/models measures on.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image

import wia_quant
from benchmarks.models import TRAINED
from benchmarks.models.pictures import labelled, photographs
from benchmarks.models.texts import lines
from tests.browser import chromium

DOCS = Path(__file__).parent
WIDTH, HEIGHT = 1080, 1240
#: Colours of the PNG: a page has few.
COLOURS = 64


def photographs_with_labels(folder: Path) -> tuple[Path, Path, Path]:
    """Pictures to calibrate on, pictures to measure on, and their classes."""
    for name in ("calibration", "data"):
        (folder / name).mkdir()
    for i, path in enumerate(photographs()[0::2]):
        shutil.copy(path, folder / "calibration" / f"{i:03}{path.suffix}")
    for path, _ in labelled():
        shutil.copy(path, folder / "data")
    (folder / "labels.json").write_text(json.dumps({path.name: label for path, label in labelled()}))
    return folder / "calibration", folder / "data", folder / "labels.json"


def lines_with_texts(folder: Path) -> tuple[Path, Path, Path]:
    """As above: rendered lines, and what they say."""
    n = 40
    for name in ("calibration", "data"):
        (folder / name).mkdir()
    texts = {}
    for i, (text, pixels) in enumerate(lines(2 * n)):
        Image.fromarray(pixels).save(folder / ("calibration" if i < n else "data") / f"line-{i:03}.png")
        texts[f"line-{i:03}.png"] = text
    (folder / "labels.json").write_text(json.dumps(texts))
    return folder / "calibration", folder / "data", folder / "labels.json"


#: Model of the zoo -> its data, preprocessing, task.
CASES = {
    "efficientnet_lite0": (photographs_with_labels, "lite0", "classification"),
    "ppocr_rec": (lines_with_texts, {"preset": "ppocr_rec", "size": [48, 480]}, "ocr"),
}


def main() -> int:
    """Writes docs/report-*.png of the models named on the command line, or of all."""
    browser = chromium.find()
    if browser is None:
        print("no browser; apt-get install chromium, or set WIA_CHROMIUM", file=sys.stderr)
        return 1
    for name in sys.argv[1:] or CASES:
        make, preprocess, task = CASES[name]
        reference = TRAINED[name].path()
        with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
            folder = Path()  # the page names its files as they were given
            calibration, data, labels = make(folder)
            quantized = folder / f"{name}.wia.onnx"
            wia_quant.quantize(reference, calibration, preprocess=preprocess).save(quantized)
            found = wia_quant.report(quantized, reference, data, labels=labels, task=task)
            page = found.save(folder / "report")[0].resolve()
            seen = chromium.look(browser, page)
            assert not seen.console, seen.console
            assert not seen.requests, seen.requests
            out = DOCS / f"report-{name.replace('_', '-')}.png"
            chromium.screenshot(browser, page, out, WIDTH, HEIGHT)
            with Image.open(out) as picture:
                picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(out, optimize=True)
            print(found.to_markdown())
            print(f"{out}: {out.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
