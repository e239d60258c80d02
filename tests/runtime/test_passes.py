# SPDX-License-Identifier: Apache-2.0
"""Passes on and off agree, on random graphs and on whole models quantized by onnxruntime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnxruntime import quantization as ort_quantization

from tests.oracle import Grid
from tests.qdq_models import Builder
from wia_quant.runtime import Session

GRIDS = [Grid(0.0517, 117), Grid(0.1103, -27, "int8"), Grid(0.0731, 0), Grid(0.0211, 12, "int8")]


class Growing:
    """A random QDQ graph of pictures [1, C, H, W], one drawn operator after another."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.b = Builder(seed=draw(st.integers(0, 99)))
        self.values: list[tuple[str, tuple[int, ...], Grid]] = []
        self.grid = draw(st.sampled_from(GRIDS))
        self._keep(self.b.input((1, 4, 6, 6), 3.0), (1, 4, 6, 6))

    def _keep(self, y: str, shape: tuple[int, ...], quantized: bool = True) -> None:
        grid = self.draw(st.sampled_from(GRIDS))
        self.values.append((self.b.fake(y, grid) if quantized else y, shape, grid))

    def _pick(self) -> tuple[str, tuple[int, ...]]:
        name, shape, _ = self.values[self.draw(st.integers(0, len(self.values) - 1))]
        return name, shape

    def conv(self) -> None:
        x, shape = self._pick()
        depthwise = self.draw(st.booleans())
        out = shape[1] if depthwise else self.draw(st.integers(1, 9))
        w = self.b.rng.integers(-127, 128, (out, 1 if depthwise else shape[1], 3, 3)).astype(np.int8)
        scale = self.b.rng.uniform(0.001, 0.01, out).astype(np.float32)
        bias = self.b.constant(self.b.rng.standard_normal(out))
        y = self.b.node("Conv", [x, self.b.weights(w, scale, axis=0), bias], pads=[1, 1, 1, 1],
                        group=shape[1] if depthwise else 1)  # fmt: skip
        if self.draw(st.booleans()):
            y = self.b.node("Relu", [y])
        self._keep(y, (1, out, *shape[2:]))

    def binary(self) -> None:
        a, shape = self._pick()
        same = [v for v in self.values if v[1] == shape]
        c = same[self.draw(st.integers(0, len(same) - 1))][0]
        self._keep(self.b.node(self.draw(st.sampled_from(["Add", "Sub", "Mul"])), [a, c]), shape)

    def unary(self) -> None:
        x, shape = self._pick()
        op = self.draw(st.sampled_from(["Relu", "Sigmoid", "HardSwish", "Tanh", "LeakyRelu", "Abs"]))
        self._keep(self.b.node(op, [x]), shape, quantized=self.draw(st.booleans()))

    def pool(self) -> None:
        x, shape = self._pick()
        op = self.draw(st.sampled_from(["MaxPool", "AveragePool"]))
        self._keep(self.b.node(op, [x], kernel_shape=[3, 3], pads=[1, 1, 1, 1]), shape)

    def concat(self) -> None:
        a, shape = self._pick()
        c, other = self._pick()
        self._keep(self.b.node("Concat", [a, c], axis=1), (1, shape[1] + other[1], *shape[2:]))

    def move(self) -> None:
        x, shape = self._pick()
        perm = [0, *self.draw(st.permutations([1, 2, 3]))]
        y = self.b.node("Transpose", [x], perm=perm)
        inverse = [perm.index(d) for d in range(4)]
        self._keep(self.b.node("Transpose", [self.b.fake(y, self.draw(st.sampled_from(GRIDS)))], perm=inverse), shape)

    def gate(self) -> None:
        x, shape = self._pick()
        g = self.b.fake(self.b.node("GlobalAveragePool", [x]), self.draw(st.sampled_from(GRIDS)))
        g = self.b.fake(self.b.node("Sigmoid", [g]), Grid(1 / 256, 0))
        self._keep(self.b.node("Mul", [x, g]), shape)

    def softmax(self) -> None:
        x, shape = self._pick()
        y = self.b.node("Softmax", [x], axis=self.draw(st.sampled_from([1, -1])))
        self.values.append((self.b.fake(y, Grid(1 / 256, 0)), shape, Grid(1 / 256, 0)))

    STEPS = ("conv", "binary", "unary", "pool", "concat", "move", "gate", "softmax")

    def grow(self) -> tuple[onnx.ModelProto, dict[str, npt.NDArray[Any]]]:
        """The finished model and its feeds: each last value an output."""
        for step in self.draw(st.lists(st.sampled_from(self.STEPS), min_size=1, max_size=7)):
            getattr(self, step)()
        self.b.output(self.b.dequantize(self.b.quantize(self.values[-1][0], GRIDS[0]), GRIDS[0]))
        return self.b.model(), self.b.feeds


@st.composite
def graphs(draw: Callable[[Any], Any]) -> tuple[onnx.ModelProto, dict[str, npt.NDArray[Any]]]:
    """Random small QDQ graphs."""
    return Growing(draw).grow()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graphs())
def test_passes_change_no_level_by_more_than_rounding_does(
    case: tuple[onnx.ModelProto, dict[str, npt.NDArray[Any]]],
) -> None:
    model, feeds = case
    data = model.SerializeToString()
    fused = Session(data).run(None, feeds)[0]
    plain = Session(data, optimize=False).run(None, feeds)[0]
    # A level off by one early on may move a later one further: few may, and none far.
    off = np.abs(fused.astype(np.float64) - plain) / float(GRIDS[0].step)
    assert (off > 1.5).mean() <= 0.01
    assert (off > 0.5).mean() <= 0.05


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(graphs())
def test_random_graphs_give_equal_bytes_on_every_instruction_set_and_thread_count(
    case: tuple[onnx.ModelProto, dict[str, npt.NDArray[Any]]],
) -> None:
    model, feeds = case
    data = model.SerializeToString()
    expected = Session(data, isa="reference").run(None, feeds)[0].tobytes()
    assert Session(data).run(None, feeds)[0].tobytes() == expected
    assert Session(data, threads=3).run(None, feeds)[0].tobytes() == expected


class _Samples(ort_quantization.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: list[dict[str, npt.NDArray[Any]]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> dict[str, npt.NDArray[Any]] | None:
        return next(self._feeds, None)


def normal(b: Builder, shape: tuple[int, ...]) -> str:
    fan_in = int(np.prod(shape[1:]))
    return b.constant(b.rng.standard_normal(shape) * (2 / fan_in) ** 0.5)


def conv(b: Builder, x: str, n_in: int, n_out: int, k: int, stride: int = 1, group: int = 1) -> str:
    w = normal(b, (n_out, n_in // group, k, k))
    bias = b.constant(b.rng.standard_normal(n_out) * 0.1)
    return str(b.node("Conv", [x, w, bias], strides=[stride] * 2, pads=[k // 2] * 4, group=group))


def resnet() -> Builder:
    b = Builder(opset=17)
    x = b.node("Relu", [conv(b, b.input((1, 3, 32, 32)), 3, 16, 7, 2)])
    x = b.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for n_in, n_out, stride in ((16, 16, 1), (16, 32, 2)):
        y = b.node("Relu", [conv(b, x, n_in, n_out, 3, stride)])
        y = conv(b, y, n_out, n_out, 3)
        shortcut = x if n_in == n_out else conv(b, x, n_in, n_out, 1, stride)
        x = b.node("Relu", [b.node("Add", [y, shortcut])])
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    b.output(b.node("Gemm", [x, normal(b, (10, 32)), b.constant(np.zeros(10))], transB=1))
    return b


def mobilenet() -> Builder:
    b = Builder(opset=17)
    relu6 = lambda y: b.node("Clip", [y, b.constant(0.0), b.constant(6.0)])  # noqa: E731
    x = relu6(conv(b, b.input((1, 3, 32, 32)), 3, 16, 3, 2))
    for n_in, n_out, stride in ((16, 24, 2), (24, 24, 1)):
        y = relu6(conv(b, x, n_in, n_in * 4, 1))
        y = relu6(conv(b, y, n_in * 4, n_in * 4, 3, stride, n_in * 4))
        y = conv(b, y, n_in * 4, n_out, 1)
        x = b.node("Add", [x, y]) if stride == 1 else y
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x])])
    b.output(b.node("Gemm", [x, normal(b, (10, 24)), b.constant(np.zeros(10))], transB=1))
    return b


def transformer() -> Builder:
    b = Builder(opset=17)
    d, heads, tokens = 32, 4, 12
    x = b.input((1, tokens, d))

    def linear(v: str, n_in: int, n_out: int) -> str:
        y = b.node("MatMul", [v, b.constant(b.rng.standard_normal((n_in, n_out)) / n_in**0.5)])
        return str(b.node("Add", [b.constant(b.rng.standard_normal(n_out) * 0.1), y]))

    def norm(v: str) -> str:
        return str(b.node("LayerNormalization", [v, b.constant(np.ones(d)), b.constant(np.zeros(d))], axis=-1))

    def split(v: str, perm: list[int]) -> str:
        y = b.node("Reshape", [v, b.constant([0, 0, heads, d // heads], np.int64)])
        return str(b.node("Transpose", [y], perm=perm))

    for _ in range(2):
        q, k = split(linear(x, d, d), [0, 2, 1, 3]), split(linear(x, d, d), [0, 2, 3, 1])
        v = split(linear(x, d, d), [0, 2, 1, 3])
        scores = b.node("Div", [b.node("MatMul", [q, k]), b.constant((d / heads) ** 0.5)])
        y = b.node("MatMul", [b.node("Softmax", [scores], axis=-1), v])
        y = b.node("Reshape", [b.node("Transpose", [y], perm=[0, 2, 1, 3]), b.constant([0, 0, d], np.int64)])
        x = norm(b.node("Add", [x, linear(y, d, d)]))
        h = linear(x, d, 2 * d)
        erf = b.node("Erf", [b.node("Div", [h, b.constant(2**0.5)])])
        h = b.node("Mul", [b.node("Mul", [h, b.node("Add", [erf, b.constant(1.0)])]), b.constant(0.5)])
        x = norm(b.node("Add", [x, linear(h, 2 * d, d)]))
    b.output(x)
    return b


#: The model, and what libwia must make of it: nothing but these.
WHOLE = {
    "resnet": (resnet, {"QConv": 6, "QMaxPool": 1, "QMean": 1, "QGemm": 1}),
    "mobilenet": (mobilenet, {"QConv": 7, "QMean": 1, "QGemm": 1}),
    "transformer": (transformer, {"QGemm": 12, "QMatMul": 4, "QSoftmax": 2, "QLayerNorm": 4, "QAdd": 4}),
}
#: At the borders, and what is only another view of the same bytes.
BORDER = {"Quantize", "Dequantize", "Transpose", "Reshape", "Flatten", "Identity"}


@pytest.fixture(scope="module", params=[(n, a) for n in WHOLE for a in ("QUInt8", "QInt8")], ids="-".join)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Builder]:
    """A model that onnxruntime has quantized: QDQ, per channel, int8 weights."""
    name, activations = request.param
    folder = tmp_path_factory.mktemp(name)
    b = WHOLE[name][0]()
    onnx.save(b.model(), folder / "float.onnx")
    ort_quantization.quantize_static(
        folder / "float.onnx", folder / "int8.onnx", _Samples([b.feeds]), per_channel=True,
        quant_format=ort_quantization.QuantFormat.QDQ, weight_type=ort_quantization.QuantType.QInt8,
        activation_type=getattr(ort_quantization.QuantType, activations),
    )  # fmt: skip
    return name, folder / "int8.onnx", b


def test_whole_models_run_on_integers_alone(whole: tuple[str, Path, Builder]) -> None:
    name, path, _ = whole
    nodes = Session(path).describe()["nodes"]
    ops = Counter(n["op_type"] for n in nodes if n["kind"] != "folded" and n["op_type"] not in BORDER)
    assert ops == WHOLE[name][1]


def test_whole_models_agree_with_the_passes_off(whole: tuple[str, Path, Builder]) -> None:
    _, path, b = whole
    fused = Session(path).run(None, b.feeds)[0]
    plain = Session(path, optimize=False).run(None, b.feeds)[0]
    assert np.abs(fused - plain).max() <= 0.02 * np.abs(plain).max()


def test_whole_models_give_equal_bytes_everywhere(whole: tuple[str, Path, Builder]) -> None:
    _, path, b = whole
    expected = Session(path, isa="reference").run(None, b.feeds)[0].tobytes()
    assert Session(path).run(None, b.feeds)[0].tobytes() == expected
    assert Session(path, threads=2).run(None, b.feeds)[0].tobytes() == expected
    assert Session(path, threads=4).run(None, b.feeds)[0].tobytes() == expected
