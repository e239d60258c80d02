# SPDX-License-Identifier: Apache-2.0
"""English text that every Python carries, lines of it drawn as pictures, scored sentences where present."""

from __future__ import annotations

import io
import pydoc_data.topics
import re
import tarfile
from functools import cache as remember

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.models.base import FONTS, cache, package_folder

SCORED = "vaderSentiment-3.3.2.tar.gz"

UInt8Array = npt.NDArray[np.uint8]


@remember
def sentences() -> tuple[str, ...]:
    """About two thousand sentences of 6 to 40 words from Python's own reference, always in the same order."""
    text = "\n\n".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics))
    paragraphs = [" ".join(p.split()) for p in re.split(r"\n\s*\n", text) if re.match(r"[A-Z]", p.strip())]
    found = [s.strip() for p in paragraphs for s in re.split(r"(?<=[.?!]) (?=[A-Z])", p)]
    found = [s for s in dict.fromkeys(found) if 6 <= len(s.split()) <= 40 and s.isascii() and "**" not in s]
    np.random.default_rng(0).shuffle(found)
    return tuple(found)


def lines(n: int, skip: int = 0) -> list[tuple[str, UInt8Array]]:
    """``n`` lines of 2 to 7 words, each with its picture, RGB [height, width, 3], in a font of its own."""
    fonts = sorted(FONTS.glob("*.ttf")) or sorted(
        (package_folder("matplotlib") / "mpl-data/fonts/ttf").glob("DejaVuSans*.ttf")
    )
    made = []
    for index in range(skip, skip + n):
        rng = np.random.default_rng(index)
        words = sentences()[index].split()
        text = " ".join(words[: int(rng.integers(2, 8))])
        font = ImageFont.truetype(str(fonts[int(rng.integers(len(fonts)))]), int(rng.integers(14, 40)))
        made.append((text, _drawn(text, font, rng)))
    return made


def pages(n: int, skip: int = 0) -> list[UInt8Array]:
    """``n`` pictures of 640 x 480 with lines of text at random places, RGB [480, 640, 3]."""
    made = []
    for page in range(skip, skip + n):
        rng = np.random.default_rng(page)
        image = Image.new("RGB", (640, 480), tuple(int(v) for v in rng.integers(150, 256, 3)))
        y = int(rng.integers(5, 60))
        for _, line in lines(12, skip=1000 + page * 12):
            if y + line.shape[0] < 480:
                image.paste(Image.fromarray(line), (int(rng.integers(0, max(1, 600 - line.shape[1]))), y))
            y += line.shape[0] + int(rng.integers(2, 50))
        made.append(np.asarray(image))
    return made


def scored_sentences() -> list[tuple[str, float]]:
    """Sentences with the mean sentiment that people gave them, -4 to 4; [] without the archive in the cache.

    pip download --no-deps --no-binary vadersentiment vadersentiment==3.3.2 -d ~/.cache/wia-quant-bench
    """
    archive = cache() / SCORED
    if not archive.exists():
        return []
    with tarfile.open(archive) as outer:
        inner = outer.extractfile("vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz")
        assert inner is not None
        data = inner.read()
    found = []
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for name in ("movieReviewSnippets", "amazonReviewSnippets"):
            member = tar.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
            assert member is not None
            for row in member.read().decode("utf-8", "replace").splitlines():
                _, score, text = row.split("\t", 2)
                found.append((text.strip(), float(score)))
    return found


def _drawn(text: str, font: ImageFont.FreeTypeFont, rng: np.random.Generator) -> UInt8Array:
    left, top, right, bottom = font.getbbox(text)
    margin = int(rng.integers(3, 9))
    size = (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin)
    paper, ink = rng.integers(170, 256, 3), rng.integers(0, 90, 3)
    if rng.random() < 0.3:
        paper, ink = ink, paper
    image = Image.new("RGB", size, tuple(int(v) for v in paper))
    ImageDraw.Draw(image).text((margin - left, margin - top), text, font=font, fill=tuple(int(v) for v in ink))
    if rng.random() < 0.3:
        image = image.filter(ImageFilter.GaussianBlur(0.7))
    noise = rng.normal(0, rng.uniform(0, 12), (size[1], size[0], 3))
    return np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8)
