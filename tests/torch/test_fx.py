# SPDX-License-Identifier: Apache-2.0
"""FX graph mode in torch's own spelling, qconfigs by name and type, and integer weights alone."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.ao.quantization import quantize_fx

import wia_quant.torch as wia
from tests.torch.nets import NETS, Mobile, Residual, picture, train
from wia_quant.affine import INT4_NARROW, INT8_NARROW
from wia_quant.digest import graph_digest
from wia_quant.errors import UsageError


@pytest.mark.parametrize("name", NETS)
def test_training_in_graph_mode_gives_the_same_graph_as_the_eager_flow(name: str) -> None:
    make, batch = NETS[name]
    net = make()
    batches, example = [batch() for _ in range(3)], batch()
    mapping = torch.ao.quantization.get_default_qat_qconfig_mapping("wia")
    graph = quantize_fx.prepare_qat_fx(copy.deepcopy(net), mapping, example)
    assert isinstance(graph, torch.fx.GraphModule)
    eager = wia.prepare_qat(net)
    for model in (graph, eager):
        torch.manual_seed(1)
        train(model, batches)
    first, second = wia.export(eager, example), wia.export(graph, example, verify=True)
    assert graph_digest(first.model) == graph_digest(second.model)
    for difference in second.differences:
        assert difference.share <= 0.01, str(difference)


def test_calibrating_in_graph_mode_gives_the_same_graph_as_the_eager_flow() -> None:
    net, (x,) = Residual().eval(), picture()
    graph = quantize_fx.prepare_fx(net, torch.ao.quantization.get_default_qconfig_mapping("wia"), (x,))
    eager = wia.prepare(net)
    graph(x)
    eager(x)
    first, second = (wia.export(wia.convert(model), x) for model in (eager, graph))
    assert graph_digest(first.model) == graph_digest(second.model)


@pytest.mark.filterwarnings("ignore:Please use quant_min")
def test_torchs_own_backends_are_left_to_torch() -> None:
    mapping = torch.ao.quantization.get_default_qconfig_mapping("fbgemm")
    prepared = quantize_fx.prepare_fx(nn.Sequential(nn.Linear(2, 2)).eval(), mapping, (torch.zeros(1, 2),))
    assert not any(isinstance(m, wia.FakeQuantize) for m in prepared.modules())


def test_a_mapping_gives_each_module_its_own_qconfig() -> None:
    mapping = (
        wia.get_default_qat_qconfig_mapping()
        .set_object_type(nn.Linear, wia.get_qconfig("w4a8"))
        .set_module_name("conv1", None)
        .set_module_name_regex("conv2", wia.get_qconfig("w4a8"))
    )
    prepared = wia.prepare_qat_fx(Residual(), mapping)
    grids = {n: m.qtype for n, m in prepared.named_modules() if n.endswith("weight_fake_quantize")}
    assert grids == {
        "stem.weight_fake_quantize": INT8_NARROW,
        "conv2.weight_fake_quantize": INT4_NARROW,
        "head.weight_fake_quantize": INT4_NARROW,
    }
    assert isinstance(prepared.conv1, nn.Conv2d)
    train(prepared, [picture() for _ in range(2)])
    (difference,) = wia.export(prepared, picture(), verify=True).differences
    assert difference.share <= 0.01, str(difference)


def test_a_qconfig_attribute_holds_for_what_the_module_holds() -> None:
    net = Mobile()
    net.depthwise.qconfig = wia.get_qconfig("w4a8")
    prepared = wia.prepare_qat(net)
    assert prepared.depthwise[0].weight_fake_quantize.qtype == INT4_NARROW
    assert prepared.expand[0].weight_fake_quantize.qtype == INT8_NARROW


def test_a_mapping_with_an_unknown_name_is_an_error() -> None:
    mapping = wia.get_default_qat_qconfig_mapping().set_module_name("nowhere", None)
    with pytest.raises(UsageError, match="set_module_name\\('nowhere'\\)"):
        wia.prepare_qat_fx(Residual(), mapping)


def test_a_backend_config_of_torch_is_an_error() -> None:
    with pytest.raises(UsageError, match="use the mapping alone"):
        wia.prepare_qat_fx(Residual(), wia.get_default_qat_qconfig_mapping(), None, backend_config=object())


@pytest.mark.parametrize("scheme", ["w8", "w4"])
@pytest.mark.parametrize("name", NETS)
def test_weights_alone_need_no_data(name: str, scheme: str) -> None:
    make, batch = NETS[name]
    quantized = wia.quantize_weights(make().eval(), scheme=scheme)
    exported = wia.export(quantized, batch(), verify=True)
    for difference in exported.differences:
        assert difference.share <= 0.01, str(difference)
