# SPDX-License-Identifier: Apache-2.0
"""Small nets, one a construction that users train, each with an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812  # as every torch user writes it
from torch import nn


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.conv1, self.bn1 = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn(self.stem(x)))
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        x = F.relu(x + y)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class Mobile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(3, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU6())
        self.depthwise = nn.Sequential(
            nn.Conv2d(12, 12, 3, padding=1, groups=12, bias=False), nn.BatchNorm2d(12), nn.ReLU6()
        )
        self.project = nn.Sequential(nn.Conv2d(12, 3, 1, bias=False), nn.BatchNorm2d(3))
        self.head = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x + self.project(self.depthwise(self.expand(x))))


class Branches(nn.Module):
    """SiLU, max pool, concat and a transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, padding=1)
        self.b = nn.Conv2d(3, 8, 5, padding=2)
        self.act = nn.SiLU()
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2, groups=2, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([self.act(self.a(x)), self.act(self.b(x))], 1)
        return self.last(F.relu(self.bn(self.up(self.pool(y)))))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.softmax(torch.matmul(self.q(x), self.k(x).transpose(1, 2)) / 4.0, -1)
        return self.norm(x + self.out(torch.matmul(scores, self.v(x))))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(300, 16)
        self.place = nn.Parameter(torch.randn(6, 16) * 0.1)
        self.mix = nn.Parameter(torch.randn(16, 16) * 0.2)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids) + self.place
        return self.head(torch.relu(x @ self.mix).mean(1))


class Two(nn.Module):
    """Two inputs, a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(8, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.left(left) * torch.sigmoid(self.right(right)))
        return {"logits": self.head(hidden), "hidden": hidden}


Batch = tuple[torch.Tensor, ...]


def picture(n: int = 4) -> Batch:
    return (torch.randn(n, 3, 16, 16),)


NETS: Final[Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]]] = MappingProxyType(
    {
        "residual": (Residual, picture),
        "mobile": (Mobile, picture),
        "branches": (Branches, picture),
        "attention": (Attention, lambda: (torch.randn(4, 6, 16),)),
        "words": (Words, lambda: (torch.randint(0, 300, (4, 6)),)),
        "two": (Two, lambda: (torch.randn(4, 8), torch.randn(4, 8))),
    }
)


def outputs(value: Any) -> list[torch.Tensor]:
    return list(value.values()) if isinstance(value, dict) else [value]


def train(model: nn.Module, batches: list[Batch], rate: float = 0.01) -> None:
    """Some steps towards outputs of 1."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), rate)
    for batch in batches:
        loss = torch.stack([(y - 1).square().mean() for y in outputs(model(*batch))]).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
