# SPDX-License-Identifier: Apache-2.0
"""What only moves values, or picks one of them, has the grid of its input: it trains and is exported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
import torch.nn.functional as F  # noqa: N812  # as every torch user writes it
from torch import nn

import wia_quant.torch as wia
from tests.torch.test_evaluation import Beside, Call, evaluated
from wia_quant.runtime import Session

Mover = Callable[[torch.Tensor], torch.Tensor]

#: How the largest and the smallest of a tensor are written in torch: of [n, 6, 8, 8].
MOVERS: Final[Mapping[str, Mover]] = MappingProxyType(
    {
        "amax": lambda x: x.amax((2, 3), keepdim=True),
        "torch.amin": lambda x: torch.amin(x, 3, keepdim=True),
        "max.values": lambda x: x.max(-1, keepdim=True).values,
        "torch.max.values": lambda x: torch.max(x, dim=2, keepdim=True).values,
        "max[0]": lambda x: x.max(2, keepdim=True)[0],
        "torch.min[0]": lambda x: torch.min(x, 3, keepdim=True)[0],
        "AdaptiveMaxPool2d": nn.AdaptiveMaxPool2d(1),
        "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x.flatten(2), 1).unsqueeze(-1),
    }
)  # fmt: skip
#: What torch takes for no mover although its operator in the file is one: float between two grids.
APART: Final[Mapping[str, Mover]] = MappingProxyType(
    {
        "flip": lambda x: x.flip(3),
        "fliplr": lambda x: torch.fliplr(x),
    }
)
ACTIVATIONS: Final = (nn.Identity, nn.ReLU, nn.SiLU)


def picture(n: int = 4) -> torch.Tensor:
    return torch.randn(n, 3, 8, 8)


def between_convolutions(movers: Mapping[str, Mover]) -> nn.Module:
    """Each behind a convolution and an activation, and before a convolution."""
    nets = []
    for n, mover in enumerate(movers.values()):
        act = ACTIVATIONS[n % len(ACTIVATIONS)]()
        nets.append(Call(nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), act), mover, nn.Conv2d(6, 4, 1)))
    return Beside(*nets)


def trained(net: nn.Module) -> nn.Module:
    """Observed, and six steps, in which the ranges of tensors go ways of their own."""
    prepared = wia.observe(wia.prepare_qat(net.train()), [picture() for _ in range(2)])
    optimizer = torch.optim.SGD(prepared.parameters(), 0.05)
    for _ in range(6):
        optimizer.zero_grad()
        torch.stack([(y - 1).square().mean() for y in prepared(picture())]).sum().backward()
        optimizer.step()
    return prepared.eval()


def test_global_max_pooling_that_trained_is_exported_and_computes_as_its_file() -> None:
    movers = {**MOVERS, **{f"{name}, apart": mover for name, mover in APART.items()}}
    model = trained(between_convolutions(movers))
    file = wia.export(model, (picture(),))
    kept_float = {d.op_type: d.reason for d in file.plan.decisions if not d.quantized}
    assert not kept_float.keys() & {"ReduceMax", "ReduceMin", "GlobalMaxPool", "MaxPool"}
    assert kept_float["Slice"] == "training put what it moves on another grid than before"
    session, found = Session(file.model.SerializeToString()), dict.fromkeys(movers, 0)
    for batch in (picture(n) for n in (4, 2, 3)):
        theirs = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
        for name, a, b in zip(movers, evaluated(model, (batch,)), theirs, strict=True):
            found[name] += int((a != b).sum())
    assert found == dict.fromkeys(movers, 0)
