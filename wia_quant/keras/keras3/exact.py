# SPDX-License-Identifier: Apache-2.0
"""What evaluation rounds, where the file in libwia rounds it: docs/quantization.md (7) to (14), (18).

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
    if not wants_gradient(smooth):
        return exact
    return ops.stop_gradient(exact) + (smooth - ops.stop_gradient(smooth))


def wants_gradient(x: Tensor) -> bool:
    """False where torch says that nobody asks for the gradient, as in ``predict``."""
    return bool(getattr(x, "requires_grad", True))


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


def product(
    acc: Tensor,
    bias: Tensor | None,
    weight_scale: Tensor,
    input_scale: Tensor,
    output_scale: Tensor | None,
    spread: Callable[[Tensor], Tensor],
) -> Tensor:
    """Equations (7) to (9): what a sum of products of levels stands for.

    Args:
        acc: the sums.
        bias: float32, [channels].
        weight_scale: [channels].
        input_scale: 0 where the input has no grid yet and ``acc`` is of its reals.
        output_scale: of the grid that the result is quantized to, at once or behind a bound; 0 where it has none yet,
            None where it stays float.
        spread: shapes [channels] to broadcast with ``acc``.
    """
    known, scale = input_scale > 0, positive(input_scale)
    acc = ops.where(known, ops.round(acc), acc)
    unit = in_float64(lambda a, b: a * b, scale, weight_scale)
    if bias is not None:
        large, rest = _bias_levels(bias, ops.maximum(unit, _TINY), known)
        acc = (acc + spread(rest)) + spread(large)
    if output_scale is None:
        return acc * spread(unit)
    ends, y_scale = output_scale > 0, positive(output_scale)
    y = acc * spread(ops.where(ends, multiplier(scale, weight_scale, y_scale), unit))
    return ops.where(ends, ops.round(y) * y_scale, y)


def _bias_levels(bias: Tensor, unit: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """Equation (18), as the nearest float32 and what is left: so a sum of float32 with both is rounded once."""
    large = in_float64(lambda b, u: ops.where(known, ops.round(b / u), b / u), bias, unit)
    rest = in_float64(lambda b, u, q: ops.where(known, ops.round(b / u) - q, 0 * b), bias, unit, large)
    return large, rest
