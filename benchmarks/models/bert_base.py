# SPDX-License-Identifier: Apache-2.0
"""A BERT-base encoder, 128 tokens, weights from a seed: timing only."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.models.base import Feeds, Model
from benchmarks.models.torch_export import export

TOKENS, WIDTH, HEADS, LAYERS, VOCABULARY = 128, 768, 12, 12, 30522


class Attention(nn.Module):
    """Scaled dot products over ``heads`` heads, with a mask that is added to the scores."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.shape[0], x.shape[1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.size) + mask
        mixed = scores.softmax(-1) @ value
        return self.out(mixed.permute(0, 2, 1, 3).reshape(x.shape))


class Layer(nn.Module):
    """Attention and two linear layers with Gelu, each normalized after the addition."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = Attention(WIDTH, HEADS), nn.LayerNorm(WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.last_norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(x + self.attention(x, mask))
        return self.last_norm(x + self.narrow(nn.functional.gelu(self.wide(x))))


class Bert(nn.Module):
    """int64 [1, 128] tokens and mask to [1, 128, 768]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(512, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(input_ids) + self.places.weight[: input_ids.shape[1]])
        mask = (1.0 - attention_mask[:, None, None, :].float()) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        return x


def write(path: Path) -> None:
    """Opset 17."""
    ids = torch.ones(1, TOKENS, dtype=torch.int64)
    export(path, Bert, (ids, ids), ["input_ids", "attention_mask"])


def samples(n: int = 8, seed: int = 0) -> list[Feeds]:
    """Random tokens, all of them attended to."""
    rng = np.random.default_rng(seed)
    return [
        {
            "input_ids": rng.integers(0, VOCABULARY, (1, TOKENS), dtype=np.int64),
            "attention_mask": np.ones((1, TOKENS), dtype=np.int64),
        }
        for _ in range(n)
    ]


MODEL = Model("bert_base", write, samples, timing=lambda: samples(1, 1)[0])
