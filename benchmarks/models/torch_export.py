# SPDX-License-Identifier: Apache-2.0
"""A torch module with weights from a seed, as an ONNX file."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def export(
    path: Path,
    make: Callable[[], torch.nn.Module],
    inputs: tuple[torch.Tensor, ...],
    names: list[str],
    opset: int = 17,
) -> None:
    """Make the module under seed 0, give its normalizations plausible statistics, export at fixed shapes."""
    import torch

    torch.manual_seed(0)
    module = make().eval()
    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        if isinstance(layer, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(layer.weight, 0.5, 1.2)
            torch.nn.init.normal_(layer.bias, 0.0, 0.3)
            layer.momentum = None  # statistics are those of the one batch that follows
    if any(isinstance(layer, torch.nn.BatchNorm2d) for layer in module.modules()):
        module.train()
        with torch.no_grad():
            module(*(torch.randn(4, *x.shape[1:]) for x in inputs))
        module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            inputs,
            str(path),
            opset_version=opset,
            dynamo=False,
            input_names=names,
            output_names=["output"],
        )
