# SPDX-License-Identifier: Apache-2.0
"""Scheme fp16: trained and calibrated as the file computes, and the file of post-training quantization."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import wia_quant
import wia_quant.torch as wia
from tests.torch.nets import NETS, Mobile, Residual, picture, train
from wia_quant.digest import graph_digest
from wia_quant.errors import ExportError, UsageError
from wia_quant.torch.half import HalfQuantize

#: Both round to float16 at the same places; a sum in another order may round to its neighbour: 2 ** -10 of a value.
NEIGHBOUR = 2.0**-10


def halved(net: nn.Module) -> nn.Module:
    return wia.prepare(net, qconfig=wia.get_qconfig("fp16"))


@pytest.mark.parametrize("name", NETS)
def test_a_calibrated_module_gives_the_graph_of_post_training_quantization(name: str) -> None:
    make, batch = NETS[name]
    net, data = make(), [batch() for _ in range(2)]
    train(net, data)
    net.eval()
    prepared = halved(net)
    for one in data:
        prepared(*one)
    exported = wia.export(wia.convert(prepared), data[0], verify=True)
    quantized = wia_quant.quantize(net, data=data, scheme="fp16")
    assert graph_digest(exported.model) == graph_digest(quantized.model)
    for difference in exported.differences:
        assert difference.largest <= NEIGHBOUR * difference.span, str(difference)


def test_training_rounds_as_the_file_does() -> None:
    prepared = wia.prepare_qat(Residual(), qconfig=wia.get_qconfig("fp16"))
    train(prepared, [picture() for _ in range(3)])
    (difference,) = wia.export(prepared, picture(), verify=True).differences
    assert difference.largest <= NEIGHBOUR * difference.span, str(difference)
    (x,) = picture()
    y = prepared.eval()(x)
    assert torch.equal(y, y.half().float())


def test_a_value_near_the_end_of_float16_stays_float32_in_training_and_in_the_file() -> None:
    net = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16)).eval()
    with torch.no_grad():
        net[0].weight.mul_(1e5)
        net[2].weight.mul_(1e-5)
    prepared, x = halved(net), torch.randn(4, 32)
    prepared(x)
    exported = wia.export(wia.convert(prepared), x, verify=True)
    assert [d.quantized for d in exported.plan.decisions] == [False, False, False, True, True]
    assert all("beyond float16's largest" in d.reason for d in exported.plan.decisions if not d.quantized)
    quantized = wia_quant.quantize(net, data=[x], scheme="fp16")
    assert [d.quantized for d in quantized.plan.decisions] == [d.quantized for d in exported.plan.decisions]
    assert exported.differences[0].largest <= NEIGHBOUR * exported.differences[0].span


def test_an_excluded_product_stays_float32() -> None:
    prepared = wia.prepare(Mobile().eval(), qconfig=wia.get_qconfig("fp16"), exclude=["depthwise"])
    prepared(*picture())
    exported = wia.export(wia.convert(prepared), picture())
    assert [d.quantized for d in exported.plan.decisions if d.op_type == "Conv"] == [True, False, True, True]


def test_the_gradient_is_not_rounded() -> None:
    x = torch.tensor([1.0 + 2.0**-12], requires_grad=True)
    y = HalfQuantize()(x)
    (y * 2.0**-30).sum().backward()
    assert y.item() == 1.0
    assert x.grad is not None
    assert x.grad.item() == 2.0**-30


def test_integers_and_float16_in_one_model_are_an_error() -> None:
    net = Residual()
    net.head.qconfig = wia.get_qconfig("fp16")
    prepared = wia.prepare_qat(net)
    train(prepared, [picture()])
    with pytest.raises(ExportError, match="float16 and integers in one model"):
        wia.export(prepared, picture())


def test_float16_has_no_scales_to_learn() -> None:
    with pytest.raises(UsageError, match="no scales to learn"):
        wia.get_qconfig("fp16", learned=True)
