# SPDX-License-Identifier: Apache-2.0
"""Photographs: Debian's opencv-doc, else pieces of those in Python packages; foolbox's twenty with labels; clouds."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.models.base import OPENCV_DOC, package_folder
from benchmarks.models.base import cache as cache_folder

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}
SMALLEST_SIDE = 160
MANY_COLOURS = 2500  # of the 4,096 pixels of a 64 x 64 thumbnail: photographs have, drawings and screenshots do not

#: Colour photographs in the wheels of packages, which every machine can install.
SHIPPED = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/rocket.jpg"),
    ("sklearn", "datasets/images/china.jpg"),
    ("sklearn", "datasets/images/flower.jpg"),
)

UInt8Array = npt.NDArray[np.uint8]


@cache
def photographs() -> tuple[Path, ...]:
    """About 200 different photographs of opencv-doc, in the order of their names; without it, 100 pieces of others."""
    if not OPENCV_DOC.is_dir():
        return pieces()
    seen: set[str] = set()
    found = []
    for path in sorted(OPENCV_DOC.rglob("*")):
        if path.suffix.lower() in SUFFIXES and path.is_file() and _is_photograph(path):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            if digest not in seen:
                seen.add(digest)
                found.append(path)
    return tuple(found)


def pieces() -> tuple[Path, ...]:
    """Every part of the photographs of scikit-image and scikit-learn, half as wide and high as the whole, in steps.

    Neighbours in the list are of different photographs.
    """
    found = []
    for i, (left, top) in enumerate((x / 6, y / 6) for y in range(4) for x in range(4)):
        for package, name in SHIPPED:
            path = cache_folder() / "pieces" / f"{i:02}-{Path(name).stem}.png"
            if not path.exists():
                image = Image.open(package_folder(package) / name).convert("RGB")
                width, height = image.size
                box = (left * width, top * height, left * width + width / 2, top * height + height / 2)
                path.parent.mkdir(exist_ok=True)
                partial = path.with_suffix(".partial")
                image.crop(tuple(round(v) for v in box)).save(partial, "PNG")
                partial.rename(path)
            found.append(path)
    return tuple(found)


def labelled() -> list[tuple[Path, int]]:
    """Foolbox's twenty ImageNet photographs with their class indices."""
    files = sorted((package_folder("foolbox") / "data").glob("imagenet_*.jpg"))
    return [(path, int(path.stem.rsplit("_", 1)[1])) for path in files]


def resized_crop(path: Path, resize: int, crop: int) -> UInt8Array:
    """RGB [crop, crop, 3]: the shortest side scaled to ``resize``, then the centre."""
    image = Image.open(path).convert("RGB")
    scale = resize / min(image.size)
    width, height = (max(round(side * scale), crop) for side in image.size)
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    left, top = (width - crop) // 2, (height - crop) // 2
    return np.asarray(image.crop((left, top, left + crop, top + crop)), dtype=np.uint8)


def smooth(n: int, size: int, seed: int) -> list[npt.NDArray[np.float32]]:
    """``n`` pictures [1, 3, size, size] of coloured clouds, about mean 0 and deviation 1; for timing only."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        small = rng.integers(0, 256, (size // 16 + 1, size // 16 + 1, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((size, size), Image.Resampling.BICUBIC)
        x = (np.asarray(image, dtype=np.float32) - 127.0) / 64.0
        made.append(np.ascontiguousarray(x.transpose(2, 0, 1)[None]))
    return made


def _is_photograph(path: Path) -> bool:
    image = Image.open(path)
    if min(image.size) < SMALLEST_SIDE:
        return False
    thumbnail = np.asarray(image.convert("RGB").resize((64, 64)))
    return len(np.unique(thumbnail.reshape(-1, 3), axis=0)) > MANY_COLOURS
