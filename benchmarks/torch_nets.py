# SPDX-License-Identifier: Apache-2.0
"""Small nets of the two families that quantization is judged by: residual, and depthwise with linear bottlenecks."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812  # as every torch user writes it
from torch import nn

#: Channels, repeats, stride of each stage.
RESNET_STAGES = ((16, 2, 1), (32, 2, 2), (64, 2, 2), (128, 2, 2))
#: Expansion, channels, repeats, stride.
MOBILENET_STAGES = ((1, 8, 1, 1), (4, 16, 2, 2), (4, 24, 2, 2), (4, 32, 2, 1))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and the shortcut (He et al. 2016, figure 2)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet18_small(channels: int = 3, classes: int = 10) -> nn.Module:
    """ResNet-18's 18 layers, a quarter as wide, for pictures [N, channels, 28, 28]."""
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inputs = 16
    for outputs, repeats, stride in RESNET_STAGES:
        for index in range(repeats):
            layers.append(BasicBlock(inputs, outputs, 1 if index else stride))
            inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class InvertedResidual(nn.Module):
    """Widen, filter each channel, narrow (Sandler et al. 2018, figure 3)."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        widen = [*_conv(inputs, width), nn.ReLU6()] if expansion > 1 else []
        self.body = nn.Sequential(*widen, *_conv(width, width, 3, stride, width), nn.ReLU6(), *_conv(width, outputs))
        self.add = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.add else self.body(x)


def mobilenet_v2_small(channels: int = 3, classes: int = 10) -> nn.Module:
    """MobileNetV2's blocks, seven of them, for pictures [N, channels, 28, 28]."""
    layers: list[nn.Module] = [*_conv(channels, 16, 3, 2), nn.ReLU6()]
    inputs = 16
    for expansion, outputs, repeats, stride in MOBILENET_STAGES:
        for index in range(repeats):
            layers.append(InvertedResidual(inputs, outputs, 1 if index else stride, expansion))
            inputs = outputs
    layers += [*_conv(inputs, 128), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes)]
    return nn.Sequential(*layers)
