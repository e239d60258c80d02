# SPDX-License-Identifier: Apache-2.0
"""An exported file computes what was trained, in libwia and in onnxruntime."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F  # noqa: N812  # as every torch user writes it
from torch import nn

from benchmarks.torch_steps import operator_by_operator
from tests.torch.nets import NETS, Mobile, Residual, Two, outputs, picture, train
from wia_quant.affine import INT8, INT16_SYMMETRIC
from wia_quant.errors import CalibrationError, ExportError
from wia_quant.files import OutputError
from wia_quant.rules import Severity, check_model
from wia_quant.torch import (
    FakeQuantize,
    PrepareError,
    convert,
    export,
    freeze,
    freeze_batch_norm,
    get_lsq_qconfig,
    get_qconfig,
    observe,
    prepare,
    prepare_qat,
    start_learning,
)
from wia_quant.torch.qconfig import OBSERVERS, SCHEMES

#: A value on the edge of two levels may fall to either by rounding of float sums; the outputs follow it by less than
#: this share of their span, some 5 steps of 255.
SPAN = 0.02


def faults(model: onnx.ModelProto) -> list[str]:
    return [str(finding) for finding in check_model(model) if finding.severity is not Severity.NOTE]


def in_onnxruntime(model: onnx.ModelProto, batch: tuple[torch.Tensor, ...]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feeds = {i.name: value.numpy() for i, value in zip(session.get_inputs(), batch, strict=True)}
    return session.run(None, feeds)


@pytest.mark.parametrize("name", NETS)
def test_what_was_trained_is_what_the_file_computes(name: str) -> None:
    make, batch = NETS[name]
    prepared = prepare_qat(make())
    train(prepared, [batch() for _ in range(6)])
    example = batch()
    exported = export(prepared, example, verify=True)
    onnx.checker.check_model(exported.model, full_check=True)
    assert faults(exported.model) == []
    frozen = freeze(prepared)
    for difference in exported.differences:
        assert difference.largest <= SPAN * difference.span, str(difference)
        assert difference.share <= 0.01, str(difference)
    for got, wanted in zip(in_onnxruntime(exported.model, example), outputs(frozen(*example)), strict=True):
        np.testing.assert_allclose(got, wanted.detach().numpy(), atol=SPAN * float(wanted.detach().abs().max()))


def test_differences_are_told_in_steps_of_the_output_or_of_int8_on_its_range() -> None:
    make, batch = NETS["two"]
    prepared = prepare_qat(make())
    train(prepared, [batch() for _ in range(3)])
    example = batch()
    exported = export(prepared, example, verify=True)
    logits, levels = exported.differences
    graph = exported.model.graph
    (dequantize,) = (node for node in graph.node if levels.output in node.output)
    (scale,) = (onnx.numpy_helper.to_array(t) for t in graph.initializer if t.name == dequantize.input[1])
    assert levels.step == float(scale)
    wanted = outputs(freeze(prepared)(*example))[0]
    lo, hi = min(float(wanted.min()), 0.0), max(float(wanted.max()), 0.0)
    assert logits.step == pytest.approx((hi - lo) / 255)
    assert logits.steps == logits.largest / logits.step < 1
    assert " steps" in str(logits)


@pytest.mark.parametrize("name", ["residual", "mobile", "branches"])
def test_every_quantized_value_of_the_file_is_within_a_step_of_torchs_operator_on_the_same_levels(name: str) -> None:
    make, batch = NETS[name]
    prepared = prepare_qat(make())
    train(prepared, [batch() for _ in range(6)])
    found = operator_by_operator(prepared.eval(), torch.cat([batch()[0] for _ in range(20)]), batch=20)
    assert found.values > 10_000
    assert found.largest <= 1
    assert found.differing <= 1e-4 * found.values
    assert found.of_logits < 0.01


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_exported_as_it_was_trained(scheme: str, name: str) -> None:
    make, batch = NETS[name]
    prepared = prepare_qat(make(), qconfig=get_qconfig(scheme))
    train(prepared, [batch() for _ in range(3)])
    for difference in export(prepared, batch(), verify=True).differences:
        assert difference.share <= 0.01, str(difference)


@pytest.mark.parametrize("observer", OBSERVERS)
def test_every_observer_can_calibrate(observer: str) -> None:
    prepared = prepare(Residual(), qconfig=get_qconfig(observer=observer))
    prepared(*picture())
    (difference,) = export(convert(prepared), picture(), verify=True).differences
    assert difference.share <= 0.01, str(difference)


def test_weights_per_tensor_are_exported_as_trained() -> None:
    prepared = prepare_qat(Mobile(), qconfig=get_qconfig(per_channel=False))
    train(prepared, [picture() for _ in range(3)])
    (difference,) = export(prepared, picture(), verify=True).differences
    assert difference.share <= 0.01, str(difference)


def test_a_bias_is_trained_as_the_file_rounds_it() -> None:
    prepared = prepare_qat(nn.Sequential(nn.Linear(32, 16)))
    train(prepared, [(torch.randn(8, 32),)])
    prepared.eval()(torch.randn(2, 32))
    product = prepared.get_submodule("0")
    bias = product.rounded(product.bias).detach().double()
    step = product.input_quantizer[0].scale.double() * product.weight_fake_quantize.scale.double()
    levels = bias / step
    assert torch.allclose(levels, levels.round(), atol=1e-3)
    assert not torch.equal(bias, product.bias.double())
    stored = [onnx.numpy_helper.to_array(t) for t in export(prepared, torch.randn(2, 32)).model.graph.initializer]
    assert any(array.dtype == np.int32 and np.array_equal(array, levels.round().numpy()) for array in stored)


class OwnPadding(nn.Conv2d):
    """As TensorFlow pads, and as ported nets write it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.pad(x, (0, 1, 0, 1))
        return nn.functional.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


def test_a_convolution_with_its_own_forward_is_quantized_and_folded() -> None:
    net = nn.Sequential(OwnPadding(3, 8, 3, stride=2, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 2, 1))
    prepared = prepare_qat(net)
    assert prepared.get_submodule("0.wia_product").bn is not None
    train(prepared, [picture() for _ in range(3)])
    exported = export(prepared, picture(), verify=True)
    assert exported.differences[0].share <= 0.01
    assert [d.op_type for d in exported.plan.decisions if not d.quantized] == []


def test_the_weight_of_an_excluded_module_is_exported_as_it_was_trained_float() -> None:
    prepared = prepare_qat(Mobile(), exclude=["depthwise"])
    train(prepared, [picture() for _ in range(2)])
    exported = export(prepared, picture(), verify=True)
    assert [d.quantized for d in exported.plan.decisions if d.op_type == "Conv"] == [True, False, True, True]
    assert exported.differences[0].share <= 0.01


@dataclass
class Answer:
    logits: torch.Tensor
    hidden: torch.Tensor


class Answering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(32, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> Answer:
        hidden = torch.relu(self.body(x))
        return Answer(self.head(hidden), hidden)


def test_a_dataclass_of_outputs_is_exported_in_its_order() -> None:
    prepared = prepare_qat(Answering())
    prepared(torch.randn(4, 32))
    exported = export(prepared, torch.randn(4, 32), verify=True)
    assert [d.share <= 0.01 for d in exported.differences] == [True, True]
    assert [o.type.tensor_type.shape.dim[1].dim_value for o in exported.model.graph.output] == [16, 32]


class Sorting(nn.Module):
    """What no exporter takes: a branch on a value."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else x.flip(1)


class WithSorting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.inner = nn.Sequential(nn.Linear(32, 32), Sorting())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.first(x))


def test_the_keys_of_a_dict_of_outputs_name_the_outputs_of_the_file() -> None:
    prepared, batch = prepare_qat(Two().train()), (torch.randn(4, 8), torch.randn(4, 8))
    wanted = prepared(*batch)
    assert [o.name for o in export(prepared, batch).model.graph.output] == list(wanted)


def test_a_submodule_that_cannot_be_traced_is_named_with_the_remedy() -> None:
    with pytest.raises(PrepareError, match=r"submodule 'inner\.1' \(Sorting\) .*exclude=\['inner\.1'\]"):
        prepare_qat(WithSorting())


def test_a_submodule_that_cannot_be_exported_is_named_with_the_remedy() -> None:
    prepared = prepare_qat(WithSorting(), exclude=["inner.1"])
    prepared(torch.randn(4, 32))
    with pytest.raises(ExportError, match=r"submodule 'inner\.1' \(Sorting\): .*; write it without branches"):
        export(prepared, torch.randn(4, 32))


def test_activations_of_two_widths_are_an_error() -> None:
    prepared = prepare_qat(Residual())
    train(prepared, [picture()])
    next(m for m in prepared.modules() if isinstance(m, FakeQuantize) and m.qtype == INT8).qtype = INT16_SYMMETRIC
    with pytest.raises(ExportError, match="8 and 16 bits"):
        export(prepared, picture())


def test_the_frozen_model_is_the_model_in_evaluation() -> None:
    prepared = prepare_qat(Residual())
    train(prepared, [picture() for _ in range(4)])
    (x,) = picture()
    prepared.eval()
    torch.testing.assert_close(freeze(prepared)(x), prepared(x), rtol=1e-5, atol=1e-6)


def test_export_right_after_samples_rounds_biases_by_the_ranges_that_were_seen() -> None:
    prepared = observe(prepare_qat(Residual().train()), [picture()])
    file = export(prepared, picture()).model
    batch = picture()
    (got,) = in_onnxruntime(file, batch)
    np.testing.assert_allclose(got, prepared.eval()(*batch).detach(), atol=1e-5)


def test_the_batch_is_open() -> None:
    prepared = prepare_qat(Residual())
    train(prepared, [picture(), picture()])
    exported = export(prepared, picture(3))
    (got,) = in_onnxruntime(exported.model, picture(7))
    assert got.shape == (7, 5)


def test_learned_scales_are_the_scales_of_the_file() -> None:
    prepared = prepare_qat(Residual(), qconfig=get_lsq_qconfig())
    train(prepared, [picture()])
    learned = start_learning(prepared)
    before = [p.detach().clone() for p in learned]
    train(prepared, [picture() for _ in range(4)], rate=0.05)
    assert all(not torch.equal(a, b) for a, b in zip(before, learned, strict=True))
    exported = export(prepared, picture(), verify=True)
    (difference,) = exported.differences
    assert difference.largest <= SPAN * difference.span, str(difference)
    assert faults(exported.model) == []
    stored = [onnx.numpy_helper.to_array(t) for t in exported.model.graph.initializer]
    scale = prepared.head.weight_fake_quantize.qparams().scale
    assert any(np.array_equal(scale, array) for array in stored)


def test_post_training_ranges_are_exported_like_trained_ones() -> None:
    prepared = prepare(Residual().eval())
    for _ in range(3):
        prepared(*picture())
    (x,) = picture()
    converted = convert(prepared)
    exported = export(converted, x, verify=True)
    assert faults(exported.model) == []
    assert exported.differences[0].largest <= SPAN * exported.differences[0].span


def test_a_gamma_of_zero_trains_and_exports() -> None:
    net = Residual()
    nn.init.zeros_(net.bn2.weight)
    prepared = prepare_qat(net)
    train(prepared, [picture() for _ in range(3)])
    assert all(bool(torch.isfinite(p).all()) for p in prepared.parameters())
    exported = export(prepared, picture(), verify=True)
    assert exported.differences[0].largest <= SPAN * exported.differences[0].span


def test_frozen_batch_norms_keep_their_statistics() -> None:
    prepared = prepare_qat(Residual())
    train(prepared, [picture()])
    freeze_batch_norm(prepared)
    before = prepared.stem.bn.running_mean.clone()
    prepared(*picture())
    assert torch.equal(prepared.stem.bn.running_mean, before)


@pytest.mark.parametrize("transposed", [nn.ConvTranspose1d, nn.ConvTranspose2d])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_batch_norm_folds_into_a_transposed_convolution(transposed: type[nn.Module], groups: int) -> None:
    rank = 1 if transposed is nn.ConvTranspose1d else 2
    bn = nn.BatchNorm1d(6) if rank == 1 else nn.BatchNorm2d(6)
    net = nn.Sequential(transposed(4, 6, 3, groups=groups), bn).train()
    for _ in range(3):
        net(torch.randn(5, 4, *[8] * rank))
    nn.init.uniform_(bn.weight, 0.5, 2.0)
    prepared = prepare_qat(net)
    product = prepared.get_submodule("0")
    weight, bias = product.folded()
    x = torch.randn(2, 4, *[8] * rank)
    torch.testing.assert_close(product._multiply(x, weight, bias), net.eval()(x), rtol=1e-4, atol=1e-5)


def test_a_file_is_not_overwritten_unasked(tmp_path: Path) -> None:
    prepared = prepare_qat(Residual())
    train(prepared, [picture()])
    path = tmp_path / "net.wia.onnx"
    export(prepared, picture(), path)
    with pytest.raises(OutputError, match=r"net\.wia\.onnx"):
        export(prepared, picture(), path)
    export(prepared, picture(), path, force=True)


def test_a_model_that_saw_no_data_is_an_error() -> None:
    with pytest.raises(CalibrationError, match="saw no data"):
        export(prepare_qat(Residual()), picture())


def test_a_model_that_was_not_prepared_is_an_error() -> None:
    with pytest.raises(ExportError, match="prepare_qat"):
        export(Residual(), picture())


def test_the_same_training_exports_the_same_file() -> None:
    prepared = prepare_qat(Residual())
    train(prepared, [picture()])
    example = picture()
    once, again = (export(copy.deepcopy(prepared), example).model.SerializeToString() for _ in range(2))
    assert once == again


class _Formula(nn.Module):
    """``formula(self, x)``, where ``p`` and ``q`` are parameters and ``a`` and ``b`` layers."""

    def __init__(self, formula: Callable[[Any, torch.Tensor], torch.Tensor], p: list[int], q: list[int]) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.formula, self.a, self.b = formula, nn.Linear(5, 5), nn.Linear(5, 5)
        self.p, self.q = nn.Parameter(torch.randn(p)), nn.Parameter(torch.rand(q))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.formula(self, x)


FORMULAS: Final[dict[str, Callable[[], nn.Module]]] = {
    "a weight scaled": lambda: _Formula(lambda s, x: F.linear(F.relu(s.a(x)), s.p * s.q), [6, 5], [6, 1]),
    "a matrix scaled": lambda: _Formula(lambda s, x: F.relu(s.a(x)) @ (s.p * s.q), [5, 6], [5, 1]),
    "t()": lambda: _Formula(lambda s, x: F.relu(x @ s.p.t()) @ s.q, [6, 5], [6, 5]),
    "transpose": lambda: _Formula(lambda s, x: F.relu(x @ s.p.transpose(0, 1)) @ s.q, [6, 5], [6, 5]),
    "a standardized weight": lambda: _Formula(lambda s, x: F.linear(s.a(x), s.p - s.p.mean(1, True)), [6, 5], [6]),
    "a sum of parameters": lambda: _Formula(lambda s, x: s.b(s.a(x) + (s.p + s.q)), [5], [5]),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_what_folding_makes_of_parameters_is_what_training_computed(name: str) -> None:
    batches = [(torch.randn(40, 5),) for _ in range(3)]
    prepared = prepare_qat(FORMULAS[name]())
    train(prepared, batches)
    (difference,) = export(prepared, batches[0], verify=True).differences
    assert difference.share == 0.0


def test_one_small_product_between_float_operators_is_exported_as_integers() -> None:
    """It is left float after training where others are integers; alone, export said that there was nothing."""
    net = nn.Sequential(nn.Embedding(20, 8), nn.Tanh(), nn.Linear(8, 20))
    prepared, x = prepare_qat(net), torch.randint(0, 20, (3, 5))
    prepared(x)
    exported = export(prepared, x, verify=True)
    assert exported.differences[0].share == 0.0
    assert [d.node for d in exported.plan.decisions if d.quantized]


class _Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.conv(x), self.conv(y)], 0)


def test_an_open_batch_has_a_name_that_says_so() -> None:
    x = torch.rand(2, 3, 8, 8)
    prepared = prepare_qat(_Pair())
    prepared(x, x)
    graph = export(prepared.eval(), (x, x + 1)).model.graph
    first = [value.type.tensor_type.shape.dim[0].dim_param for value in (*graph.input, *graph.output)]
    assert first[:2] == ["batch", "y_batch"]
    assert sorted(first[2].split(" + ")) == ["batch", "y_batch"]
