# SPDX-License-Identifier: Apache-2.0
"""Programs that torch.export captured: prepared by torchao with our quantizer, exported as the other flows are."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import wia_quant.torch as wia
from tests.torch.nets import NETS, Batch, Mobile, Residual, outputs, picture, train
from wia_quant.digest import graph_digest
from wia_quant.errors import CalibrationError, ExportError, UsageError
from wia_quant.rules import Severity, check_model
from wia_quant.runtime import Session
from wia_quant.torch.pt2e import WiaQuantizer, capture, move_to_eval

quantize_pt2e: Any = importlib.import_module("torchao.quantization.pt2e.quantize_pt2e")
pt2e: Any = importlib.import_module("torchao.quantization.pt2e")

ROOT = Path(__file__).parents[2]
#: torchao folds no BatchNorm into a transposed convolution with groups ("branches").
SOUND = [name for name in NETS if name != "branches"]


def trained(name: str) -> nn.Module:
    make, batch = NETS[name]
    net = make()
    train(net, [batch() for _ in range(3)])
    return net


def step(program: nn.Module, batches: list[Batch]) -> None:
    """Captured programs know no ``train()``."""
    optimizer = torch.optim.SGD(program.parameters(), 0.01)
    for batch in batches:
        optimizer.zero_grad()
        torch.stack([(y - 1).square().mean() for y in outputs(program(*batch))]).sum().backward()
        optimizer.step()


@pytest.mark.parametrize("name", SOUND)
def test_the_same_network_and_scales_give_the_same_graph_as_the_eager_flow(name: str) -> None:
    net, batch = trained(name).eval(), NETS[name][1]
    batches, example = [batch() for _ in range(2)], batch()
    eager = wia.prepare(net)
    program = quantize_pt2e.prepare_pt2e(
        capture(net, example), WiaQuantizer(wia.get_default_qconfig(), calibrating=True)
    )
    for one in batches:
        eager(*one)
        program(*one)
    first, second = wia.export(wia.convert(eager), example), wia.export(program, example, verify=True)
    assert graph_digest(first.model) == graph_digest(second.model)
    assert [f for f in check_model(second.model) if f.severity is not Severity.NOTE] == []
    for difference in second.differences:
        assert difference.share <= 0.01, str(difference)


def float_form(parts: dict[str, nn.Module], fresh: nn.Module) -> nn.Module:
    """``fresh`` with the parameters and statistics that ``parts``, its submodules once, were trained to."""
    with torch.no_grad():
        for name, part in fresh.named_modules():
            trained_part = parts[name]
            for key, value in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
                value.copy_(getattr(trained_part, key))
    return fresh


def observed(model: nn.Module, example: Batch) -> list[wia.FakeQuantize]:
    """The fake quantizers of activations, in the order in which they run."""
    found: list[wia.FakeQuantize] = []
    handles = [
        m.register_forward_hook(lambda m, *_: None if m in found else found.append(m))
        for m in model.modules()
        if isinstance(m, wia.FakeQuantize) and m.observer.has_history
    ]
    with torch.no_grad():
        model(*example)
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize("name", [SOUND[0], *(pytest.param(n, marks=pytest.mark.slow) for n in SOUND[1:])])
def test_training_with_the_same_weights_and_ranges_gives_the_same_graph_as_the_eager_flow(name: str) -> None:
    make, batch = NETS[name]
    net, example = make(), batch()
    parts, fresh = dict(net.named_modules()), copy.deepcopy(net)
    eager = wia.prepare_qat(net, inplace=True)
    train(eager, [batch() for _ in range(3)])
    program = quantize_pt2e.prepare_qat_pt2e(capture(float_form(parts, fresh).train(), example), WiaQuantizer())
    move_to_eval(program)
    for ours, theirs in zip(observed(eager.eval(), example), observed(program, example), strict=True):
        theirs.observer.load_state(ours.observer.state())
        theirs.set_qparams(ours.qparams())
    first, second = wia.export(eager, example), wia.export(program, example, verify=True)
    assert graph_digest(first.model) == graph_digest(second.model)
    for difference in second.differences:
        assert difference.share <= 0.01, str(difference)


def test_a_grouped_transposed_convolution_with_its_batch_norm_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(ExportError, match=r"'up' is a transposed convolution .*; use wia_quant\.torch\.prepare_qat"):
        capture(NETS["branches"][0](), NETS["branches"][1]())


@pytest.mark.parametrize("name", ["residual", "attention"])
def test_a_program_trains_and_is_exported(name: str) -> None:
    net, batch = trained(name).train(), NETS[name][1]
    program = quantize_pt2e.prepare_qat_pt2e(capture(net, batch()), WiaQuantizer())
    pt2e.move_exported_model_to_train(program)
    step(program, [batch() for _ in range(3)])
    exported = wia.export(program, batch(), verify=True)
    onnx.checker.check_model(exported.model, full_check=True)
    for difference in exported.differences:
        assert difference.share <= 0.01, str(difference)


def test_ranges_of_a_program_rest_in_evaluation() -> None:
    net, (x,) = Residual().eval(), picture()
    program = quantize_pt2e.prepare_pt2e(capture(net, x), WiaQuantizer())
    program(x)
    move_to_eval(program)
    before = program(x)
    program(10 * x)
    assert torch.equal(program(x), before)
    exported = wia.export(program, x)
    (got,) = Session(exported.model.SerializeToString()).run(None, {"x": x.numpy()})
    assert (torch.from_numpy(got) - before).abs().max() <= 1e-4 * before.abs().max()


def test_an_excluded_submodule_of_a_program_stays_float() -> None:
    net = Mobile().eval()
    program = quantize_pt2e.prepare_pt2e(capture(net, picture()), WiaQuantizer(exclude=["depthwise"]))
    program(*picture())
    decisions = wia.export(program, picture()).plan.decisions
    assert [d.quantized for d in decisions if d.op_type == "Conv"] == [True, False, True, True]


def test_an_unknown_submodule_to_exclude_is_an_error() -> None:
    with pytest.raises(UsageError, match="exclude 'nowhere'"):
        quantize_pt2e.prepare_pt2e(capture(Residual().eval(), picture()), WiaQuantizer(exclude=["nowhere"]))


def test_a_program_that_saw_no_data_is_an_error() -> None:
    program = quantize_pt2e.prepare_pt2e(capture(Residual().eval(), picture()), WiaQuantizer())
    with pytest.raises(CalibrationError, match="saw no data"):
        wia.export(program, picture())


def test_without_torchao_one_error_names_the_extra() -> None:
    code = "import sys; sys.modules['torchao'] = None; import wia_quant.torch, wia_quant.torch.pt2e"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "MissingExtraError: torchao is not installed; install it with: pip install 'wia-quant[pt2e]'" in done.stderr


class _Extremes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(torch.max(self.a(x), self.b(x) * 3).amax((2, 3)))


def test_the_largest_of_two_tensors_is_no_mover_that_of_one_is() -> None:
    x = torch.randn(4, 3, 6, 6)
    program = quantize_pt2e.prepare_pt2e(capture(_Extremes().eval(), (x,)), WiaQuantizer())
    with torch.no_grad():
        wanted = program(x).numpy()
    file = wia.export(program, (x,)).model
    session = Session(file.SerializeToString())
    (got,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert np.abs(got - wanted).max() <= 0.02 * np.abs(wanted).max()
