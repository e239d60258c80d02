# SPDX-License-Identifier: Apache-2.0
"""Operator by operator: LiteRT's integers are of its arithmetic; libwia's are LiteRT's or next to the border."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from tests.tflite.arithmetic import ARITHMETIC, judge, saturated
from tests.tflite.litert import KERNELS, T, make, run, steps
from tests.tflite.test_import import MODELS, SIZE, converted
from wia_quant.tflite import read_model

#: Every level, and every pair of levels.
ALL = np.arange(-128, 128, dtype=np.int8)
PAIRS = [v.reshape(1, 256, 256, 1) for v in np.meshgrid(ALL, ALL)]
SEEDS = range(4)


def grid(rng: np.random.Generator, like: float = 0.02) -> tuple[np.float32, int]:
    """A scale within a factor of 1.5 of ``like``, and a zero point."""
    return np.float32(like * rng.uniform(0.67, 1.5)), int(rng.integers(-128, 128))


def levels(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(-128, 128, shape).astype(np.int8)


@dataclass(frozen=True)
class Product:
    """An operator with weights; ``order`` has the places of x, the weight and the bias, and of the output's shape."""

    options: str
    version: int
    x: tuple[int, ...]
    w: tuple[int, ...]
    y: tuple[int, ...]
    values: dict[str, int] = field(default_factory=dict)
    axis: int = 0
    order: str = "xwb"

    def made(self, kind: str, rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
        n, x = self.y[-1], T(self.x, "int8", *grid(rng))
        scales = np.exp(rng.uniform(-8, -6, n)).astype(np.float32)
        parts = {
            "x": x,
            "w": T(self.w, "int8", scales, 0, rng.integers(-127, 128, self.w).astype(np.int8), self.axis),
            "b": T((n,), "int32", x.scale * scales, 0, rng.integers(-5000, 5000, n).astype(np.int32)),
            "s": T((4,), "int32", data=np.array(self.y, np.int32)),
        }
        output = T(self.y, "int8", *grid(rng))
        content = make(kind, self.options, self.values, [parts[p] for p in self.order], output, self.version)
        return content, [levels(rng, *self.x)]


STEP_2 = {"padding": 0, "strideH": 2, "strideW": 2}
DILATION = {"dilationHFactor": 1, "dilationWFactor": 1}
DEEP = STEP_2 | DILATION | {"depthMultiplier": 1}
PICTURE = (1, 32, 32, 8)
PRODUCTS = {
    "CONV_2D": Product("Conv2DOptions", 5, PICTURE, (16, 3, 3, 8), (1, 16, 16, 16), STEP_2 | DILATION),
    "DEPTHWISE_CONV_2D": Product(
        "DepthwiseConv2DOptions", 5, PICTURE, (1, 3, 3, 8), (1, 16, 16, 8), DEEP, axis=3
    ),
    "TRANSPOSE_CONV": Product(
        "TransposeConvOptions", 3, PICTURE, (16, 3, 3, 8), (1, 64, 64, 16), STEP_2, 0, "swxb"
    ),
    "FULLY_CONNECTED": Product("FullyConnectedOptions", 9, (512, 64), (16, 64), (512, 16)),
}  # fmt: skip


def pair(kind: str, options: str, like: float) -> Callable[[np.random.Generator], tuple[bytes, list[np.ndarray]]]:
    def of(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
        inputs = [T(PAIRS[0].shape, "int8", *grid(rng)) for _ in PAIRS]
        return make(kind, options, {}, inputs, T(PAIRS[0].shape, "int8", *grid(rng, like))), PAIRS

    return of


def plus_a_number(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
    """As a hard sigmoid begins: halves are common where the grid of the sum has twice the scale."""
    x = T((1, 256), "int8", *grid(rng))
    number = T((), "int8", 3 / 255, -128, np.array(127))
    y = T((1, 256), "int8", 2 * x.scale, -20)
    return make("ADD", "AddOptions", {}, [x, number], y), [ALL.reshape(1, 256)]


def single(
    kind: str, options: str | None, like: float = 0.02, version: int = 2, positive: bool = False, **values: Any
) -> Callable[[np.random.Generator], tuple[bytes, list[np.ndarray]]]:
    def of(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
        x, y = (T((1, 256), "int8", *grid(rng, scale)) for scale in (0.02, like))
        x = replace(x, zero_point=-128) if positive else x
        return make(kind, options, values, [x], y, version), [ALL.reshape(1, 256)]

    return of


def pool(size: int) -> Callable[[np.random.Generator], tuple[bytes, list[np.ndarray]]]:
    def of(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
        (scale, zero_point), n = grid(rng), -(-32 // size)
        values = {"padding": 0, "strideH": size, "strideW": size, "filterHeight": size, "filterWidth": size}
        ends = (T(shape, "int8", scale, zero_point) for shape in (PICTURE, (1, n, n, 8)))
        x, y = ends
        return make("AVERAGE_POOL_2D", "Pool2DOptions", values, [x], y), [levels(rng, *PICTURE)]

    return of


def resized(half_pixel: bool) -> Callable[[np.random.Generator], tuple[bytes, list[np.ndarray]]]:
    def of(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
        scale, zero_point = grid(rng)
        x, y = (T(shape, "int8", scale, zero_point) for shape in (PICTURE, (1, 64, 64, 8)))
        size = T((2,), "int32", data=np.array([64, 64], np.int32))
        values = {"halfPixelCenters": half_pixel, "alignCorners": False}
        return make("RESIZE_BILINEAR", "ResizeBilinearOptions", values, [x, size], y), [levels(rng, *PICTURE)]

    return of


def mean(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
    x, y = T((1, 7, 7, 500), "int8", *grid(rng)), T((1, 1, 1, 500), "int8", *grid(rng, 0.005))
    axes = T((2,), "int32", data=np.array([1, 2], np.int32))
    return make("MEAN", "ReducerOptions", {"keepDims": True}, [x, axes], y), [levels(rng, 1, 7, 7, 500)]


def part(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
    """Of x [:, 3:30:2, -5, 1:]."""
    ends = grid(rng)
    x, y = T(PICTURE, "int8", *ends), T((1, 14, 7), "int8", *ends)
    places = [T((4,), "int32", data=np.array(v)) for v in ([5, 3, -5, 1], [9, 30, 0, 7], [1, 2, 1, 1])]
    values = {"beginMask": 0b0001, "endMask": 0b1001, "shrinkAxisMask": 0b0100}
    return make("STRIDED_SLICE", "StridedSliceOptions", values, [x, *places], y), [levels(rng, *PICTURE)]


def parts(kind: str) -> Callable[[np.random.Generator], tuple[bytes, list[np.ndarray]]]:
    def of(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
        ends, equal = grid(rng), kind == "SPLIT"
        x, axis = T(PICTURE, "int8", *ends), T((), "int32", data=np.array(3))
        made = [T((1, 32, 32, n), "int8", *ends) for n in ((4, 4) if equal else (1, 5, 2))]
        inputs = [axis, x] if equal else [x, T((3,), "int32", data=np.array([1, 5, 2])), axis]
        options = "SplitOptions" if equal else "SplitVOptions"
        return make(kind, options, {"numSplits": len(made)}, inputs, made), [levels(rng, *PICTURE)]

    return of


def softmax(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
    x, y = T((500, 20), "int8", *grid(rng, 0.1)), T((500, 20), "int8", 1 / 256, -128)
    return make("SOFTMAX", "SoftmaxOptions", {"beta": 1.0}, [x], y), [levels(rng, 500, 20)]


def ints(*values: int) -> T:
    return T((len(values),), "int32", data=np.array(values, np.int32))


def moved(
    kind: str, options: str | None, shape: tuple[int, ...], *more: T, version: int = 2, n: int = 1, **values: Any
) -> Callable[[np.random.Generator], tuple[bytes, list[np.ndarray]]]:
    """Of PICTURE to ``n`` tensors of ``shape``, all on one grid."""

    def of(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
        ends = grid(rng)
        x, made = T(PICTURE, "int8", *ends), [T(shape, "int8", *ends)] * n
        rest = [T(t.shape, "int8", *ends, t.data) if t.dtype == "int8" else t for t in more]
        return make(kind, options, values, [x, *rest], made, version), [levels(rng, *PICTURE)]

    return of


def packed_pair(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
    ends = grid(rng)
    inputs = [T(PICTURE, "int8", *ends)] * 2
    content = make("PACK", "PackOptions", {"axis": 1, "valuesCount": 2}, inputs, T((1, 2, *PICTURE[1:]), "int8", *ends))
    return content, [levels(rng, *PICTURE) for _ in inputs]


def slopes(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
    alpha = T((1, 1, 8), "int8", *grid(rng, 0.002), levels(rng, 1, 1, 8))
    x, y = (T(PICTURE, "int8", *grid(rng)) for _ in range(2))
    return make("PRELU", None, {}, [x, alpha], y, 1), [levels(rng, *PICTURE)]


def matrices(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
    a, b = T((3, 40, 16), "int8", *grid(rng)), T((3, 24, 16), "int8", *grid(rng))
    y = T((3, 40, 24), "int8", *grid(rng, 0.1))
    values = {"adjX": False, "adjY": True}
    content = make("BATCH_MATMUL", "BatchMatMulOptions", values, [a, b], y)
    return content, [levels(rng, *t.shape) for t in (a, b)]


def total(rng: np.random.Generator) -> tuple[bytes, list[np.ndarray]]:
    x, y = T((1, 7, 7, 500), "int8", *grid(rng)), T((1, 7, 7, 1), "int8", *grid(rng, 0.5))
    return make("SUM", "ReducerOptions", {"keepDims": True}, [x, ints(3)], y), [levels(rng, 1, 7, 7, 500)]


CASES = {name: (lambda rng, p=p, name=name: p.made(name, rng)) for name, p in PRODUCTS.items()} | {
    "ADD": pair("ADD", "AddOptions", 0.04),
    "SUB": pair("SUB", "SubOptions", 0.04),
    "ADD of a number": plus_a_number,
    "MUL": pair("MUL", "MulOptions", 0.05),
    "LEAKY_RELU": single("LEAKY_RELU", "LeakyReluOptions", alpha=0.17),
    "LEAKY_RELU to a far grid": single("LEAKY_RELU", "LeakyReluOptions", 0.0001, alpha=0.17),
    "QUANTIZE": single("QUANTIZE", "QuantizeOptions"),
    "QUANTIZE to a far grid": single("QUANTIZE", "QuantizeOptions", 10.0),
    "AVERAGE_POOL_2D 2": pool(2),
    "AVERAGE_POOL_2D 3": pool(3),
    "AVERAGE_POOL_2D 8": pool(8),
    "RESIZE_BILINEAR": resized(False),
    "RESIZE_BILINEAR at half pixels": resized(True),
    "MEAN": mean,
    "SOFTMAX": softmax,
    "STRIDED_SLICE": part,
    "SPLIT": parts("SPLIT"),
    "SPLIT_V": parts("SPLIT_V"),
    "TANH": single("TANH", None, 0.008),
    "HARD_SWISH": single("HARD_SWISH", "HardSwishOptions", version=1),
    "ELU": single("ELU", None, version=1),
    "RELU": single("RELU", None),
    "SLICE": moved("SLICE", "SliceOptions", (1, 10, 32, 3), ints(0, 3, 0, 2), ints(1, 10, -1, 3)),
    "GATHER": moved("GATHER", "GatherOptions", (1, 32, 32, 3), ints(5, 0, 7), axis=3),
    "TILE": moved("TILE", None, (1, 32, 64, 8), ints(1, 1, 2, 1)),
    "REVERSE_V2": moved("REVERSE_V2", None, PICTURE, ints(2), version=3),
    "PADV2": moved(
        "PADV2",
        "PadV2Options",
        (1, 34, 32, 11),
        T((4, 2), "int32", data=np.array([[0, 0], [1, 1], [0, 0], [0, 3]])),
        T((1,), "int8", data=np.array([77])),
    ),
    "MIRROR_PAD": moved(
        "MIRROR_PAD",
        "MirrorPadOptions",
        (1, 35, 32, 8),
        T((4, 2), "int32", data=np.array([[0, 0], [1, 2], [0, 0], [0, 0]])),
        mode=0,
    ),
    "DEPTH_TO_SPACE": moved("DEPTH_TO_SPACE", "DepthToSpaceOptions", (1, 64, 64, 2), blockSize=2),
    "SPACE_TO_DEPTH": moved("SPACE_TO_DEPTH", "SpaceToDepthOptions", (1, 16, 16, 32), blockSize=2),
    "PACK": packed_pair,
    "UNPACK": moved("UNPACK", "UnpackOptions", (1, 32, 32), n=8, axis=3, num=8),
    "REDUCE_MAX": moved("REDUCE_MAX", "ReducerOptions", (1, 32, 8), ints(1), keepDims=False),
    "REDUCE_MIN": moved("REDUCE_MIN", "ReducerOptions", (1, 1, 1, 8), ints(1, 2), keepDims=True),
    "SUM": total,
    "PRELU": slopes,
    "BATCH_MATMUL": matrices,
    "SQUARED_DIFFERENCE": pair("SQUARED_DIFFERENCE", "SquaredDifferenceOptions", 0.1),
    "EXP": single("EXP", "ExpOptions", 0.05),
    "RSQRT": single("RSQRT", None, 0.05, positive=True),
    "ABS": single("ABS", "AbsOptions"),
    "GELU": single("GELU", "GeluOptions", approximate=False),
    "GELU by tanh": single("GELU", "GeluOptions", approximate=True),
    "RELU6": single("RELU6", None),
}

#: Whose differences docs/keras.md names, and what share of the levels they may be; of all others none.
SHARES = {
    "LEAKY_RELU to a far grid": 0.1, "QUANTIZE to a far grid": 0.02, "PRELU": 0.01,
    "BATCH_MATMUL": 0.01, "SQUARED_DIFFERENCE": 0.01,
}  # fmt: skip
MAY_DIFFER = {"ADD", "SUB", *SHARES}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_what_differs_from_litert_is_next_to_the_border(name: str, seed: int) -> None:
    content, inputs = CASES[name](np.random.default_rng(seed))
    (step,) = steps(content, inputs)
    found = judge(step)
    assert found.unexplained == 0, found
    assert found.equal == found.results or name in MAY_DIFFER, found
    assert found.explained <= SHARES.get(name, 1e-4) * found.results, found


OF_KERNELS = {"default": "float32 product", "optimized": "twice, half up", "reference": "twice, half away"}


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", PRODUCTS)
def test_each_set_of_kernels_has_its_own_requantization(name: str, kernels: str) -> None:
    """Rounding is all that differs between LiteRT's own kernels, too."""
    content, inputs = CASES[name](np.random.default_rng(0))
    (step,) = steps(content, inputs)
    (made,) = run(content, inputs, kernels)
    one = (name, kernels) == ("FULLY_CONNECTED", "reference")
    rounded = ARITHMETIC[name](step).rounded["once, half up" if one else OF_KERNELS[kernels]]
    np.testing.assert_array_equal(saturated(step, rounded), made)


@pytest.mark.parametrize("name", ["ADD", "SUB", "LEAKY_RELU", "QUANTIZE", "HARD_SWISH", "AVERAGE_POOL_2D 2"])
def test_default_kernels_round_as_written(name: str) -> None:
    content, inputs = CASES[name](np.random.default_rng(0))
    (step,) = steps(content, inputs)
    rounded = next(iter(ARITHMETIC[step.op.kind](step).rounded.values()))
    np.testing.assert_array_equal(saturated(step, rounded), step.output)


@pytest.mark.parametrize("name", MODELS)
def test_every_step_of_a_model_is_litert_s_or_next_to_the_border(name: str) -> None:
    content = converted(name)
    (end,) = (read_model(content).tensors[i] for i in read_model(content).inputs)
    rng = np.random.default_rng(2)
    shape = (16, SIZE, SIZE, 3)
    x = levels(rng, *shape) if end.dtype == "int8" else rng.uniform(0, 1, shape).astype(np.float32)
    found = [judge(step) for step in steps(content, [x]) if step.output.dtype in (np.int8, np.float32)]
    assert sum(v.unexplained for v in found) == 0, found
    assert sum(v.explained for v in found) <= 5e-3 * sum(v.results for v in found), found
