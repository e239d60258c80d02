# SPDX-License-Identifier: Apache-2.0
"""What every entry of CALIBRATORS promises, and what each chooses, against slow float64 oracles."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from wia_quant.affine import INT8, UINT8, Range, choose_qparams, fake_quantize
from wia_quant.calibrators import CALIBRATORS, Calibrator
from wia_quant.calibrators.entropy import LEVELS, divergences, magnitudes
from wia_quant.calibrators.histogram import MAX_BINS, Histogram, count_bins, fast_count_bins
from wia_quant.calibrators.moving_average import MovingAverage
from wia_quant.calibrators.mse import Mse
from wia_quant.calibrators.percentile import Percentile
from wia_quant.errors import CalibrationError, UsageError

Array = npt.NDArray[Any]
Make = type[Calibrator]


@pytest.fixture(params=CALIBRATORS)
def make(request: pytest.FixtureRequest) -> Make:
    return CALIBRATORS[request.param]


def normal(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def relu(seed: int, *shape: int, scale: float = 1.0) -> Array:
    return np.maximum(normal(seed, *shape, scale=scale), np.float32(0))


def heavy(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_t(2.5, shape).astype(np.float32)


def silu(seed: int, *shape: int) -> Array:
    x = normal(seed, *shape, scale=3.0)
    return np.asarray(x / (1 + np.exp(-x)), dtype=np.float32)


#: Batches of different shapes and magnitudes, as a model's tensors give them.
DATA: dict[str, list[Array]] = {
    "normal": [normal(1, 2, 3, 40), normal(2, 1, 3, 17, scale=5.0), normal(3, 4000, scale=0.1)],
    "relu": [relu(4, 1, 8, 30, 30), relu(5, 1, 8, 11, 60, scale=20.0), relu(6, 5)],
    "heavy tails": [heavy(7, 3000), heavy(8, 50, 60), heavy(9, 7)],
    "silu": [silu(10, 30, 40), silu(11, 9000)],
    "far from zero": [normal(12, 500) + np.float32(100), normal(13, 400) + np.float32(120)],
    "negative": [-relu(14, 600), -relu(15, 60, 10, scale=3.0)],
    "zeros": [np.zeros((2, 3), np.float32), np.zeros(5, np.float32)],
    "zeros of both signs": [np.array([-0.0], np.float32), np.array([0.0, -0.0], np.float32)],
    "one value": [np.array(2.5, np.float32)],
    "denormal": [np.array([1e-45, -1e-40, 3e-39], np.float32), np.array([-1e-45], np.float32)],
    "largest": [np.array([3.4e38, -3.4e38, 1.0], np.float32), normal(16, 100)],
    "an outlier": [normal(17, 4000), np.append(normal(18, 4000), np.float32(3000.0))],
}


@pytest.fixture(params=DATA)
def batches(request: pytest.FixtureRequest) -> list[Array]:
    return DATA[request.param]


def shown(make: Callable[[], Calibrator], batches: list[Array]) -> Calibrator:
    calibrator = make()
    for batch in batches:
        calibrator.observe(batch)
    return calibrator


def flat(batches: list[Array]) -> npt.NDArray[np.float64]:
    return np.concatenate([b.reshape(-1) for b in batches]).astype(np.float64)


# ---- every entry ----------------------------------------------------------------------------------------------


def test_keeps_zero_and_never_more_than_it_saw(make: Make, batches: list[Array]) -> None:
    kept, seen = shown(make, batches).range(), flat(batches)
    assert min(seen.min(), 0.0) <= kept.lo <= 0.0 <= kept.hi <= max(seen.max(), 0.0)


def test_the_order_of_the_batches_does_not_matter(make: Make, batches: list[Array]) -> None:
    assert json.dumps(shown(make, batches).state()) == json.dumps(shown(make, batches[::-1]).state())


@pytest.mark.parametrize("at", [0, 1, 2])
def test_two_workers_merged_equal_one_pass_to_the_bit(make: Make, batches: list[Array], at: int) -> None:
    one, other = shown(make, batches[:at]), shown(make, batches[at:])
    one.merge(other)
    assert json.dumps(one.state()) == json.dumps(shown(make, batches).state())
    assert one.range() == shown(make, batches).range()


def test_a_calibration_goes_on_from_its_state_in_json(make: Make, batches: list[Array]) -> None:
    begun = shown(make, batches[:1])
    resumed = make.from_state(json.loads(json.dumps(begun.state(), allow_nan=False)))
    for batch in batches[1:]:
        resumed.observe(batch)
    assert resumed.state() == shown(make, batches).state()
    assert resumed.range() == shown(make, batches).range()


def test_counts_the_values(make: Make, batches: list[Array]) -> None:
    assert shown(make, batches).n_values == flat(batches).size


def test_the_share_clipped_is_that_of_the_values_outside(make: Make, batches: list[Array]) -> None:
    calibrator = shown(make, batches)
    share, kept, seen = calibrator.clipped(), calibrator.range(), flat(batches)
    # A bin that reaches over the end counts as inside.
    outside = float(((seen < kept.lo) | (seen > kept.hi)).mean())
    assert share is None or 0.0 <= share <= outside


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39], ids=["nan", "inf", "-inf", "too large for float32"])
def test_what_is_not_finite_is_an_error_and_leaves_no_trace(make: Make, bad: float) -> None:
    calibrator = shown(make, DATA["normal"])
    before = json.dumps(calibrator.state())
    with pytest.raises(CalibrationError, match="1 of 3 values are not finite"):
        calibrator.observe(np.array([1.0, bad, -1e30]))
    assert json.dumps(calibrator.state()) == before


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
def test_integers_are_not_observed_as_reals(make: Make, dtype: type) -> None:
    with pytest.raises(CalibrationError, match="only floating-point"):
        make().observe(np.ones(3, dtype))


def test_no_data_gives_no_range(make: Make) -> None:
    calibrator = make()
    calibrator.observe(np.zeros((0, 4), np.float32))
    with pytest.raises(CalibrationError, match="no value was observed"):
        calibrator.range()


def test_merging_with_one_that_saw_nothing_changes_nothing(make: Make, batches: list[Array]) -> None:
    calibrator = shown(make, batches)
    calibrator.merge(make())
    other = make()
    other.merge(shown(make, batches))
    assert calibrator.state() == other.state() == shown(make, batches).state()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_takes_every_floating_type_and_stride(make: Make, dtype: type) -> None:
    x = normal(20, 30, 40).astype(np.float16)
    calibrator = make()
    calibrator.observe(x.astype(dtype).T[::2])
    assert calibrator.state() == shown(make, [x.T[::2].astype(np.float32)]).state()


def test_the_batch_is_neither_changed_nor_kept(make: Make) -> None:
    x = normal(21, 500)
    copy = x.copy()
    calibrator = shown(make, [x])
    assert np.array_equal(x, copy)
    before = calibrator.range()
    x[:] = 1e6
    assert calibrator.range() == before


def test_memory_is_constant(make: Make) -> None:
    calibrator = make()
    sizes = []
    for n in range(200):
        calibrator.observe(normal(n, 1000, scale=1.1**n))
        sizes.append(len(json.dumps(calibrator.state())))
    assert max(sizes) < 64 << 10
    assert sizes[-1] < 2 * sizes[20] + 1000


def test_after_a_relu_the_lowest_level_is_zero(make: Make) -> None:
    params = choose_qparams(shown(make, DATA["relu"]).range(), UINT8)
    assert params.zero_point == 0


def test_the_zero_point_is_255_only_if_nothing_was_positive(make: Make) -> None:
    for name, batches in DATA.items():
        params = choose_qparams(shown(make, batches).range(), UINT8)
        assert params.zero_point < 255 or flat(batches).max() <= 0, name


def test_all_zeros_are_a_range_of_one_point(make: Make) -> None:
    assert shown(make, DATA["zeros"]).range() == Range(0.0, 0.0)


def test_values_beside_one_that_is_far_off_do_not_vanish(make: Make) -> None:
    kept = shown(make, [normal(22, 20000), np.array([1e30], np.float32), normal(23, 20000)]).range()
    assert kept.hi > 0.0
    assert kept.lo < 0.0


def test_parameters_make_the_same_calibrator(make: Make) -> None:
    assert make(**make().parameters()).parameters() == make().parameters()


# ---- what each chooses ----------------------------------------------------------------------------------------


def test_minmax_keeps_everything(batches: list[Array]) -> None:
    seen = flat(batches)
    assert shown(CALIBRATORS["minmax"], batches).range() == Range(min(seen.min(), 0.0), max(seen.max(), 0.0))


def test_moving_average_is_the_mean_of_the_batches_extremes(batches: list[Array]) -> None:
    lo = math.fsum(min(float(b.min()), 0.0) for b in batches) / len(batches)
    hi = math.fsum(max(float(b.max()), 0.0) for b in batches) / len(batches)
    assert shown(MovingAverage, batches).range() == Range(lo, hi)


def test_moving_average_is_exact_where_float_sums_are_not() -> None:
    extremes = [1e30, 1.0, 1e-30, 3.0, 1e30, -0.5] * 50
    calibrator = shown(MovingAverage, [np.array([v], np.float32) for v in extremes])
    exact = math.fsum(max(float(np.float32(v)), 0.0) for v in extremes) / len(extremes)
    assert calibrator.range().hi == exact


@pytest.mark.parametrize("percentile", [50.0, 90.0, 99.0, 99.9, 99.99, 100.0])
def test_percentile_is_the_order_statistic_to_one_bin(batches: list[Array], percentile: float) -> None:
    calibrator = Percentile(percentile)
    for batch in batches:
        calibrator.observe(batch)
    kept, seen = calibrator.range(), flat(batches)
    tail = (100.0 - percentile) / 200.0
    rank = min(max(math.ceil((1.0 - tail) * seen.size), 1), seen.size)
    ordered = np.sort(seen)
    hi, lo = max(ordered[rank - 1], 0.0), min(ordered[seen.size - rank], 0.0)
    width = 2.0 * max(seen.max(initial=0.0) - seen.min(initial=0.0), 2.0**-126 * MAX_BINS) / MAX_BINS
    assert hi <= kept.hi <= hi + width
    assert lo - width <= kept.lo <= lo


def test_percentile_of_a_hundred_is_exact(batches: list[Array]) -> None:
    assert shown(lambda: Percentile(100.0), batches).range() == shown(CALIBRATORS["minmax"], batches).range()


@pytest.mark.parametrize("percentile", [0.0, -1.0, 100.1, math.nan])
def test_a_percentile_that_is_none_is_refused(percentile: float) -> None:
    with pytest.raises(UsageError, match="percentile is"):
        Percentile(percentile)


def test_percentiles_of_different_parameters_do_not_merge() -> None:
    with pytest.raises(CalibrationError, match="different parameters"):
        Percentile(99.0).merge(Percentile(99.9))


def squared_error(x: npt.NDArray[np.float64], rng: Range) -> float:
    rounded = fake_quantize(x.astype(np.float32), choose_qparams(rng, INT8)).astype(np.float64)
    return float(((x - rounded) ** 2).mean())


@pytest.mark.parametrize("name", ["normal", "relu", "heavy tails", "silu", "negative", "an outlier", "far from zero"])
def test_mse_is_as_good_as_a_search_over_every_pair_of_ends(name: str) -> None:
    seen = flat(DATA[name])
    lo, hi = min(seen.min(), 0.0), max(seen.max(), 0.0)
    shrink = 2.0 ** -np.linspace(0, 4, 60)
    lows = lo * shrink if lo < 0 else [0.0]
    highs = hi * shrink if hi > 0 else [0.0]
    sample = seen if seen.size < 5000 else seen[:: seen.size // 5000 + 1]
    best = min((Range(a, b) for a in lows for b in highs), key=lambda r: squared_error(sample, r))
    chosen = shown(Mse, DATA[name]).range()
    # The histogram knows values to a bin, the search the grid of ends only: either may be slightly better.
    assert squared_error(seen, chosen) <= 1.03 * squared_error(seen, best)


def divergence_by_hand(counts: npt.NDArray[np.float64], kept: int, levels: int) -> float:
    """KL(P || Q) of one threshold, bin by bin, as the paper describes it."""
    p = counts[:kept].copy()
    outliers = counts[kept:].sum()
    p[-1] += outliers
    q = np.zeros(kept)
    for start, end in pairwise([level * kept // levels for level in range(levels + 1)]):
        used = [i for i in range(start, end) if p[i] > 0]
        for i in used:
            q[i] = counts[start:end].sum() / len(used)
    if np.any((p > 0) & (q == 0)):
        return math.inf
    p, q = p / p.sum(), q / q.sum()
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


@pytest.mark.parametrize("seed", range(4))
def test_divergences_are_those_computed_bin_by_bin(seed: int) -> None:
    generator = np.random.default_rng(seed)
    counts = np.floor(generator.exponential(3.0, 300) * np.exp(-np.arange(300) / (20 + 40 * seed)) * 20)
    counts[-1] = 1
    got = divergences(counts, 32)
    expected = np.array([divergence_by_hand(counts, kept, 32) for kept in range(32, 301)])
    assert np.array_equal(np.isinf(got), np.isinf(expected))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["relu", "heavy tails", "silu", "an outlier"])
def test_entropy_takes_the_threshold_of_least_divergence(name: str) -> None:
    histogram = Histogram()
    for batch in DATA[name]:
        histogram.observe(batch)
    counts, width = magnitudes(histogram)
    kept = LEVELS + int(np.argmin(divergences(counts, LEVELS)))
    best = divergence_by_hand(counts, kept, LEVELS)
    every = [divergence_by_hand(counts, k, LEVELS) for k in range(LEVELS, counts.size + 1, 37)]
    assert best <= min(every) + 1e-12
    chosen, seen = shown(CALIBRATORS["entropy"], DATA[name]).range(), flat(DATA[name])
    threshold = math.inf if kept == counts.size else kept * width
    assert chosen == Range.around_zero(max(seen.min(), -threshold), min(seen.max(), threshold))


def test_entropy_clips_a_long_thin_tail_and_not_an_even_spread() -> None:
    even = np.random.default_rng(0).uniform(0.0, 8.0, 200_000).astype(np.float32)
    assert shown(CALIBRATORS["entropy"], [even]).range().hi > 0.95 * float(even.max())
    tail = np.concatenate([normal(30, 100_000), np.linspace(20.0, 100.0, 20, dtype=np.float32)])
    assert shown(CALIBRATORS["entropy"], [tail]).range().hi < 25.0


def test_entropy_is_not_decided_by_the_zeros_after_a_relu() -> None:
    some, many = relu(31, 50_000), np.concatenate([relu(31, 50_000), np.zeros(10_000_000, np.float32)])
    assert shown(CALIBRATORS["entropy"], [some]).range() == shown(CALIBRATORS["entropy"], [many]).range()


# ---- the histogram under three of them ------------------------------------------------------------------------


def test_the_histogram_does_not_depend_on_how_values_are_batched(batches: list[Array]) -> None:
    together, apart = Histogram(), Histogram()
    together.observe(flat(batches).astype(np.float32))
    for value in flat(batches)[:50]:
        apart.observe(np.array([value], np.float32))
    apart.observe(flat(batches)[50:].astype(np.float32))
    assert together.state() == apart.state()


def test_every_value_lies_in_the_bin_that_counts_it(batches: list[Array]) -> None:
    histogram = Histogram()
    for batch in batches:
        histogram.observe(batch)
    index = np.trunc(flat(batches) / histogram.width).astype(np.int64)
    expected = np.bincount(index - histogram.first, minlength=histogram.counts.size)
    assert np.array_equal(histogram.counts, expected)
    assert histogram.counts.size <= MAX_BINS


def test_at_least_half_of_the_bins_are_in_use() -> None:
    for scale in np.geomspace(1e-30, 1e30, 121):
        histogram = Histogram()
        histogram.observe(np.array([0.0, scale], np.float32))
        assert histogram.counts.size > MAX_BINS // 2


@pytest.mark.parametrize("n", [1, 7, 1023, 1025, 16383, 16384, 50_001])
def test_the_native_count_equals_its_definition(n: int) -> None:
    x = heavy(n, n)
    native, definition = np.zeros(2001, np.int64), np.zeros(2001, np.int64)
    assert fast_count_bins(x, 64.0, -1000, native) == count_bins(x, 64.0, -1000, definition)
    assert np.array_equal(native, definition)


@pytest.mark.parametrize(
    "change",
    [
        {"counts": "not base64!"},
        {"counts": "AAAA"},
        {"counts": ""},
        {"n_bins": 10**9},
        {"n_bins": 0},
        {"n_values": 3},
    ],
    ids=str,
)
def test_a_histogram_state_that_does_not_hold_together_is_refused(change: dict[str, Any]) -> None:
    histogram = Histogram()
    histogram.observe(normal(40, 100))
    with pytest.raises(CalibrationError):
        Histogram.from_state(histogram.state() | change)
