# SPDX-License-Identifier: Apache-2.0
"""Ranges and scales as they move in training, for TensorBoard or anything with ``add_scalar``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from torch import nn

from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.prepare import QUANTIZERS


class ScalarWriter(Protocol):
    """``torch.utils.tensorboard.SummaryWriter`` is one."""

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        """Takes one number."""
        ...


@contextmanager
def log_ranges(model: nn.Module, writer: ScalarWriter, *, every: int = 100, prefix: str = "wia") -> Iterator[None]:
    """Writes scale, lo and hi of every fake quantizer after every ``every``-th forward pass in training mode.

    A scale per channel is written as its smallest and its largest. Tags: ``wia/<where>/scale``.
    """
    step = 0

    def write(module: nn.Module, args: Any, output: Any) -> None:
        nonlocal step
        if module.training:
            if step % every == 0:
                for tag, value in scales_of(model).items():
                    writer.add_scalar(f"{prefix}/{tag}", value, step)
            step += 1

    handle = model.register_forward_hook(write)
    try:
        yield
    finally:
        handle.remove()


def scales_of(model: nn.Module) -> dict[str, float]:
    """``where/scale``, ``where/lo`` and ``where/hi`` of every fake quantizer that saw data."""
    found: dict[str, float] = {}
    for name, module in model.named_modules():
        if not isinstance(module, FakeQuantize) or not module.observer.seen:
            continue
        where = name.removeprefix(QUANTIZERS + ".")
        qp = module.qparams()
        if qp.axis is None:
            zero = int(qp.zero_point)
            found[f"{where}/scale"] = float(qp.scale)
            found[f"{where}/lo"] = float((qp.qtype.qmin - zero) * qp.scale)
            found[f"{where}/hi"] = float((qp.qtype.qmax - zero) * qp.scale)
        else:
            found[f"{where}/scale_min"], found[f"{where}/scale_max"] = float(qp.scale.min()), float(qp.scale.max())
    return found
