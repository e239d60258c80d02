# SPDX-License-Identifier: Apache-2.0
"""What once went wrong with torch models, one test a fault."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import wia_quant
import wia_quant.torch as wia
from wia_quant.errors import ExportError
from wia_quant.torch.source import model_to_onnx


class Net(nn.Module):
    """Submodules by name, and a forward that reads them."""

    def __init__(self, run: object, **parts: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.run(self, x)


def conv(i: int, o: int, kernel: int = 1) -> nn.Conv2d:
    return nn.Conv2d(i, o, kernel)


def trained(net: nn.Module, x: torch.Tensor) -> nn.Module:
    """Some steps on data of changing range."""
    prepared = wia.prepare_qat(net.train())
    optimizer = torch.optim.SGD(prepared.parameters(), 0.01)
    for step in range(3):
        optimizer.zero_grad()
        (prepared(x * (1 + step) + step) - 1).square().mean().backward()
        optimizer.step()
    return prepared.eval()


def assert_exact(net: nn.Module, x: torch.Tensor) -> wia.Exported:
    exported = wia.export(trained(net, x), x, verify=True)
    for difference in exported.differences:
        assert difference.share <= 0.01, str(difference)
    return exported


PICTURE = (4, 3, 9, 9)


@pytest.mark.parametrize("pool", [nn.AvgPool2d(3, divisor_override=2), nn.AvgPool3d((1, 3, 3), divisor_override=2)])
def test_a_divisor_of_an_average_pool_is_not_dropped(pool: nn.Module) -> None:
    net, x = nn.Sequential(conv(3, 4), pool, conv(4, 2)), torch.randn(PICTURE)
    with pytest.raises(ExportError, match=r"submodule '1': divisor_override=2 .* multiply"):
        wia.export(trained(net, x), x)
    with pytest.raises(ExportError, match="divisor_override=2"):
        wia_quant.quantize(net.eval(), data=[x])


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("scale", [1.7, 0.6, 2.0, (1.3, 2.5)])
def test_aligned_corners_stay_where_torch_has_them(mode: str, scale: object) -> None:
    x = torch.randn(PICTURE)
    net = nn.Sequential(conv(3, 4), nn.Upsample(scale_factor=scale, mode=mode, align_corners=True), conv(4, 2)).eval()
    proto = model_to_onnx(net, [x])
    (got,) = wia_quant.Session(proto.SerializeToString()).run(None, {proto.graph.input[0].name: x.numpy()})
    np.testing.assert_allclose(got, net(x).detach().numpy(), atol=1e-5)
