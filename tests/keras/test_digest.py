# SPDX-License-Identifier: Apache-2.0
"""One network with the same weights and ranges gives one graph, whichever framework trained it."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.keras.models import framework
from wia_quant.affine import Range
from wia_quant.digest import graph_digest
from wia_quant.keras import export, quantize_model
from wia_quant.torch import export as export_torch
from wia_quant.torch import prepare_qat
from wia_quant.torch.calibration import _begin
from wia_quant.torch.fake_quantize import FakeQuantize

Array = np.ndarray[Any, np.dtype[np.float32]]

#: Of every quantized activation, by the layer that makes it; exact in float32.
RANGES = {
    "x": (-1.0, 1.5),
    "relu1": (0.0, 4.0),
    "relu2": (0.0, 3.0),
    "norm3": (-2.0, 2.5),
    "relu3": (0.0, 3.5),
    "pool": (0.0, 2.0),
}
#: As torch names them: a ReLU that is used again has a number, and a quantizer the last module that is quantized.
TORCH_NAMES = {
    "x": "x", "relu": "relu1", "relu_1": "relu2", "pointwise": "norm3", "relu_2": "relu3", "pool": "pool",
}  # fmt: skip


@cache
def weights() -> dict[str, Array]:
    """As torch has them: [out, in, height, width]."""
    rng = np.random.default_rng(0)
    shapes = {"conv": (8, 3, 3, 3), "depthwise": (8, 1, 3, 3), "pointwise": (8, 8, 1, 1), "pooled": (5, 8),
              "flattened": (5, 8 * 4 * 4), "bias": (8,), "answers": (5,)}  # fmt: skip
    return {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def norms() -> list[list[Array]]:
    """Of three BatchNorms: gamma, with both signs, beta, mean, variance."""
    rng = np.random.default_rng(1)
    gammas = [(rng.uniform(0.5, 1.5, 8) * rng.choice([-1, 1], 8)).astype(np.float32) for _ in range(3)]
    return [[gamma, *(rng.uniform(0.5, 1.5, 8).astype(np.float32) for _ in range(3))] for gamma in gammas]


class Net(nn.Module):
    """Conv, BatchNorm, ReLU; depthwise; residual; a mean of the picture, or its pixels; Linear."""

    def __init__(self, head: str) -> None:
        super().__init__()
        self.conv, self.norm1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8, eps=1e-3)
        self.depthwise, self.norm2 = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8, eps=1e-3)
        self.pointwise, self.norm3 = nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8, eps=1e-3)
        self.relu, self.flatten = nn.ReLU(), nn.Flatten()
        self.pool = nn.MaxPool2d(2) if head == "flattened" else nn.AdaptiveAvgPool2d(1)
        self.answers = nn.Linear(weights()[head].shape[1], 5)
        for name in ("conv", "depthwise", "pointwise"):
            self.get_submodule(name).weight.data = torch.tensor(weights()[name])
            self.get_submodule(name).bias.data = torch.tensor(weights()["bias"])
        self.answers.weight.data, self.answers.bias.data = map(torch.tensor, (weights()[head], weights()["answers"]))
        for norm, values in zip((self.norm1, self.norm2, self.norm3), norms(), strict=True):
            norm.weight.data, norm.bias.data, norm.running_mean, norm.running_var = map(torch.tensor, values)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.relu(self.norm1(self.conv(x)))
        y = self.norm3(self.pointwise(self.relu(self.norm2(self.depthwise(x)))))
        answers: torch.Tensor = self.answers(self.flatten(self.pool(self.relu(x + y))))
        return answers


def in_torch(head: str) -> str:
    model = prepare_qat(Net(head).eval()).eval()
    for name, quantizer in model.named_modules():
        if isinstance(quantizer, FakeQuantize) and quantizer.observer.has_history:
            _begin(quantizer, Range(*RANGES[TORCH_NAMES[name.rpartition(".")[2]]]))
    return graph_digest(export_torch(model, torch.zeros(2, 3, 8, 8)).model)


def keras_net(keras: Any, head: str) -> Any:
    layers = keras.layers
    x = inputs = keras.Input((8, 8, 3), name="x")
    x = layers.BatchNormalization(name="norm1")(layers.Conv2D(8, 3, padding="same", name="conv")(x))
    x = layers.ReLU(name="relu1")(x)
    y = layers.BatchNormalization(name="norm2")(layers.DepthwiseConv2D(3, padding="same", name="depthwise")(x))
    y = layers.Conv2D(8, 1, name="pointwise")(layers.ReLU(name="relu2")(y))
    y = layers.BatchNormalization(name="norm3")(y)
    x = layers.ReLU(name="relu3")(layers.Add(name="add")([x, y]))
    if head == "flattened":
        x = layers.Flatten()(layers.MaxPooling2D(2, name="pool")(x))
    else:
        x = layers.GlobalAveragePooling2D(name="pool")(x)
    model = keras.Model(inputs, layers.Dense(5, name="answers")(x))
    dense = weights()[head]
    if head == "flattened":  # Keras flattens pixel by pixel, torch channel by channel
        dense = dense.reshape(5, 8, 4, 4).transpose(0, 2, 3, 1).reshape(5, -1)
    model.get_layer("conv").set_weights([weights()["conv"].transpose(2, 3, 1, 0), weights()["bias"]])
    model.get_layer("depthwise").set_weights([weights()["depthwise"].transpose(2, 3, 0, 1), weights()["bias"]])
    model.get_layer("pointwise").set_weights([weights()["pointwise"].transpose(2, 3, 1, 0), weights()["bias"]])
    model.get_layer("answers").set_weights([dense.T, weights()["answers"]])
    for i, values in enumerate(norms()):
        model.get_layer(f"norm{i + 1}").set_weights(values)
    return model


def in_keras_3(head: str) -> str:
    model = quantize_model(keras_net(framework("keras"), head))
    for layer in model.layers:
        if type(layer).__name__ == "FakeQuantize":
            lo, hi = RANGES[layer.name.removesuffix("_quantizer")]
            layer.lo.assign([lo])
            layer.hi.assign([hi])
            layer.seen.assign([1.0])
    return graph_digest(export(model, channels_first_io=True).model)


def in_tf_keras(head: str) -> str:
    model = quantize_model(keras_net(framework("tf_keras"), head))
    for w in model.weights:
        layer, _, part = w.name.rpartition(":")[0].rpartition("/")
        if part.endswith(("min", "max")):
            name = layer.partition("/")[0].removeprefix("quant_")
            lo, hi = RANGES[name if name in RANGES else "x"]
            w.assign(lo if part.endswith("min") else hi)
    return graph_digest(export(model, channels_first_io=True).model)


@pytest.mark.parametrize("head", ["pooled", "flattened"])
def test_torch_and_both_kerases_give_one_graph(head: str) -> None:
    assert in_keras_3(head) == in_tf_keras(head) == in_torch(head)
