# SPDX-License-Identifier: Apache-2.0
"""What once went wrong with torch models, one test a fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as every torch user writes it
from torch import nn
from torch.nn.utils import prune

import wia_quant
import wia_quant.torch as wia
from wia_quant.errors import ExportError, UsageError
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


def test_a_batch_norm_along_another_axis_is_not_folded_into_a_linear() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    x = torch.randn(16, 5, 6)
    with pytest.raises(UsageError, match=r"BatchNorm '1' is along axis 1 of a result of 3 axes.*exclude=\['1'\]"):
        wia.prepare_qat(net)(x)
    net(x)
    prepared = wia.prepare(net, exclude=["1"])
    prepared(x)
    calibrated = wia.convert(prepared)
    wanted = net.eval()(x)
    assert (calibrated(x) - wanted).abs().max() < 0.05 * wanted.abs().max()
    (difference,) = wia.export(calibrated, x, verify=True).differences
    assert difference.share <= 0.01, str(difference)
    assert_exact(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)), torch.randn(16, 6))


@pytest.mark.parametrize("hooked", ["0", "1", "2"])
def test_a_forward_hook_is_not_dropped(hooked: str) -> None:
    net, x = nn.Sequential(conv(3, 6), nn.BatchNorm2d(6), nn.ReLU(), conv(6, 64)).eval(), torch.randn(PICTURE)
    net.get_submodule(hooked).register_forward_hook(lambda module, given, result: result * 3)
    prepared = wia.prepare(net)
    prepared(x)
    assert any("hooks" in why for why in prepared.wia_preparation.left_float.values())
    calibrated, wanted = wia.convert(prepared), net(x)
    assert (calibrated(x) - wanted).abs().max() < 0.03 * wanted.abs().max()
    (difference,) = wia.export(calibrated, x, verify=True).differences
    assert difference.share <= 0.01, str(difference)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    "change", [nn.utils.weight_norm, nn.utils.spectral_norm, lambda m: prune.random_unstructured(m, "weight", 0.5)]
)
def test_a_weight_that_a_hook_makes_is_refused(change: object, inplace: bool) -> None:
    net = nn.Sequential(conv(3, 6), nn.ReLU(), conv(6, 4))
    change(net[0])
    with pytest.raises(UsageError, match=r"submodule '0' .*parametrizations"):
        wia.prepare_qat(net, inplace=inplace)


@pytest.mark.parametrize("training", [False, True])
def test_functional_dropout_follows_the_mode(training: bool) -> None:
    net = Net(lambda s, x: s.c(F.dropout(torch.relu(s.a(x)), 0.5, s.training)), a=conv(3, 6), c=conv(6, 4))
    x = torch.randn(PICTURE)
    prepared = wia.prepare_qat(net.train(training))
    assert torch.equal(prepared(x), prepared(x)) is not training
    prepared.train()
    assert not torch.equal(prepared(x), prepared(x))
    prepared.eval()
    assert torch.equal(prepared(x), prepared(x))
    assert wia.export(prepared, x, verify=True).differences[0].share <= 0.01


def test_another_result_in_training_is_no_constant_of_the_graph() -> None:
    net = Net(lambda s, x: (s.a(x), s.c(x)) if s.training else s.a(x), a=conv(3, 6), c=conv(3, 6))
    with pytest.raises(wia.PrepareError, match="does something else in training"):
        wia.prepare_qat(net.train())
    prepared = wia.prepare_qat(net.eval())
    assert isinstance(prepared(torch.randn(PICTURE)), torch.Tensor)
    assert not prepared.training


def test_a_product_takes_its_input_by_name() -> None:
    net = Net(lambda s, x: s.c(input=s.r(input=s.a(input=x))), a=conv(3, 6), r=nn.ReLU(), c=conv(6, 4))
    assert wia.prepare_qat(net).wia_preparation.left_float == {}
    assert_exact(net, torch.randn(PICTURE))


def test_a_transposed_convolution_called_with_its_output_size_stays_float() -> None:
    up = nn.ConvTranspose2d(6, 6, 3, stride=2)
    net = Net(lambda s, x: s.c(s.up(s.a(x), output_size=[20, 20])), a=conv(3, 6), up=up, c=conv(6, 4))
    assert wia.prepare_qat(net).wia_preparation.left_float == {
        "up": "ConvTranspose2d is called with more than its input"
    }
    assert_exact(net, torch.randn(PICTURE))


@pytest.mark.parametrize(
    "part",
    [
        nn.LSTM(5, 6, batch_first=True),
        nn.GRU(5, 6, batch_first=True),
        Net(lambda s, x: torch.topk(x, 2, 2)),
        Net(lambda s, x: x.max(1, keepdim=True)),
        Net(lambda s, x: x.unbind(1)),
    ],
    ids=["LSTM", "GRU", "topk", "max", "unbind"],
)
def test_a_float_operator_of_several_results_feeds_a_product(part: nn.Module) -> None:
    x = torch.randn(2, 4, 5)
    n = {"LSTM": 6, "GRU": 6}.get(type(part).__name__, 0) or part(x)[0].shape[-1]
    net = Net(lambda s, x: s.h(s.part(x)[0]), part=part, h=nn.Linear(n, 200))
    assert_exact(net, x)


@pytest.mark.parametrize(
    "write",
    [
        lambda s, y: F.relu(y, inplace=True),
        lambda s, y: F.relu(y, True),
        lambda s, y: s.r(y),
        lambda s, y: y.relu_(),
        lambda s, y: torch.relu_(y),
    ],
    ids=["inplace", "by place", "module", "method", "function"],
)
def test_who_reads_a_tensor_after_it_was_written_in_place_reads_the_new_values(write: Callable[..., Any]) -> None:
    def forward(s: Any, x: torch.Tensor) -> torch.Tensor:
        y = s.a(x)
        z: torch.Tensor = s.c(write(s, y)) + y
        return z

    net = Net(forward, a=conv(3, 6), c=conv(6, 6), r=nn.ReLU(inplace=True))
    x = torch.randn(PICTURE)
    wanted = net.eval()(x).detach()
    calibrated = wia.prepare(net)
    np.testing.assert_allclose(calibrated(x).detach(), wanted, atol=0.02)  # the weights are rounded
    assert_exact(net, x)
