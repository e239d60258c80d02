# SPDX-License-Identifier: Apache-2.0
"""MobileNetV2 (Sandler et al. 2018), width 1, with weights from a seed: timing only."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.models.base import Feeds, Model
from benchmarks.models.pictures import smooth
from benchmarks.models.torch_export import export

#: Expansion, channels, repeats, stride; table 2 of the paper.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution and normalization."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    )


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow; added to the input where the shapes agree."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        layers = [conv(inputs, width), nn.ReLU6()] if expansion > 1 else []
        self.body = nn.Sequential(*layers, conv(width, width, 3, stride, width), nn.ReLU6(), conv(width, outputs))
        self.add = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.add else self.body(x)


def mobilenet_v2() -> nn.Module:
    """[1, 3, 224, 224] to [1, 1000]."""
    layers: list[nn.Module] = [conv(3, 32, 3, 2), nn.ReLU6()]
    inputs = 32
    for expansion, outputs, count, stride in STAGES:
        for index in range(count):
            layers.append(InvertedResidual(inputs, outputs, 1 if index else stride, expansion))
            inputs = outputs
    head = [conv(inputs, 1280), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, *head)


def write(path: Path) -> None:
    """Opset 17."""
    export(path, mobilenet_v2, (torch.zeros(1, 3, 224, 224),), ["image"])


def samples(n: int = 16, seed: int = 0) -> list[Feeds]:
    """Coloured clouds."""
    return [{"image": x} for x in smooth(n, 224, seed)]


MODEL = Model("mobilenet_v2", write, samples, timing=lambda: samples(1, 1)[0])
