# SPDX-License-Identifier: Apache-2.0
"""ResNet-18 and ResNet-50 (He et al. 2015, stride in the 3 x 3) with weights from a seed: timing only."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.models.base import Feeds, Model
from benchmarks.models.pictures import smooth
from benchmarks.models.torch_export import export


def conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """Convolution and normalization."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Two 3 x 3, or 1 x 1, 3 x 3, 1 x 1; added to the input."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        outputs = width * expansion
        if expansion == 1:
            layers = [conv(inputs, width, 3, stride), nn.ReLU(), conv(width, outputs, 3)]
        else:
            layers = [conv(inputs, width, 1), nn.ReLU(), conv(width, width, 3, stride), nn.ReLU()]
            layers.append(conv(width, outputs, 1))
        self.body = nn.Sequential(*layers)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet(counts: tuple[int, ...], expansion: int) -> nn.Module:
    """[1, 3, 224, 224] to [1, 1000]."""
    layers: list[nn.Module] = [conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, count in enumerate(counts):
        width = 64 << stage
        for index in range(count):
            layers.append(Block(inputs, width, 2 if stage and not index else 1, expansion))
            inputs = width * expansion
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def write(path: Path, counts: tuple[int, ...], expansion: int) -> None:
    """Opset 17."""
    export(path, lambda: resnet(counts, expansion), (torch.zeros(1, 3, 224, 224),), ["image"])


def samples(n: int = 16, seed: int = 0) -> list[Feeds]:
    """Coloured clouds."""
    return [{"image": x} for x in smooth(n, 224, seed)]


def model(name: str, counts: tuple[int, ...], expansion: int) -> Model:
    """One of the family."""
    return Model(name, partial(write, counts=counts, expansion=expansion), samples, timing=lambda: samples(1, 1)[0])


MODELS = (model("resnet18", (2, 2, 2, 2), 1), model("resnet50", (3, 4, 6, 3), 4))
