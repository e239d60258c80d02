# SPDX-License-Identifier: Apache-2.0
"""Softmax and LayerNormalization between levels or floats, with what surrounds them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests import oracle
from tests.oracle import Grid
from tests.qdq_models import Builder
from wia_quant.runtime import Session, usable_isas

X = Grid(0.0517, 117)
SHARE = Grid(1 / 256, 0)
OUT = Grid(0.0211, 12, "int8")


def ops(b: Builder) -> Counter[str]:
    nodes = Session(b.model().SerializeToString()).describe()["nodes"]
    return Counter(n["op_type"] for n in nodes if n["kind"] != "folded")


def both(b: Builder) -> tuple[list[npt.NDArray[Any]], list[npt.NDArray[Any]]]:
    """The outputs with the passes on, and off."""
    data = b.model().SerializeToString()
    return Session(data).run(None, b.feeds), Session(data, optimize=False).run(None, b.feeds)


def softmax_of_levels(n: int) -> Builder:
    b = Builder()
    b.output(b.quantize(b.node("Softmax", [b.activation((5, n), X)], axis=-1), SHARE), 2)
    return b


def scores(n: int, mask_shape: tuple[int, ...], op: str) -> Builder:
    """Attention's softmax: scaled, masked, floats in, levels out."""
    b = Builder()
    x = b.node(op, [b.input((2, 3, 7, n), 4.0), b.constant(2.3)])
    mask = b.constant(np.where(b.rng.random(mask_shape) < 0.3, -1e4, 0.0))
    b.output(b.quantize(b.node("Softmax", [b.node("Add", [x, mask])], axis=-1), SHARE), 2)
    return b


@pytest.mark.parametrize("n", [1, 3, 16, 31, 128, 300])
def test_softmax_between_levels_is_equation_25(n: int) -> None:
    b = softmax_of_levels(n)
    y = Session(b.model().SerializeToString()).run(None, b.feeds)[0]
    q = oracle.quantize(next(iter(b.feeds.values())), X)
    real = (q - q.max(axis=-1, keepdims=True)).astype(np.float64) * float(X.step)
    share = np.exp(real) / np.exp(real).sum(axis=-1, keepdims=True)
    expected = share * 256
    # Only where float32 could round the other way may a level differ.
    wrong = y != np.clip(np.rint(expected), 0, 255)
    assert np.all(np.abs(np.abs(expected - np.floor(expected)) - 0.5)[wrong] < 1e-3)
    assert ops(b) == {"Quantize": 1, "QSoftmax": 1}


@pytest.mark.parametrize("op", ["Div", "Mul"])
@pytest.mark.parametrize("mask_shape", [(1, 1, 1, 9), (2, 1, 7, 9), (9,), (1,), (2, 3, 7, 9)])
def test_scaled_and_masked_scores_are_one_operator(op: str, mask_shape: tuple[int, ...]) -> None:
    b = scores(9, mask_shape, op)
    fused, plain = both(b)
    assert ops(b) == {"QSoftmax": 1}
    off = np.abs(fused[0].astype(int) - plain[0])
    assert off.max() <= 1
    assert (off > 0).mean() <= 0.01


def test_a_mask_that_is_larger_than_the_scores_broadcasts_them() -> None:
    b = Builder()
    x, mask = b.input((1, 7, 9), 4.0), b.input((2, 3, 1, 9), 4.0)
    b.output(b.quantize(b.node("Softmax", [b.node("Add", [x, mask])], axis=-1), SHARE), 2)
    fused, plain = both(b)
    assert fused[0].shape == plain[0].shape == (2, 3, 7, 9)
    assert np.abs(fused[0].astype(int) - plain[0]).max() <= 1


def test_a_softmax_of_nan_is_the_zero_point() -> None:
    b = scores(9, (9,), "Div")
    next(iter(b.feeds.values()))[0, 0, 0, 4] = np.nan
    fused, plain = both(b)
    assert np.array_equal(fused[0][0, 0, 0], plain[0][0, 0, 0])


def layer_norm(residual: bool, floats_too: bool, quantized: bool) -> Builder:
    b = Builder()
    shape = (2, 5, 33)
    x = b.activation(shape, X) if quantized else b.input(shape)
    if residual:
        x = b.node("Add", [x, b.input(shape)])
    scale, bias = b.constant(b.rng.random(33)), b.constant(b.rng.standard_normal(33))
    y = b.node("LayerNormalization", [x, scale, bias], axis=-1)
    if floats_too:
        b.output(y)
    b.output(b.quantize(y, OUT), 3)
    return b


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("floats_too", [False, True])
def test_layer_norm_has_the_bytes_of_its_nodes_one_by_one(floats_too: bool, quantized: bool) -> None:
    b = layer_norm(False, floats_too, quantized)
    fused, plain = both(b)
    assert ops(b)["QLayerNorm"] == 1
    assert "LayerNormalization" not in ops(b)
    for a, c in zip(fused, plain, strict=True):
        assert a.tobytes() == c.tobytes()


@pytest.mark.parametrize("floats_too", [False, True])
def test_layer_norm_takes_the_residual_with_it(floats_too: bool) -> None:
    b = layer_norm(True, floats_too, False)
    fused, plain = both(b)
    assert "Add" not in ops(b)
    for a, c in zip(fused, plain, strict=True):
        assert a.tobytes() == c.tobytes()


def test_a_sum_that_something_else_reads_stays_an_add() -> None:
    b = Builder()
    x = b.node("Add", [b.input((2, 5, 33)), b.input((2, 5, 33))])
    b.output(x)
    y = b.node("LayerNormalization", [x, b.constant(np.ones(33)), b.constant(np.zeros(33))], axis=-1)
    b.output(b.quantize(y, OUT), 3)
    fused, plain = both(b)
    assert ops(b)["Add"] == 1
    for a, c in zip(fused, plain, strict=True):
        assert a.tobytes() == c.tobytes()


@pytest.mark.parametrize("isa", usable_isas())
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_give_equal_bytes_everywhere(isa: str, threads: int) -> None:
    for b in (softmax_of_levels(45), scores(45, (1, 1, 1, 45), "Div"), layer_norm(True, True, False)):
        data = b.model().SerializeToString()
        expected = Session(data, isa="reference").run(None, b.feeds)
        for a, c in zip(Session(data, isa=isa, threads=threads).run(None, b.feeds), expected, strict=True):
            assert a.tobytes() == c.tobytes()


def test_a_mask_added_to_quantized_scores_goes_into_the_product() -> None:
    b = Builder()
    q, k = b.activation((2, 3, 7, 16), X), b.activation((2, 3, 16, 9), X)
    s = b.fake(b.node("MatMul", [q, k]), Grid(0.31, 120))
    mask = b.fake(b.input((2, 1, 1, 9), 30.0), Grid(0.4, 128))
    b.output(b.quantize(b.node("Add", [s, mask]), OUT), 3)
    y = Session(b.model().SerializeToString()).run(None, b.feeds)[0]
    fq, fk, fm = (list(b.feeds.values())[i] for i in range(3))
    acc = (oracle.quantize(fq, X) - 117) @ (oracle.quantize(fk, X) - 117)
    levels = oracle.requantize(acc, oracle.multiplier(float(X.step) ** 2, 0.31), Grid(0.31, 120))
    expected = oracle.add(levels, Grid(0.31, 120), oracle.quantize(fm, Grid(0.4, 128)), Grid(0.4, 128), OUT)
    assert np.array_equal(y, expected)
    assert ops(b) == {"Quantize": 3, "QMatMul": 1, "FlipSign": 1}
