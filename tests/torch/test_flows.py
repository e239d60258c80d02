# SPDX-License-Identifier: Apache-2.0
"""Preparation, qconfigs, checkpoints, and torch's own spelling."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import wia_quant.torch as wia
from tests.torch.nets import NETS, Mobile, Residual, picture, train
from wia_quant.errors import CalibrationError, DataError, UsageError
from wia_quant.torch.product import QuantizedProduct
from wia_quant.torch.trace import PrepareError

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", NETS)
def test_a_prepared_model_trains_and_saves_and_resumes(name: str) -> None:
    make, batch = NETS[name]
    start = make()
    first = wia.prepare_qat(start)
    train(first, [batch() for _ in range(3)])
    resumed = wia.prepare_qat(make())
    resumed.load_state_dict(first.state_dict())
    more = [batch() for _ in range(2)]
    train(first, more)
    train(resumed, more)
    for (key, a), b in zip(first.named_parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b), key
    grids = [[m.qparams() for m in net.modules() if isinstance(m, wia.FakeQuantize)] for net in (first, resumed)]
    assert [str(g) for g in grids[0]] == [str(g) for g in grids[1]]


def _resumed(first: nn.Module, second: nn.Module, batches: list[tuple[torch.Tensor, ...]]) -> None:
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for net in (first, second):
        train(net, batches)
    for (key, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b), key
    for (key, a), b in zip(first.named_buffers(), second.buffers(), strict=True):
        assert torch.equal(a, b), key


def test_a_checkpoint_keeps_batch_norm_frozen() -> None:
    first = wia.prepare_qat(Residual())
    train(first, [picture()])
    wia.freeze_batch_norm(first)
    _resumed(first, wia.prepare_qat(Residual()), [picture() for _ in range(2)])


@pytest.mark.parametrize("again", [False, True])
def test_learned_scales_go_on_from_a_checkpoint_with_or_without_a_second_start(again: bool) -> None:
    qconfig = wia.get_lsq_qconfig()
    first, second = wia.prepare_qat(Residual(), qconfig=qconfig), wia.prepare_qat(Residual(), qconfig=qconfig)
    first(*picture())
    learned = wia.start_learning(first)
    with torch.no_grad():
        learned[0].neg_()  # as a large step may leave it
    second.load_state_dict(first.state_dict())
    if again:
        wia.start_learning(second)
    _resumed(first, second, [picture() for _ in range(2)])


def test_a_scale_that_saw_nothing_cannot_learn_and_is_named() -> None:
    with pytest.raises(CalibrationError, match=r"'stem.weight_fake_quantize' saw no data.*load_state_dict"):
        wia.start_learning(wia.prepare_qat(Residual(), qconfig=wia.get_lsq_qconfig()))
    with pytest.raises(UsageError, match="no scales to learn"):
        wia.start_learning(wia.prepare_qat(Residual()))


def test_observing_nothing_or_a_float_model_is_an_error() -> None:
    with pytest.raises(DataError, match="no batch"):
        wia.observe(wia.prepare_qat(Residual()), [])
    with pytest.raises(UsageError, match="call prepare_qat"):
        wia.observe(Residual(), [picture()])


def test_a_copy_is_its_own_model() -> None:
    prepared = wia.prepare_qat(Residual())
    train(prepared, [picture()])
    prepared.eval()
    (x,) = picture()
    before = prepared(x)
    other = copy.deepcopy(prepared)
    with torch.no_grad():
        other.head.bias.add_(1.0)
    assert torch.equal(prepared(x), before)
    torch.testing.assert_close(other(x), before + 1.0)


def test_batch_norms_are_fused_without_being_asked() -> None:
    prepared = wia.prepare_qat(Residual())
    assert all(prepared.get_submodule(name).bn is not None for name in ("stem", "conv1", "conv2"))


def test_an_excluded_module_stays_float() -> None:
    prepared = wia.prepare_qat(Mobile(), exclude=["depthwise"])
    assert isinstance(prepared.depthwise[0], nn.Conv2d)
    assert isinstance(prepared.expand[0], QuantizedProduct)
    assert "excluded" in prepared.wia_preparation.left_float.values()


def test_a_qconfig_of_none_excludes_as_in_torch() -> None:
    net = Mobile()
    net.head.qconfig = None
    assert isinstance(wia.prepare_qat(net).head, nn.Conv2d)


def test_an_unknown_name_to_exclude_is_an_error_with_near_ones() -> None:
    with pytest.raises(UsageError, match=r"no such submodule; .*depthwise"):
        wia.prepare_qat(Mobile(), exclude=["depth"])


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_model_that_cannot_be_traced_is_told_what_to_do() -> None:
    with pytest.raises(wia.PrepareError, match=r"Branching cannot be traced: .* prepare the submodules that can be"):
        wia.prepare_qat(Branching())


def test_preparing_twice_is_an_error() -> None:
    with pytest.raises(wia.PrepareError, match="prepared already"):
        wia.prepare_qat(wia.prepare_qat(Residual()))


def test_torch_knows_the_backend_after_the_import() -> None:
    assert torch.quantization.get_default_qat_qconfig("wia").activation().qtype.name == "int8"
    assert torch.ao.quantization.get_default_qconfig("wia").weight().qtype.name == "int8_narrow"
    assert torch.quantization.get_default_qat_qconfig("fbgemm") is not None


def test_registration_can_be_taken_back() -> None:
    wia.unregister()
    try:
        with pytest.raises(AssertionError, match="wia"):
            torch.quantization.get_default_qat_qconfig("wia")
    finally:
        wia.register()
    wia.register()
    assert torch.quantization.get_default_qat_qconfig("wia") is not None


def test_torchs_own_eager_prepare_trains_with_our_qconfig() -> None:
    net = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    net.qconfig = torch.quantization.get_default_qat_qconfig("wia")
    prepared = torch.ao.quantization.prepare_qat(net.train())
    before = prepared[1].weight.detach().clone()
    train(prepared, [picture(), picture()])
    assert not torch.equal(before, prepared[1].weight)
    assert prepared[1].weight_fake_quant.qparams().scale.shape == (4,)


def test_without_torch_one_error_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import wia_quant\n"
        "try:\n    import wia_quant.torch\n"
        "except wia_quant.errors.MissingExtraError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "PyTorch is not installed; install it with: pip install 'wia-quant[torch]'\n"


def test_training_in_evaluation_mode_moves_parameters_and_neither_ranges_nor_statistics() -> None:
    prepared = wia.observe(wia.prepare_qat(Residual()), [picture() for _ in range(4)]).eval()
    before = copy.deepcopy(prepared.state_dict())
    optimizer = torch.optim.SGD(prepared.parameters(), 0.01)
    prepared(*picture()).square().sum().backward()
    optimizer.step()
    after = prepared.state_dict()
    tensors = [key for key, value in before.items() if isinstance(value, torch.Tensor)]
    moved = {key for key in tensors if not torch.equal(before[key], after[key])}
    assert {key.rpartition(".")[2] for key in moved} == {"weight", "bias"}


def test_a_checkpoint_right_after_calibration_holds_what_was_calibrated() -> None:
    first, second = wia.prepare(Residual()), wia.prepare(Residual())
    first(*picture())
    second.load_state_dict(first.state_dict())
    x = picture()[0]
    assert torch.equal(wia.convert(second)(x), wia.convert(first)(x))


def test_short_training_recovers_what_weights_of_four_bits_lose() -> None:
    torch.manual_seed(1)
    net, seen, unseen = Residual().eval(), [picture()[0] for _ in range(8)], picture()[0]
    teacher, qconfig = wia.Teacher(net), wia.get_qconfig("w4a8")
    calibrated = wia.prepare(net, qconfig=qconfig)
    for x in seen:
        calibrated(x)
    prepared = wia.observe(wia.prepare_qat(net, qconfig=qconfig), seen)
    optimizer = torch.optim.Adam(prepared.parameters(), 1e-3)
    for step in range(64):
        x = seen[step % len(seen)]
        teacher(prepared(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        lost = float(teacher(wia.convert(calibrated)(unseen), unseen))
        left = float(teacher(prepared(unseen), unseen))
    assert left < 0.5 * lost, (left, lost)


def test_a_wrapper_of_a_model_is_an_error_that_names_what_is_in_it() -> None:
    for wrap in (nn.DataParallel, torch.optim.swa_utils.AveragedModel):
        with pytest.raises(UsageError, match=r"model\.module"):
            wia.export(wrap(wia.prepare_qat(Residual())), picture())


def test_nan_and_missing_data_name_the_quantizer() -> None:
    (x,) = picture()
    with pytest.raises(CalibrationError, match=r"'wia_activation_quantizers.x': .*NaN"):
        wia.prepare_qat(Residual())(x * float("nan"))
    with pytest.raises(CalibrationError, match=r"quantizer 'wia_activation_quantizers.\w+' saw no data"):
        wia.convert(wia.prepare(Residual()))


def test_circular_padding_is_refused_before_training() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"))
    with pytest.raises(PrepareError, match=r"'0' has padding_mode='circular'"):
        wia.prepare_qat(net)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ({"input_names": ["a", "b"]}, "input_names has 2 names, but the model has 1 inputs"),
        ({"input_names": ["a"], "output_names": ["a"]}, "taken twice"),
        ({"output_names": [""]}, "empty"),
    ],
)
def test_names_that_do_not_fit_the_inputs_and_outputs_are_an_error(names: dict[str, list[str]], message: str) -> None:
    prepared = wia.prepare_qat(nn.Sequential(nn.Linear(4, 3)))
    x = torch.randn(2, 4)
    prepared(x)
    with pytest.raises(UsageError, match=message):
        wia.export(prepared, x, **names)
