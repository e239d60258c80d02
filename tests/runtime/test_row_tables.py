# SPDX-License-Identifier: Apache-2.0
"""What is computed of one-hot rows becomes a table: the bytes of the graph as it stands, for every index."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper

from tests.oracle import Grid
from tests.qdq_models import Builder
from wia_quant.runtime import Session

ONE = Grid(1 / 255, 0)
CLASSES, WIDTH = 9, 6


class Indexed(Builder):
    """A builder whose one input is integers, some outside the classes."""

    def __init__(self) -> None:
        super().__init__()
        self._weights = np.random.default_rng(7)  # by itself, so that other draws do not move it

    def integers(self, shape: tuple[int, ...], first: int, dtype: Any, dims: tuple[Any, ...] | None = None) -> str:
        name = self._name("x")
        self.feeds[name] = self.rng.integers(first - 3, first + CLASSES + 3, shape).astype(dtype)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        self._inputs.append(helper.make_tensor_value_info(name, kind, list(dims or shape)))
        return name

    def product(self, rows: str, quantized: bool) -> str:
        w = self._weights.standard_normal((CLASSES, WIDTH)).astype(np.float32)
        if not quantized:
            return str(self.node("MatMul", [rows, self.constant(w)]))
        levels = self._weights.integers(-127, 128, (CLASSES, WIDTH)).astype(np.int8)
        scale = self._weights.uniform(0.001, 0.01, WIDTH).astype(np.float32)
        return str(self.node("MatMul", [self.fake(rows, ONE), self.weights(levels, scale, axis=1)]))

    def rest(self, y: str) -> str:
        y = self.node("Add", [y, self.constant(self._weights.standard_normal((1, 1, WIDTH)))])
        return str(self.node("Mul", [y, self.node("Tanh", [y])]))


def ops(model: onnx.ModelProto) -> list[str]:
    return [n["op_type"] for n in Session(model.SerializeToString()).describe()["nodes"]]


def both(b: Builder) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    data = b.model().SerializeToString()
    fused, plain = Session(data).run(None, b.feeds), Session(data, optimize=False).run(None, b.feeds)
    return fused[0], plain[0]


def equal_rows(
    first: int = 0, dtype: Any = np.int32, quantized: bool = False, dims: tuple[Any, ...] | None = None
) -> Indexed:
    b = Indexed()
    x = b.integers((2, 40, 1), first, dtype, dims)
    classes = b.constant(np.arange(first, first + CLASSES).reshape(1, 1, -1), dtype)
    hot = b.node("Cast", [b.node("Equal", [x, classes])], to=TensorProto.FLOAT)
    b.output(b.rest(b.product(hot, quantized)))
    return b


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("first", [0, 5, -4])
def test_equal_cast_matmul_is_a_table_of_rows(first: int, dtype: Any) -> None:
    b = equal_rows(first, dtype)
    assert ops(b.model()) == ["RowTable"]
    fused, plain = both(b)
    np.testing.assert_array_equal(fused, plain)
    x = next(iter(b.feeds.values()))
    assert ((x < first) | (x >= first + CLASSES)).any()
    assert len(np.unique(fused)) > WIDTH


def test_a_quantized_product_of_one_hot_rows_has_the_bytes_of_the_integer_product() -> None:
    b = equal_rows(quantized=True)
    assert "RowTable" in ops(b.model())
    assert "QGemm" not in ops(b.model())
    (x,) = b.feeds.values()
    fused = Session(b.model().SerializeToString()).run(None, b.feeds)[0]

    direct = Indexed()  # the same product of one-hot rows that come from outside
    hot = direct.input((2, 40, CLASSES))
    direct.feeds[hot] = (x == np.arange(CLASSES)).astype(np.float32)
    direct.output(direct.rest(direct.product(hot, True)))
    assert "QGemm" in ops(direct.model())
    np.testing.assert_array_equal(fused, Session(direct.model().SerializeToString()).run(None, direct.feeds)[0])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_one_hot_matmul_counts_negative_indices_from_the_end(dtype: Any) -> None:
    b = Indexed()
    x = b.integers((3, 50), 0, dtype)
    b.feeds[x][0, :4] = [-1, -CLASSES, -CLASSES - 1, np.iinfo(dtype).min]
    hot = b.node("OneHot", [x, b.constant([CLASSES], np.int64), b.constant([0.25, 2.0])])
    b.output(b.rest(b.product(hot, False)))
    assert ops(b.model()) == ["RowTable"]
    fused, plain = both(b)
    np.testing.assert_array_equal(fused, plain)


def test_an_expand_by_a_computed_batch_is_seen_through() -> None:
    b = Indexed()
    x = b.integers((3, 20), 0, np.int32, ("batch", 20))
    batch = b.node("Slice", [b.node("Shape", [x]), *(b.constant([i], np.int64) for i in (0, 1, 0))])
    target = b.node("Concat", [batch, b.constant([20], np.int64), b.constant([1], np.int64)], axis=0)
    rows = b.node("Expand", [b.node("Unsqueeze", [x, b.constant([2], np.int64)]), target])
    classes = b.constant(np.arange(CLASSES), np.int32)
    hot = b.node("Cast", [b.node("Equal", [rows, classes])], to=TensorProto.FLOAT)
    b.output(b.rest(b.product(hot, False)))
    assert "RowTable" in ops(b.model())
    assert "MatMul" not in ops(b.model())
    fused, plain = both(b)
    np.testing.assert_array_equal(fused, plain)


def test_what_mixes_rows_or_indices_stays_as_it_is() -> None:
    unknown = equal_rows(dims=(2, 40, "last"))  # the last dimension may be the classes themselves
    assert "RowTable" not in ops(unknown.model())

    sparse = Indexed()
    x = sparse.integers((2, 40, 1), 0, np.int32)
    hot = sparse.node("Equal", [x, sparse.constant(np.arange(CLASSES) * 2, np.int32)])
    hot = sparse.node("Cast", [hot], to=TensorProto.FLOAT)
    sparse.output(sparse.product(hot, False))
    assert "RowTable" not in ops(sparse.model())

    reduced = Indexed()
    x = reduced.integers((2, 40, 1), 0, np.int32)
    hot = reduced.node("Equal", [x, reduced.constant(np.arange(CLASSES), np.int32)])
    hot = reduced.node("Cast", [hot], to=TensorProto.FLOAT)
    reduced.output(reduced.product(reduced.node("Softmax", [hot], axis=1), False))
    assert "RowTable" not in ops(reduced.model())

    varied = Indexed()  # an operand that differs from row to row
    x = varied.integers((2, 40, 1), 0, np.int32)
    hot = varied.node("Equal", [x, varied.constant(np.arange(CLASSES), np.int32)])
    y = varied.product(varied.node("Cast", [hot], to=TensorProto.FLOAT), False)
    varied.output(varied.node("Add", [y, varied.constant(varied.rng.standard_normal((40, WIDTH)))]))
    assert ops(varied.model()) == ["RowTable", "Add"]
    fused, plain = both(varied)
    np.testing.assert_array_equal(fused, plain)


def test_a_one_hot_that_is_read_twice_gives_both_their_values() -> None:
    b = Indexed()
    x = b.integers((2, 40, 1), 0, np.int32)
    hot = b.node("Equal", [x, b.constant(np.arange(CLASSES), np.int32)])
    hot = b.node("Cast", [hot], to=TensorProto.FLOAT)
    b.output(b.product(hot, False))
    b.output(hot)
    data = b.model().SerializeToString()
    for fused, plain in zip(
        Session(data).run(None, b.feeds), Session(data, optimize=False).run(None, b.feeds), strict=True
    ):
        np.testing.assert_array_equal(fused, plain)


def test_one_hot_rows_that_would_make_large_tables_are_left_alone() -> None:
    b = Indexed()
    n = 2000
    x = b.integers((1, 5, 1), 0, np.int32)
    hot = b.node("Cast", [b.node("Equal", [x, b.constant(np.arange(n), np.int32)])], to=TensorProto.FLOAT)
    one = b.node("MatMul", [hot, b.constant(np.ones((n, 1)))])
    b.output(b.node("MatMul", [one, b.constant(np.ones((1, 100_000)))]))  # a table of 2,001 x 100,000
    nodes = ops(b.model())
    assert "RowTable" in nodes
    assert nodes.count("MatMul") == 1
    fused, plain = both(b)
    np.testing.assert_array_equal(fused, plain)
