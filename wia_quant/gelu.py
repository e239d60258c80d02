# SPDX-License-Identifier: Apache-2.0
"""GELU in operators of opset 18, which has none of its own (Hendrycks and Gimpel 2016)."""

from __future__ import annotations

import math

from wia_quant.builder import Builder, Tensor


def gelu(b: Builder, x: Tensor) -> Tensor:
    """``x * (1 + erf(x / sqrt(2))) / 2``."""

    def make(y: Tensor) -> str:
        erf = b.node("Erf", [b.node("Mul", [y.name, b.floats(math.sqrt(0.5), "root")])])
        return _gated(b, y, erf)

    return b.elementwise(x, make)


def gelu_tanh(b: Builder, x: Tensor) -> Tensor:
    """``x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2``."""

    def make(y: Tensor) -> str:
        cube = b.node("Pow", [y.name, b.floats(3.0, "three")])
        inner = b.node("Add", [y.name, b.node("Mul", [cube, b.floats(0.044715, "cubic")])])
        tanh = b.node("Tanh", [b.node("Mul", [inner, b.floats(math.sqrt(2 / math.pi), "root")])])
        return _gated(b, y, tanh)

    return b.elementwise(x, make)


def _gated(b: Builder, x: Tensor, function: str) -> str:
    gate = b.node("Add", [function, b.floats(1.0, "one")])
    return b.node("Mul", [b.node("Mul", [x.name, gate]), b.floats(0.5, "factor")])
