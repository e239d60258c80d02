# SPDX-License-Identifier: Apache-2.0
"""Training rounds exactly as docs/quantization.md says, and its gradient stops where values saturate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from wia_quant import affine
from wia_quant.affine import INT8, INT8_NARROW, UINT8, QParams, QType
from wia_quant.torch import FakeQuantize
from wia_quant.torch.fake_quantize import fake_quantize
from wia_quant.torch.observers import AbsMaxObserver, CalibratorObserver, MinMaxObserver, MovingAverageMinMaxObserver

SEEDS = range(12)


def values(rng: np.random.Generator, scale: float) -> np.ndarray:
    """Every magnitude, ties between two levels, saturation, NaN and infinity."""
    spread = rng.normal(size=200) * scale * 10.0 ** rng.integers(-3, 4, 200)
    ties = (rng.integers(-200, 200, 100) + 0.5) * np.float32(scale)
    return np.concatenate([spread, ties, [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(np.float32)


@pytest.mark.parametrize("qtype", [INT8, UINT8, INT8_NARROW], ids=lambda t: t.name)
@pytest.mark.parametrize("seed", SEEDS)
def test_per_tensor_is_the_arithmetic_of_the_file_to_the_bit(qtype: QType, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scale = np.float32(10.0 ** rng.uniform(-6, 3))
    zero_point = qtype.middle if qtype.symmetric else int(rng.integers(qtype.qmin, qtype.qmax + 1))
    qp = QParams(qtype, np.array(scale), np.array(zero_point, dtype=qtype.dtype))
    x = values(rng, float(scale))
    got = fake_quantize(torch.from_numpy(x), torch.tensor(scale), torch.tensor(zero_point), qtype.qmin, qtype.qmax)
    np.testing.assert_array_equal(got.numpy(), affine.fake_quantize(x, qp))


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_per_axis_is_the_arithmetic_of_the_file_to_the_bit(axis: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    w = rng.normal(size=(3, 4, 5)).astype(np.float32)
    scale = (10.0 ** rng.uniform(-4, 0, w.shape[axis])).astype(np.float32)
    qp = QParams(INT8_NARROW, scale, np.zeros(scale.shape, np.int8), axis)
    zero_point = torch.zeros(len(scale), dtype=torch.int32)
    got = fake_quantize(torch.from_numpy(w), torch.from_numpy(scale), zero_point, -127, 127, axis)
    np.testing.assert_array_equal(got.numpy(), affine.fake_quantize(w, qp))


def test_the_gradient_passes_exactly_where_levels_do_not_saturate() -> None:
    scale, zero_point = 0.1, 20
    x = torch.linspace(-20, 20, 4001, requires_grad=True)
    fake_quantize(x, torch.tensor(scale), torch.tensor(zero_point), -128, 127).sum().backward()
    level = np.rint(x.detach().numpy() / np.float32(scale)) + zero_point
    inside = (level >= -128) & (level <= 127)
    at_an_end = np.minimum(np.abs(level + 128), np.abs(level - 127)) <= 1  # ties with the ends: either is a gradient
    assert x.grad is not None
    np.testing.assert_array_equal(x.grad.numpy()[~at_an_end], inside.astype(np.float32)[~at_an_end])


def test_the_gradient_of_a_weight_passes_in_each_channel_by_its_own_scale() -> None:
    w = torch.tensor([[1.0, 200.0], [1.0, 200.0]], requires_grad=True)
    scale, zero_point = torch.tensor([1.0, 2.0]), torch.zeros(2, dtype=torch.int32)
    fake_quantize(w, scale, zero_point, -127, 127, 0).sum().backward()
    assert w.grad is not None
    assert w.grad.tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_the_range_is_the_mean_of_the_first_batches_ends_and_not_that_of_the_first() -> None:
    quantizer = FakeQuantize(MovingAverageMinMaxObserver, INT8)
    for batch in ([-1.0, 30.0], [-2.0, 5.0], [-3.0, 4.0]):
        quantizer(torch.tensor(batch))
    assert quantizer.qparams() == affine.choose_qparams(affine.Range(-2.0, 13.0), INT8)


def test_the_range_follows_later_batches_as_the_moving_average_of_their_ends() -> None:
    quantizer = FakeQuantize(MovingAverageMinMaxObserver, INT8)
    for _ in range(100):
        quantizer(torch.tensor([-1.0, 3.0]))
    quantizer(torch.tensor([-2.0, 5.0]))
    lo, hi = -1.0 + 0.01 * (-2.0 + 1.0), 3.0 + 0.01 * (5.0 - 3.0)
    wanted = affine.choose_qparams(affine.Range(lo, hi), INT8)
    assert np.isclose(float(quantizer.scale), float(wanted.scale), rtol=1e-6)


def test_a_resumed_average_counts_on_from_the_batches_before() -> None:
    first = FakeQuantize(MovingAverageMinMaxObserver, INT8)
    first(torch.tensor([-1.0, 3.0]))
    second = FakeQuantize(MovingAverageMinMaxObserver, INT8)
    second.load_state_dict(first.state_dict())
    for quantizer in (first, second):
        quantizer(torch.tensor([-2.0, 5.0]))
    assert second.qparams() == first.qparams() == affine.choose_qparams(affine.Range(-1.5, 4.0), INT8)


def test_evaluation_moves_no_range() -> None:
    quantizer = FakeQuantize(MovingAverageMinMaxObserver, INT8)
    quantizer(torch.tensor([-1.0, 3.0]))
    before = quantizer.qparams()
    quantizer.eval()(torch.tensor([-100.0, 300.0]))
    assert quantizer.qparams() == before


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_batch_with_nan_or_infinity_is_an_error(bad: float) -> None:
    with pytest.raises(affine.CalibrationError, match="NaN or infinity"):
        FakeQuantize(MinMaxObserver, INT8)(torch.tensor([1.0, bad]))


@pytest.mark.parametrize("calibrator", ["minmax", "percentile", "mse", "entropy"])
def test_every_calibrator_can_watch_a_tensor_of_torch_and_survives_a_checkpoint(calibrator: str) -> None:
    first = FakeQuantize(lambda: CalibratorObserver(calibrator), INT8)
    first(torch.randn(1000))
    second = FakeQuantize(lambda: CalibratorObserver(calibrator), INT8)
    second.load_state_dict(first.state_dict())
    assert second.qparams() == first.qparams()


def test_the_scale_of_a_weight_is_that_of_the_weight_now() -> None:
    quantizer = FakeQuantize(AbsMaxObserver, INT8_NARROW, 0)
    quantizer(torch.tensor([[127.0], [254.0]]))
    quantizer.eval()(torch.tensor([[254.0], [127.0]]))
    assert quantizer.qparams().scale.tolist() == [2.0, 1.0]
