# SPDX-License-Identifier: Apache-2.0
"""Architectures and habits of writing as users bring them: each trains, is exported, and computes what was trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import wia_quant.torch as wia
from tests.torch.user_nets import USER_NETS, Example
from wia_quant.rules import Severity, check_model
from wia_quant.torch.verify import arguments

#: What has no integer form in each net, by the reason's first word; no net has more.
FLOAT: dict[str, set[str]] = {
    "convnext": {"layer_norm", "LayerNorm"},
    "vit": {"scaled_dot_product_attention", "LayerNorm"},
    "multihead": {"MultiheadAttention"},
    "encoder": {"TransformerEncoder"},
    "recurrent": {"LSTM", "GRU"},
    "norms": {"GroupNorm", "InstanceNorm2d"},
    "einsum": {"einsum", "softmax"},
    "yolo": {"pow"},
    "audio": {"BatchNorm1d"},
}


def tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def run(model: nn.Module, example: Example) -> list[torch.Tensor]:
    args, kwargs = arguments(example)
    return tensors(model(*args, **kwargs))


def train(model: nn.Module, batches: list[Example]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in batches:
        optimizer.zero_grad()
        torch.stack([(y - 1).square().mean() for y in run(model, batch)]).sum().backward()
        optimizer.step()


def in_onnxruntime(model: onnx.ModelProto, example: Example) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feeds = {i.name: t.numpy() for i, t in zip(session.get_inputs(), tensors(example), strict=True)}
    return session.run(None, feeds)


def assert_the_file_computes_what_was_trained(model: nn.Module, example: Example) -> wia.Exported:
    """libwia by ``verify``, onnxruntime here; a level more or less at the edge of two is rounding."""
    exported = wia.export(model, example, verify=True)
    onnx.checker.check_model(exported.model, full_check=True)
    assert [f for f in check_model(exported.model) if f.severity is not Severity.NOTE] == []
    for difference in exported.differences:
        assert difference.share <= 0.01, str(difference)
    model.eval()
    with torch.no_grad():
        wanted = run(model, example)
    for got, y in zip(in_onnxruntime(exported.model, example), wanted, strict=True):
        apart = np.abs(got - y.numpy()) > 1e-4 * float(y.abs().max())
        assert apart.mean() <= 0.01
    return exported


@pytest.mark.parametrize("name", USER_NETS)
def test_a_net_of_a_user_trains_and_its_file_computes_what_was_trained(name: str) -> None:
    make, batch = USER_NETS[name]
    prepared = wia.prepare_qat(make().train())
    train(prepared, [batch() for _ in range(3)])
    assert_the_file_computes_what_was_trained(prepared, batch())
    left = set(prepared.wia_preparation.left_float.values()) - {"no integers reach it"}
    assert {reason.split()[0] for reason in left} <= FLOAT.get(name, set())
