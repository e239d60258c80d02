# SPDX-License-Identifier: Apache-2.0
"""The demo's pictures: lines of text drawn with Pillow's own font, each different in size, colour and place."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

from PIL import Image, ImageDraw, ImageFont

#: What the recognizer reads: width and height of a picture, in pixels.
SIZE: Final = (320, 48)

#: Halves of a line; those to read differ from those calibrated on.
BEGINNINGS: Final = (
    "Quick fox",
    "Invoice",
    "Platform",
    "Dr. Okafor",
    "Boxing",
    "Room West",
    "Jazz band",
    "Monday",
    "Wizards",
    "Harbour",
    "Gate B",
    "Recipe",
)
ENDINGS: Final = (
    "No. 4071",
    "at 6:45",
    "quickly",
    "$18.30",
    "(never)",
    "12 eggs",
    "& maps",
    "+3 points",
    "27 May",
    "50%",
    "keeps 9",
    "vexed me",
)


def draw_lines(folder: Path, count: int, seed: int) -> dict[str, str]:
    """Draw ``count`` pictures line-NNN.png into ``folder``; file name -> the text in it.

    The same seed gives the same pictures. At most 144 differ in text.
    """
    rng = random.Random(seed)
    texts = [f"{a} {b}" for a in BEGINNINGS for b in ENDINGS]
    rng.shuffle(texts)
    truth = {}
    folder.mkdir(parents=True)
    for index in range(count):
        name, text = f"line-{index:03}.png", texts[index % len(texts)]
        _draw(text, rng).save(folder / name)
        truth[name] = text
    return truth


def _draw(text: str, rng: random.Random) -> Image.Image:
    width, height = SIZE
    paper = tuple(rng.randint(200, 255) for _ in range(3))
    ink = tuple(rng.randint(0, 90) for _ in range(3))
    picture = Image.new("RGB", SIZE, paper)
    draw = ImageDraw.Draw(picture)
    size = rng.uniform(24, 34)
    left, top, right, bottom = draw.textbbox((0, 0), text, font=ImageFont.load_default(size))
    # A line that is too long gets a smaller font, four pixels free on both sides.
    size = min(size, size * (width - 8) / (right - left))
    font = ImageFont.load_default(size)
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    x = 4 - left + rng.uniform(0, 1) * max(width - 8 - (right - left), 0)
    y = (height - (bottom - top)) / 2 - top + rng.uniform(-2, 2)
    draw.text((x, y), text, font=font, fill=ink)
    return picture
