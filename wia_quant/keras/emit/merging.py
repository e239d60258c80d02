# SPDX-License-Identifier: Apache-2.0
"""Layers of several inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any

from wia_quant.builder import Builder, Tensor
from wia_quant.errors import ExportError
from wia_quant.keras.steps import Step


def binary(b: Builder, op_type: str, left: Tensor, right: Tensor, shape: Any = None) -> Tensor:
    """An elementwise operator of two tensors, broadcast as numpy does."""
    (left, right), order = b.alike(left, right)
    name = b.node(op_type, [left.name, right.name])
    return Tensor(name, shape or max(left, right, key=lambda t: t.rank).shape, order, left.dtype)


def merge(op_type: str) -> Callable[[Builder, Step, list[Tensor]], Tensor]:
    """Add, Subtract, Multiply, Maximum, Minimum."""

    def emit(b: Builder, step: Step, xs: list[Tensor]) -> Tensor:
        if len({x.rank for x in xs}) > 1:
            raise ExportError(f"layer '{step.name}': inputs of different ranks; reshape them to one rank")
        shape = step.outputs[0].shape
        return reduce(lambda left, right: binary(b, op_type, left, right, shape), xs)

    return emit


def average(b: Builder, step: Step, xs: list[Tensor]) -> Tensor:
    """Average."""
    return b.unary(merge("Add")(b, step, xs), "Mul", b.floats(1 / len(xs), "share"))


def concatenate(b: Builder, step: Step, xs: list[Tensor]) -> Tensor:
    """Concatenate."""
    return concatenated(b, xs, int(step.layer.axis), step.outputs[0].shape)


def concatenated(b: Builder, xs: list[Tensor], axis: int, shape: Any) -> Tensor:
    """Joined along one of Keras' axes."""
    if len(xs) == 1:
        return xs[0]
    alike, order = b.alike(*xs)
    name = b.node("Concat", [x.name for x in alike], axis=alike[0].axis(axis))
    return Tensor(name, shape, order, alike[0].dtype)
