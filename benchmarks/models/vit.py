# SPDX-License-Identifier: Apache-2.0
"""Vision transformers (Dosovitskiy et al. 2020), tiny and small, weights from a seed: timing only."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.models.base import Feeds, Model
from benchmarks.models.pictures import smooth
from benchmarks.models.torch_export import export

LAYERS, PATCH, SIZE = 12, 16, 224


class Layer(nn.Module):
    """Attention from one joint projection, then two linear layers; normalized before each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
        )
        self.last_norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, tokens, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(n, tokens, 3, self.heads, self.size).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        weights = ((query * self.size**-0.5) @ key.transpose(-2, -1)).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(n, tokens, width))
        return x + self.narrow(nn.functional.gelu(self.wide(self.last_norm(x))))


class Vit(nn.Module):
    """[1, 3, 224, 224] to [1, 1000]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (SIZE // PATCH) ** 2 + 1, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


def write(path: Path, width: int, heads: int) -> None:
    """Opset 17."""
    export(path, lambda: Vit(width, heads), (torch.zeros(1, 3, SIZE, SIZE),), ["image"])


def samples(n: int = 16, seed: int = 0) -> list[Feeds]:
    """Coloured clouds."""
    return [{"image": x} for x in smooth(n, SIZE, seed)]


def model(name: str, width: int, heads: int) -> Model:
    """One of the family."""
    return Model(name, partial(write, width=width, heads=heads), samples, timing=lambda: samples(1, 1)[0])


MODELS = (model("vit_tiny", 192, 3), model("vit_small", 384, 6))
