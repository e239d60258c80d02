# SPDX-License-Identifier: Apache-2.0
"""Damaged .tflite files: one clear error, whatever the damage is, or a model that is still valid."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.tflite.litert import packed
from tests.tflite.test_import import converted
from wia_quant.errors import ModelError, WiaError
from wia_quant.tflite import to_onnx

#: What four bytes become: the largest and smallest integers, -1, 0, NaN, 1, 2.0.
WORDS = [
    bytes.fromhex(word) for word in ("ffffff7f", "00000080", "ffffffff", "00000000", "0000c07f", "01000000", "00000040")
]


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Bytes, bits or words changed at random places."""
    found, kind = bytearray(content), int(rng.integers(4))
    for _ in range(int(rng.choice([1, 1, 2, 4, 16]))):
        i = int(rng.integers(8, len(found) - 4))
        if kind == 0:
            found[i] = int(rng.integers(256))
        elif kind == 1:
            found[i] ^= 1 << int(rng.integers(8))
        elif kind == 2:
            found[i : i + 4] = WORDS[int(rng.integers(len(WORDS)))]
        else:
            i &= ~3
            found[i] = (found[i] + int(rng.choice([1, 2, 4, 255]))) % 256
    return bytes(found)


@pytest.mark.parametrize("name", ["branches", "decoder", "residual, int8 ends"])
def test_a_damaged_file_is_one_clear_error_or_a_valid_model(name: str) -> None:
    content, rng = converted(name), np.random.default_rng(11)
    refused = 0
    for n in range(300):
        changed = damaged(content, rng)
        try:
            to_onnx(changed)
        except WiaError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"change {n}") from error
    assert 0 < refused < 300


def schema_of(content: bytes) -> Any:
    from ai_edge_litert import schema_py_generated as schema

    return schema.ModelT.InitFromPackedBuf(content, 0)


def convolution(graph: Any) -> Any:
    return next(op for op in graph.operators if type(op.builtinOptions).__name__ == "Conv2DOptionsT")


def an_operator_is_gone(graph: Any) -> None:
    del graph.operators[-1]


def a_scale_is(value: float) -> Callable[[Any], None]:
    def change(graph: Any) -> None:
        graph.tensors[convolution(graph).outputs[0]].quantization.scale = [value]

    return change


def inputs_are_missing(graph: Any) -> None:
    convolution(graph).inputs = convolution(graph).inputs[:1]


def options_are_missing(graph: Any) -> None:
    for op in graph.operators:
        op.builtinOptions = None


def a_shape_is_negative(graph: Any) -> None:
    graph.tensors[convolution(graph).outputs[0]].shape = [1, -7, 8, 8]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (an_operator_is_gone, "output '.*' is computed by no operator"),
        (a_scale_is(0.0), "tensor '.*' has the scale 0.0, which is not positive"),
        (a_scale_is(-0.5), "tensor '.*' has a scale that is negative"),
        (a_scale_is(math.nan), "tensor '.*' has a scale that is negative, infinite or NaN"),
        (inputs_are_missing, "CONV_2D '.*': its options and tensors contradict each other"),
        (options_are_missing, "'.*': its options and tensors contradict each other"),
        (a_shape_is_negative, "tensor '.*' has the shape"),
    ],
)
def test_what_contradicts_itself_in_a_file_is_named(change: Callable[[Any], None], says: str) -> None:
    model = schema_of(converted("decoder"))
    change(model.subgraphs[0])
    with pytest.raises(ModelError, match=says):
        to_onnx(packed(model))
