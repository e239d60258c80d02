# SPDX-License-Identifier: Apache-2.0
"""A small convolutional net trained in seconds on scikit-learn's 8 x 8 handwritten digits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.models.base import Feeds, Model, Outputs

N_TRAINING = 1400
N_EPOCHS = 12


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    """Pictures [1797, 1, 8, 8] of 0 to 1, light on dark, and their labels, in an order from a seed."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return (x[order].reshape(-1, 1, 8, 8) / 16).astype(np.float32), y[order].astype(np.int64)


def write(path: Path) -> None:
    """Trains on the first 1,400 and exports with opset 17."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    x, y = (torch.from_numpy(a[:N_TRAINING]) for a in digits())
    optimizer = torch.optim.Adam(net.parameters(), 2e-3)
    for _ in range(N_EPOCHS):
        for batch in torch.randperm(N_TRAINING).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
            optimizer.step()
    torch.onnx.export(
        net.eval(), (torch.zeros(1, 1, 8, 8),), str(path), opset_version=17, dynamo=False,
        input_names=["image"], output_names=["logits"],
    )  # fmt: skip


@cache
def calibration() -> Sequence[Feeds]:
    """Two hundred of those it was trained on."""
    return [{"image": x[None]} for x in digits()[0][:200]]


@cache
def evaluation() -> Sequence[Feeds]:
    """Those it has not seen."""
    return [{"image": x[None]} for x in digits()[0][N_TRAINING:]]


def metrics(reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> dict[str, float]:
    """Top-1."""
    top = [int(np.asarray(out[0]).argmax()) for out in candidate]
    return {"top1": float(np.mean(top == digits()[1][N_TRAINING:][: len(top)]))}


MODEL = Model("digits", write, calibration, lambda: calibration()[0], evaluation, metrics, weights_dominate=True)
