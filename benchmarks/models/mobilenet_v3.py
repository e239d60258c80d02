# SPDX-License-Identifier: Apache-2.0
"""MobileNetV3-Large (Howard et al. 2019) with weights from a seed: timing only."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.models.base import Feeds, Model
from benchmarks.models.mobilenet_v2 import conv
from benchmarks.models.pictures import smooth
from benchmarks.models.torch_export import export

#: Kernel, width, channels, squeeze, hard swish, stride; table 1 of the paper.
BLOCKS = (
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)  # fmt: skip


class Squeeze(nn.Module):
    """Each channel scaled by what all channels' means say."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        narrow = max(8, (channels // 4 + 4) // 8 * 8)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, narrow, 1),
            nn.ReLU(),
            nn.Conv2d(narrow, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


class Block(nn.Module):
    """Widen, filter each channel, squeeze, narrow; added to the input where the shapes agree."""

    def __init__(self, inputs: int, kernel: int, width: int, outputs: int, squeeze: bool, hard: bool, stride: int):
        super().__init__()
        activation = nn.Hardswish if hard else nn.ReLU
        layers = [conv(inputs, width), activation()] if width != inputs else []
        layers += [conv(width, width, kernel, stride, width), activation()]
        layers += [Squeeze(width)] if squeeze else []
        self.body = nn.Sequential(*layers, conv(width, outputs))
        self.add = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.add else self.body(x)


def mobilenet_v3() -> nn.Module:
    """[1, 3, 224, 224] to [1, 1000]."""
    layers: list[nn.Module] = [conv(3, 16, 3, 2), nn.Hardswish()]
    inputs = 16
    for kernel, width, outputs, squeeze, hard, stride in BLOCKS:
        layers.append(Block(inputs, kernel, width, outputs, squeeze, hard, stride))
        inputs = outputs
    head = [conv(inputs, 960), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(960, 1280)]
    return nn.Sequential(*layers, *head, nn.Hardswish(), nn.Linear(1280, 1000))


def write(path: Path) -> None:
    """Opset 17."""
    export(path, mobilenet_v3, (torch.zeros(1, 3, 224, 224),), ["image"])


def samples(n: int = 16, seed: int = 0) -> list[Feeds]:
    """Coloured clouds."""
    return [{"image": x} for x in smooth(n, 224, seed)]


MODEL = Model("mobilenet_v3_large", write, samples, timing=lambda: samples(1, 1)[0])
