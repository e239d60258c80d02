# SPDX-License-Identifier: Apache-2.0
"""What evaluation rounds, where the file in libwia rounds it: docs/quantization.md (7) to (14), (18), (24).

Levels are integers counted from the zero point, held in float32. Sums of their products are exact in any order up to
2^24; scales are worked out in float64, whatever the backend. The gradient passes as if nothing were rounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Final

import keras
from keras import ops

Tensor = Any

#: Of float32: what an int32 step of a bias is at least.
_TINY: Final = 2.0**-126

#: As wia_quant.weights.MAX_BIAS_LEVEL.
_LARGEST_BIAS: Final = float(2**30)

#: A float32 times this, rounded to float32, is the next one.
_NEXT: Final = 1 + 0.75 * 2.0**-23


def straight_through(exact: Tensor, smooth: Tensor) -> Tensor:
    """The value of ``exact`` with the gradient of ``smooth``."""
    return ops.stop_gradient(exact) + (smooth - ops.stop_gradient(smooth))


def in_float64(formula: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """``formula`` in float64, rounded to float32 at its end: no compiler contracts or reorders what lies between."""
    with _float64():
        return ops.cast(
            formula(*(ops.cast(ops.stop_gradient(ops.convert_to_tensor(v)), "float64") for v in operands)), "float32"
        )


def _float64() -> contextlib.AbstractContextManager[Any]:
    """Where float64 is float64: JAX makes float32 of it elsewhere."""
    if keras.backend.backend() != "jax":
        return contextlib.nullcontext()
    import jax

    found: contextlib.AbstractContextManager[Any] = jax.enable_x64(True)
    return found


def quotient(a: Tensor, b: Tensor) -> Tensor:
    """``a / b`` as IEEE 754 rounds it.

    XLA, behind JAX, multiplies by the reciprocal of what is one number for all of ``a``: halves between two levels
    would fall to the other side. Here it is one number for each.
    """
    return a / (b + 0 * a) if keras.backend.backend() == "jax" else a / b


def times(a: Tensor, b: Tensor) -> Tensor:
    """``a * b``, rounded before anything is added: XLA would contract the two into one rounding."""
    if keras.backend.backend() == "torch":
        return a * b
    return straight_through(in_float64(lambda x, y: x * y, a, b), a * b)


def inverse_root(v: Tensor) -> Tensor:
    """``1 / sqrt(v)`` in two roundings: TensorFlow would make one inexact operation of it."""
    root = in_float64(ops.sqrt, v)
    return straight_through(in_float64(lambda x: 1 / x, root), 1 / ops.sqrt(v))


def positive(scale: Tensor) -> Tensor:
    """The scale; 1 where there is none yet."""
    return ops.where(scale > 0, scale, ops.ones_like(scale))


def levels(x: Tensor, scale: Tensor) -> Tensor:
    """The integers of a tensor that lies on a grid; the reals themselves where the grid has no scale yet."""
    steps = x / positive(scale)
    return straight_through(ops.where(scale > 0, ops.round(steps), steps), steps)


def multiplier(a: Tensor, b: Tensor, output_scale: Tensor) -> Tensor:
    """``float32(float32(a * b) / output_scale)``, equations (8) and (13)."""
    return in_float64(lambda p, y: p / y, in_float64(lambda p, q: p * q, a, b), output_scale)


def fitting_bias(scale: Tensor, bias: Tensor, input_scale: Tensor) -> Tensor:
    """The weight's scales, raised where a bias would not fit int32: as the exporter does."""

    def raised(f: Tensor, b: Tensor, s: Tensor) -> Tensor:
        needed = ops.abs(b) / (s * _LARGEST_BIAS)
        up = ops.cast(ops.cast(needed, "float32"), "float64") * _NEXT
        return ops.where(needed > f, up, f)

    return in_float64(raised, scale, bias, input_scale)


def bias_step(input_scale: Tensor, weight_scale: Tensor) -> Tensor:
    """What a unit of the accumulator is, float32."""
    return ops.maximum(in_float64(lambda a, b: a * b, input_scale, weight_scale), _TINY)


def accumulated(acc: Tensor, bias: Tensor | None, step: Tensor) -> Tensor:
    """``float32`` of equation (7): the integer sum and the integer bias, (18), rounded together."""
    if bias is None:
        return ops.stop_gradient(ops.round(acc))
    return in_float64(lambda a, b, s: ops.round(a) + ops.round(b / s), acc, bias, step)


def ended(total: Tensor, unit: Tensor, per_level: Tensor, output_scale: Tensor | None) -> Tensor:
    """What an accumulator stands for.

    Args:
        total: float32 of the accumulator.
        unit: its step, equation (9).
        per_level: its multiplier, equation (8).
        output_scale: of the grid that the result is quantized to, at once or behind a bound; None is none, and 0 none
            yet.
    """
    if output_scale is None:
        return total * unit
    known = output_scale > 0
    y = total * ops.where(known, per_level, unit)
    return ops.where(known, ops.round(y) * positive(output_scale), y)
