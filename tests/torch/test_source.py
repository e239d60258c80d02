# SPDX-License-Identifier: Apache-2.0
"""Torch models for post-training quantization: in memory, and named on the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import wia_quant
from tests.torch.nets import Residual, Two, picture
from wia_quant import frameworks
from wia_quant.cli.app import invoke
from wia_quant.errors import DataError, ExportError, WiaError
from wia_quant.rules import Severity, check_model
from wia_quant.torch import prepare_qat

FACTORIES = """
import torch
from tests.torch.nets import Residual, Two, picture, train
from wia_quant.torch import prepare_qat

net = Residual()
number = 3

def plain():
    return Residual()

def with_example():
    return Two(), (torch.randn(2, 8), torch.randn(2, 8))

def trained():
    model = prepare_qat(Residual())
    train(model, [picture()])
    return model, picture()

def broken():
    raise ValueError("no weights here")
"""


@pytest.fixture
def factories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "some_nets.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "some_nets", raising=False)
    return "some_nets"


def loader() -> DataLoader[tuple[torch.Tensor, ...]]:
    """Pictures and labels, as classifiers are trained."""
    return DataLoader(TensorDataset(torch.randn(24, 3, 16, 16), torch.randint(0, 5, (24,))), batch_size=8)


def test_a_module_and_its_loader_are_quantized_like_its_onnx_file() -> None:
    net = Residual().train()
    result = wia_quant.quantize(net, data=loader())
    assert [f for f in check_model(result.model) if f.severity is not Severity.NOTE] == []
    assert result.table.data["used"] == 24
    assert net.training
    (x,) = picture(5)
    (got,) = result.session().run(None, {"x": x.numpy()})
    with torch.no_grad():
        wanted = net.eval()(x).numpy()
    assert np.abs(got - wanted).max() < 0.1 * np.abs(wanted).max()


def test_batches_may_be_dicts_by_argument_name() -> None:
    batches = [{"left": torch.randn(2, 8), "right": torch.randn(2, 8), "label": torch.zeros(2)} for _ in range(3)]
    result = wia_quant.quantize(Two(), data=batches)
    assert [i.name for i in result.model.graph.input] == ["left", "right"]


def test_an_iterator_that_can_be_read_once_is_an_error_that_says_what_to_give() -> None:
    with pytest.raises(DataError, match="give a DataLoader or a list"):
        wia_quant.quantize(Residual(), data=iter([picture()]))


def halves() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 16)).half()


def without_values() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 16, device="meta"))


def script() -> nn.Module:
    return torch.jit.trace(nn.Linear(32, 16), torch.randn(2, 32))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Residual, "Residual is no model"),
        (lambda: Residual().state_dict(), "a OrderedDict is no model"),
        (halves, r"'0.weight' is float16; .* call model.float\(\)"),
        (without_values, "on the device 'meta' and has no values"),
        (script, "is TorchScript, .* give the torch.nn.Module"),
    ],
)
def test_what_is_no_float32_module_is_said_in_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(WiaError, match=message) as raised:
        wia_quant.quantize(make(), data=[torch.randn(4, 32)])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "data gives no batch"),
        ([torch.randn(4, 31)], r"does not run on its example inputs, \[4, 31\] float32: .* must be what its forward"),
        ([torch.randn(4, 32).double()], r"\[4, 32\] float64: .* in float32"),
        ([(torch.zeros(4, dtype=torch.int64), torch.randn(4, 32))], r"\[4\] int64"),
        ([{"image": torch.randn(4, 32)}], "batches have image, but Sequential takes input"),
        ([["a", "b"]], "a batch holds a str"),
        ([(None, torch.randn(4, 32))], "a batch holds a NoneType"),
    ],
)
def test_batches_that_do_not_fit_are_said_in_one_line(batches: list[Any], message: str) -> None:
    with pytest.raises(WiaError, match=message) as raised:
        wia_quant.quantize(nn.Sequential(nn.Linear(32, 16)), data=batches)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda: prepare_qat(Residual), r"Residual is a class; give a model made of it, such as Residual\(\)"),
        (lambda: prepare_qat(halves()), "is float16"),
        (
            lambda: prepare_qat(Residual(), qconfig="wia"),
            "'wia' is no qconfig of wia_quant; take get",
        ),
        (lambda: prepare_qat(Residual(), qconfig=torch.ao.quantization.default_qconfig), "is no qconfig of wia_quant"),
    ],
)
def test_a_mistake_in_preparing_is_said_in_one_line(prepare: Callable[[], Any], message: str) -> None:
    with pytest.raises(WiaError, match=message):
        prepare()


@pytest.mark.parametrize("data", [None, "pictures/", 3])
def test_data_that_shows_no_shapes_is_an_error_that_says_what_to_give(data: object) -> None:
    with pytest.raises(DataError, match="must be a DataLoader"):
        wia_quant.quantize(Residual(), data=data)


def test_a_prepared_module_is_not_quantized_twice() -> None:
    with pytest.raises(ExportError, match=r"wia_quant\.torch\.export"):
        wia_quant.quantize(prepare_qat(Residual()), data=loader())


def test_the_command_writes_a_float_model_of_a_factory(factories: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["export", "--torch", f"{factories}:plain", "--shape", "2,3,16,16", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["model"] == "plain.onnx"
    assert not said["quantized"]
    assert said["inputs"] == ["x [?, 3, 16, 16] float32"]
    onnx.checker.check_model(onnx.load("plain.onnx"), full_check=True)
    assert invoke(["calibrate", "plain.onnx", "--synthetic"]) == 0


def test_the_command_writes_a_trained_model_quantized(factories: str) -> None:
    assert invoke(["export", "--torch", f"{factories}:trained", "-o", "net.wia.onnx"]) == 0
    assert [f for f in check_model(onnx.load("net.wia.onnx")) if f.severity is not Severity.NOTE] == []


def test_the_command_takes_examples_from_the_factory(factories: str) -> None:
    assert invoke(["export", "--torch", f"{factories}:with_example"]) == 0
    assert len(onnx.load("with_example.onnx").graph.input) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "name one source: a file, --torch"),
        (["--torch", "some_nets"], 2, "MODULE:FACTORY is needed"),
        (["--torch", "no_such:net"], 1, "no_such cannot be imported"),
        (["--torch", "some_nets:missing"], 1, "some_nets has no 'missing'"),
        (["--torch", "some_nets:number"], 1, "is a int"),
        (["--torch", "some_nets:broken"], 1, "no weights here"),
        (["--torch", "some_nets:net"], 2, "add --shape"),
        (["--torch", "some_nets:net", "--shape", "2,x"], 2, "--shape 2,x"),
    ],
)
def test_a_mistake_is_one_clear_line(
    factories: str, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert invoke(["export", *arguments]) == code
    said = capsys.readouterr().err
    assert message in said
    assert len(said.strip().splitlines()) == 1


def test_a_framework_model_is_known_by_its_class_alone() -> None:
    assert frameworks.is_framework_model(nn.Linear(1, 1))
    assert not frameworks.is_framework_model("model.onnx")
