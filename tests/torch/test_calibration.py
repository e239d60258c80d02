# SPDX-License-Identifier: Apache-2.0
"""Training begins with the ranges of post-training quantization, and can be watched."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import wia_quant
import wia_quant.torch as wia
from tests.torch.nets import NETS, Mobile, Residual, outputs, picture
from wia_quant.affine import range_of
from wia_quant.digest import graph_digest
from wia_quant.errors import CalibrationError, UsageError
from wia_quant.integers import integers_of
from wia_quant.quantizer import quantize_with_ranges
from wia_quant.torch.export import float_onnx


@pytest.mark.parametrize("name", ["residual", "mobile", "attention"])
def test_training_begins_with_the_ranges_of_the_table(name: str, tmp_path: Path) -> None:
    make, batch = NETS[name]
    net, batches = make().eval(), [batch() for _ in range(2)]
    quantized = wia_quant.quantize(net, data=batches)
    quantized.save(tmp_path / "net.wia.onnx")
    prepared = wia.from_calibration(net, tmp_path / "net.calib.json", batches[0])
    quantizers = [m for m in prepared.modules() if isinstance(m, wia.FakeQuantize) and m.observer.has_history]
    begun = [(m.observer.lo, m.observer.hi) for m in quantizers if m.observer.seen]
    table = {(r.lo, r.hi) for r in quantized.table.ranges.values()}
    assert len(begun) >= len(quantizers) - 3  # what only float operators read is not in the table
    assert set(begun) <= table


def test_a_table_of_another_model_is_an_error() -> None:
    quantized = wia_quant.quantize(Mobile().eval(), data=[picture()])
    table = dataclasses.replace(quantized.table, tensors={})
    with pytest.raises(CalibrationError, match="made of another one"):
        wia.from_calibration(Residual().eval(), table, picture())


def lived_in(net: nn.Module) -> nn.Module:
    """With statistics and factors of BatchNorms as if it had been trained, some negative."""
    torch.manual_seed(0)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            with torch.no_grad():
                module.bias.uniform_(-1, 1)
                module.get_buffer("running_mean").uniform_(-1, 1)
                module.get_buffer("running_var").uniform_(0.5, 2)
                module.weight.copy_(torch.rand_like(module.weight) - 0.5).add_(module.weight.sign())
    return net.eval()


def assert_same_integers(got: onnx.ModelProto, want: onnx.ModelProto) -> None:
    """But that a channel in which no weight is at level 127 has its largest put there; scales to the last bit or so."""
    pairs = list(zip(integers_of(got).values(), integers_of(want).values(), strict=True))
    assert pairs
    for ours, theirs in pairs:
        np.testing.assert_allclose(ours.scale, theirs.scale, rtol=2e-7)
        assert ours.bias is not None
        assert theirs.bias is not None
        np.testing.assert_allclose(ours.bias, theirs.bias, rtol=2e-7)
        axis = 1 if ours.node.op_type in ("ConvTranspose", "MatMul") else 0
        a, b = (np.moveaxis(i.levels, axis, 0).reshape(i.levels.shape[axis], -1) for i in (ours, theirs))
        short = np.abs(b).max(axis=1) < 127
        np.testing.assert_array_equal(a[~short], b[~short])
        assert ((a[short] != b[short]).sum(axis=1) == 1).all()


@pytest.mark.parametrize("name", ["residual", "mobile", "branches", "two"])
def test_training_begins_as_the_file_of_post_training_quantization(name: str) -> None:
    make, batch = NETS[name]
    torch.manual_seed(0)
    net, batches = lived_in(make()), [batch() for _ in range(8)]
    before = {key: value.clone() for key, value in net.state_dict().items()}
    quantized = wia_quant.quantize(net, data=batches)
    prepared = wia.from_calibration(net, quantized, batches[0]).eval()
    exported = wia.export(prepared, batches[0]).model
    assert_same_integers(exported, quantized.model)
    with torch.no_grad():
        got = outputs(prepared(*batches[0]))
    session = quantized.session()
    names = [i.name for i in session.get_inputs()]
    want = session.run(None, dict(zip(names, (b.numpy() for b in batches[0]), strict=True)))
    for a, b in zip(got, want, strict=True):
        assert np.abs(a.numpy() - b).max() <= 0.01 * np.abs(b).max()  # a value on the edge of two levels
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)


def test_a_module_that_the_file_has_in_float_is_named(caplog: pytest.LogCaptureFixture) -> None:
    make, batch = NETS["words"]
    torch.manual_seed(0)
    net = make().eval()
    with caplog.at_level(logging.WARNING, logger="wia_quant"):
        wia.from_calibration(net, wia_quant.quantize(net, data=[batch()]), batch())
    assert "head: the file has no product with its weights, which begin as they are" in caplog.text


def test_a_module_without_bias_gets_one_for_the_correction() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.ReLU(), nn.Conv2d(8, 4, 3, bias=False)).eval()
    quantized = wia_quant.quantize(net, data=[picture(), picture()])
    prepared = wia.from_calibration(net, quantized, picture()).eval()
    assert all(net[i].bias is None for i in (0, 2))
    assert_same_integers(wia.export(prepared, picture()).model, quantized.model)


def small(act: type[nn.Module] = nn.ReLU) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), act(), nn.Conv2d(4, 5, 1)).eval()


@pytest.mark.parametrize("change", ["weight.neg_()", "weight.mul_(3)", "bias.add_(5)", "another activation"])
def test_a_result_of_another_model_or_of_weights_since_changed_is_an_error(change: str) -> None:
    net = small()
    quantized = wia_quant.quantize(net, data=[picture()])
    with torch.no_grad():
        if change == "weight.neg_()":
            net.get_parameter("3.weight").neg_()
        elif change == "weight.mul_(3)":
            net.get_parameter("3.weight").mul_(3)
        elif change == "bias.add_(5)":
            net.get_parameter("3.bias").add_(5)
        else:
            net = small(nn.ReLU6)
    with pytest.raises(CalibrationError, match="weights have changed since: quantize it again"):
        wia.from_calibration(net, quantized, picture())


def test_a_table_of_weights_since_changed_gives_its_ranges_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    net = small()
    table = wia_quant.quantize(net, data=[picture()]).table
    with caplog.at_level(logging.WARNING, logger="wia_quant"):
        wia.from_calibration(net, table, picture())
        assert "weights have changed" not in caplog.text
        with torch.no_grad():
            net.get_parameter("3.bias").add_(0.01)
        wia.from_calibration(net, table, picture())
    assert "made of another model, or this one's weights have changed since" in caplog.text


def assert_begins_as_the_file(net: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    batches = [picture() for _ in range(2)]
    quantized = wia_quant.quantize(net.eval(), data=batches)
    with caplog.at_level(logging.WARNING, logger="wia_quant"):
        prepared = wia.from_calibration(net, quantized, batches[0]).eval()
    assert "begin as they are" not in caplog.text
    session = quantized.session()
    want = session.run(None, {session.get_inputs()[0].name: batches[0][0].numpy()})[0]
    with torch.no_grad():
        got = prepared(*batches[0]).numpy()
    assert np.abs(got - want).max() <= 0.01 * np.abs(want).max()


def test_layers_of_clipped_weights_have_one_scale_and_each_begins_with_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*(m for _ in range(3) for m in (nn.Conv2d(3, 3, 3, padding=1), nn.ReLU())), nn.Conv2d(3, 2, 1))
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(4).clamp_(-0.2, 0.2)
    assert_begins_as_the_file(net, caplog)


def test_a_net_of_zero_weights_only_is_not_taken_for_another(caplog: pytest.LogCaptureFixture) -> None:
    net = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, groups=3))
    nn.init.zeros_(net.get_parameter("0.weight"))
    assert_begins_as_the_file(net, caplog)


def test_samples_shown_before_training_give_the_ranges_of_calibration() -> None:
    net, batches = Residual().eval(), [picture() for _ in range(3)]
    calibrated, prepared = wia.prepare(net), wia.prepare_qat(net, qconfig=wia.get_default_qconfig()).train()
    for batch in batches:
        calibrated(*batch)
    wia.observe(prepared, batches)
    assert prepared.training
    spans = [
        [range_of(m.qparams()) for m in model.modules() if isinstance(m, wia.FakeQuantize) and m.axis is None]
        for model in (calibrated, prepared)
    ]
    assert spans[0] == spans[1]


def test_a_teacher_is_satisfied_by_itself_and_pulls_others() -> None:
    net, (x,) = Residual().eval(), picture()
    teacher = wia.Teacher(net, temperature=2.0)
    with torch.no_grad():
        assert float(teacher(net(x), x)) == pytest.approx(0.0, abs=1e-6)
    student = wia.prepare_qat(Residual())
    loss = teacher(student(x), x)
    loss.backward()
    assert float(loss.detach()) > 0
    assert all(p.grad is not None for p in student.parameters())
    with pytest.raises(UsageError, match="other shapes"):
        teacher(torch.zeros(1, 2), x)


class Writer:
    """What a TensorBoard SummaryWriter offers of it."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[tuple[int, float]]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.setdefault(tag, []).append((step, value))


def test_ranges_and_scales_are_logged_as_they_move() -> None:
    prepared, writer = wia.prepare_qat(Residual()), Writer()
    with wia.log_ranges(prepared, writer, every=2):
        for _ in range(4):
            prepared(*picture())
    prepared(*picture())
    tags = set(writer.scalars)
    assert {"wia/stem.weight_fake_quantize/scale_max", "wia/x/lo", "wia/x/hi", "wia/x/scale"} <= tags
    assert [step for step, _ in writer.scalars["wia/x/lo"]] == [0, 2]
    assert all(value < 0 for _, value in writer.scalars["wia/x/lo"])


class Classifier(nn.Module):
    """Words, their places, a hidden layer, a head for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(300, 32)
        self.places = nn.Parameter(torch.randn(6, 32) * 0.1)
        self.hidden, self.head = nn.Linear(32, 48), nn.Linear(48, 16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.hidden(self.words(ids) + self.places)))


def test_an_embedding_is_int8_rows_and_nothing_else_as_after_training() -> None:
    net, batches = Classifier().eval(), [(torch.randint(0, 300, (4, 6)),) for _ in range(2)]
    table = wia_quant.quantize(net, data=batches).table
    after_training = quantize_with_ranges(float_onnx(net, batches[0]), table.ranges)
    exported = wia.export(wia.from_calibration(net, table, batches[0]).eval(), batches[0], verify=True)
    assert graph_digest(exported.model) == graph_digest(after_training.model)
    assert exported.differences[0].share <= 0.01


def test_observe_takes_the_batches_of_a_loader_that_gives_labels_too() -> None:
    net, (x,) = Residual().train(), picture()
    labelled = wia.observe(wia.prepare_qat(net), [(x, torch.zeros(len(x), dtype=torch.long))])
    alone = wia.observe(wia.prepare_qat(net), [x])
    scales = [[q.scale for q in m.modules() if isinstance(q, wia.FakeQuantize)] for m in (labelled, alone)]
    assert len(scales[0]) > 2
    assert all(torch.equal(a, b) for a, b in zip(*scales, strict=True))
