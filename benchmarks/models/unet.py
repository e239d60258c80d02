# SPDX-License-Identifier: Apache-2.0
"""A small U-Net (Ronneberger et al. 2015) with transposed convolutions, weights from a seed: timing only."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

from benchmarks.models.base import Feeds, Model
from benchmarks.models.pictures import smooth
from benchmarks.models.torch_export import export

SIZE = 128
WIDTHS = (16, 32, 64, 128)


def twice(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3 x 3 convolutions, each normalized and rectified."""
    layers: list[nn.Module] = []
    for a in (inputs, outputs):
        layers += [nn.Conv2d(a, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """[1, 3, 128, 128] to [1, 2, 128, 128]."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(twice(a, b) for a, b in zip((3, *WIDTHS), WIDTHS, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairwise(WIDTHS))
        self.join = nn.ModuleList(twice(2 * a, a) for a in WIDTHS[:-1])
        self.pool, self.head = nn.MaxPool2d(2), nn.Conv2d(WIDTHS[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = self.pool(x)
        x = kept.pop()
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(torch.cat((kept.pop(), up(x)), 1))
        return self.head(x)


def write(path: Path) -> None:
    """Opset 17."""
    export(path, UNet, (torch.zeros(1, 3, SIZE, SIZE),), ["image"])


def samples(n: int = 16, seed: int = 0) -> list[Feeds]:
    """Coloured clouds."""
    return [{"image": x} for x in smooth(n, SIZE, seed)]


MODEL = Model("unet", write, samples, timing=lambda: samples(1, 1)[0])
