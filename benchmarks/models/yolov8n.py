# SPDX-License-Identifier: Apache-2.0
"""A net of YOLOv8n's shape: backbone, pyramid, three heads, decoding; weights from a seed: timing only."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from benchmarks.models.base import Feeds, Model
from benchmarks.models.pictures import smooth
from benchmarks.models.torch_export import export

SIZE, CLASSES, BINS = 320, 80, 16


class Conv(nn.Module):
    """Convolution, normalization, SiLU."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.silu(self.norm(self.conv(x)))


class Bottleneck(nn.Module):
    """Two 3 x 3, with or without the way around."""

    def __init__(self, channels: int, add: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(Conv(channels, channels, 3), Conv(channels, channels, 3))
        self.add = add

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.add else self.body(x)


class C2f(nn.Module):
    """Split in two, a chain of bottlenecks on one half, everything concatenated."""

    def __init__(self, inputs: int, outputs: int, count: int, add: bool) -> None:
        super().__init__()
        half = outputs // 2
        self.first = Conv(inputs, outputs)
        self.chain = nn.ModuleList(Bottleneck(half, add) for _ in range(count))
        self.last = Conv(half * (2 + count), outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.first(x).chunk(2, 1))
        for block in self.chain:
            parts.append(block(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Pyramid(nn.Module):
    """SPPF: three 5 x 5 maxima in a row, concatenated."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = Conv(channels, channels // 2), Conv(channels * 2, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.first(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.last(torch.cat(parts, 1))


class Yolo(nn.Module):
    """[1, 3, 320, 320] to [1, 4 + 80, 2100]: boxes in pixels and class probabilities in one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.p3 = nn.Sequential(
            Conv(3, 16, 3, 2),
            Conv(16, 32, 3, 2),
            C2f(32, 32, 1, True),
            Conv(32, 64, 3, 2),
            C2f(64, 64, 2, True),
        )
        self.p4 = nn.Sequential(Conv(64, 128, 3, 2), C2f(128, 128, 2, True))
        self.p5 = nn.Sequential(Conv(128, 256, 3, 2), C2f(256, 256, 1, True), Pyramid(256))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.n4, self.n3 = C2f(384, 128, 1, False), C2f(192, 64, 1, False)
        self.d3, self.d4 = Conv(64, 64, 3, 2), Conv(128, 128, 3, 2)
        self.m4, self.m5 = C2f(192, 128, 1, False), C2f(384, 256, 1, False)
        self.boxes = nn.ModuleList(
            nn.Sequential(Conv(c, 64, 3), Conv(64, 64, 3), nn.Conv2d(64, 4 * BINS, 1)) for c in (64, 128, 256)
        )
        self.classes = nn.ModuleList(
            nn.Sequential(Conv(c, 80, 3), Conv(80, 80, 3), nn.Conv2d(80, CLASSES, 1)) for c in (64, 128, 256)
        )
        centres, strides = [], []
        for stride in (8, 16, 32):
            axis = torch.arange(SIZE // stride) + 0.5
            y, x = torch.meshgrid(axis, axis, indexing="ij")
            centres.append(torch.stack((x.reshape(-1), y.reshape(-1))))
            strides.append(torch.full((1, axis.numel() ** 2), float(stride)))
        self.register_buffer("centres", torch.cat(centres, 1)[None])
        self.register_buffer("strides", torch.cat(strides, 1)[None])
        self.register_buffer("bins", torch.arange(BINS, dtype=torch.float32).reshape(1, BINS, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p3 = self.p3(x)
        p4 = self.p4(p3)
        p5 = self.p5(p4)
        n4 = self.n4(torch.cat((self.up(p5), p4), 1))
        n3 = self.n3(torch.cat((self.up(n4), p3), 1))
        m4 = self.m4(torch.cat((self.d3(n3), n4), 1))
        m5 = self.m5(torch.cat((self.d4(m4), p5), 1))
        n = x.shape[0]
        levels = [
            torch.cat((box(f), kind(f)), 1).view(n, 4 * BINS + CLASSES, -1)
            for f, box, kind in zip((n3, m4, m5), self.boxes, self.classes, strict=True)
        ]
        distances, scores = torch.cat(levels, 2).split((4 * BINS, CLASSES), 1)
        distances = distances.view(n, 4, BINS, -1).transpose(1, 2).softmax(1)
        near, far = (distances * self.bins).sum(1).chunk(2, 1)
        low, high = self.centres - near, self.centres + far
        boxes = torch.cat(((low + high) / 2, high - low), 1) * self.strides
        return torch.cat((boxes, scores.sigmoid()), 1)


def write(path: Path) -> None:
    """Opset 17."""
    export(path, Yolo, (torch.zeros(1, 3, SIZE, SIZE),), ["image"])


def samples(n: int = 16, seed: int = 0) -> list[Feeds]:
    """Coloured clouds."""
    return [{"image": x} for x in smooth(n, SIZE, seed)]


MODEL = Model("yolov8n", write, samples, timing=lambda: samples(1, 1)[0])
