# SPDX-License-Identifier: Apache-2.0
"""What libwia makes of levels, docs/quantization.md, in TensorFlow: reals in, reals out, each operation rounded once.

A real on a grid says its level, ``round(x / scale)``, exactly. Integers in float32 are exact below 2^24, whatever the
order of a sum; beyond, sums are taken in float64. What would be rewritten by graph optimizations (a quotient into a
product, ``a m + b m`` into ``(a + b) m``, ``(a b) m`` into ``a (b m)``) goes through another type between: a float64
result rounded to float32 is the float32 one.

Gradients are those of the reals: ``passed`` has the value of the one and the gradient of the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import tensorflow as tf

from wia_quant.affine import INT8, INT8_NARROW, MIN_SCALE
from wia_quant.weights import MAX_BIAS_LEVEL

#: float32 holds every integer up to here.
EXACT: Final = 2**24

_TINY: Final = float(np.finfo(np.float32).tiny)
_LARGEST_LEVEL: Final = float(INT8.qmax - INT8.qmin)


@dataclass(frozen=True)
class Grid:
    """Of an activation, scalars: its scale, and its ends counted from the zero point."""

    scale: Any
    lowest: Any
    highest: Any


class Weights(NamedTuple):
    """Of a product, on the scales of its file.

    Attributes:
        levels: integers, [channels, summed].
        reach: the sum of their magnitudes, [channels].
        scale: float32, [channels].
        bias: int32, [channels].
        slope: what a unit of the sum of products is in the result, [channels]; its gradient is that of the BatchNorm's
            factor.
        shift: the bias as a real, [channels].
    """

    levels: Any
    reach: Any
    scale: Any
    bias: Any
    slope: Any
    shift: Any


def passed(value: Any, real: Any) -> Any:
    """``value``, and the gradient of ``real``: the term that carries it is exactly zero."""
    return tf.stop_gradient(value) + (real - tf.stop_gradient(real))


def wide(x: Any) -> Any:
    """As float64."""
    return tf.cast(x, tf.float64)


def narrow(x: Any) -> Any:
    """Rounded to float32."""
    return tf.cast(x, tf.float32)


def quotient(a: Any, b: Any) -> Any:
    """``a / b`` as float32 rounds it."""
    return narrow(wide(a) / wide(b))


def levels_of(x: Any, scale: Any) -> Any:
    """Levels, from the zero point, of reals that are on a grid."""
    real = x / scale
    return passed(tf.round(real), real)


# -- weights ---------------------------------------------------------------------------------------------------------

_VECTOR: Final = tf.TensorSpec([None])
_MATRIX: Final = tf.TensorSpec([None, None])
_SCALAR: Final = tf.TensorSpec([])


def _spanning(kernel: Any) -> Any:
    """Scales of the grid that spans each row of [channels, summed]; equation (6), a row of zeros with scale 1."""
    absmax = tf.stop_gradient(tf.reduce_max(tf.abs(kernel), axis=1))
    scale = narrow(tf.maximum(wide(absmax) / INT8_NARROW.qmax, MIN_SCALE))
    return tf.where(absmax > 0, scale, tf.ones_like(scale))


spanning: Final = tf.function(_spanning, input_signature=[_MATRIX], autograph=False)


def _weights(
    kernel: Any,
    scale: Any,
    bias: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    variance: Any,
    epsilon: Any,
    input_scale: Any,
) -> Weights:
    """What emit/products.py and the exporter write of a product with a BatchNorm behind it, in their order.

    What is not there is 0, in ``gamma`` and ``variance`` 1: no number changes.

    Args:
        kernel: [channels, summed].
        scale: of its grid in training, [channels].
        bias: of the product, [channels].
        gamma: of the BatchNorm, [channels].
        beta: likewise.
        mean: likewise.
        variance: likewise.
        epsilon: of the BatchNorm.
        input_scale: of the product's input.
    """
    qmin, qmax = float(INT8_NARROW.qmin), float(INT8_NARROW.qmax)
    column = [-1, 1]

    def levels_on(w: Any, scale: Any) -> Any:
        return tf.clip_by_value(tf.round(quotient(w, tf.reshape(scale, column))), qmin, qmax)

    deviation = narrow(tf.sqrt(wide(variance + epsilon)))
    spread = quotient(tf.ones_like(deviation), deviation)
    gain = gamma * spread
    shift = (bias - mean) * spread * gamma + beta
    real = kernel / tf.reshape(scale, column)
    levels = levels_on(kernel, scale)
    inside = tf.where(tf.abs(tf.round(real)) <= qmax, real, tf.zeros_like(real))

    # Where the grid spans the weight, the folded one spans the folded weight.
    spans = tf.reduce_all(tf.equal(scale, spanning(kernel)))
    of_folded = tf.where(tf.equal(gain, 0), tf.zeros_like(scale), spanning(kernel * tf.reshape(gain, column)))
    folded = tf.where(spans, of_folded, narrow(wide(scale) * tf.abs(wide(gain))))
    dead = tf.logical_not(folded >= MIN_SCALE)
    others = tf.reduce_max(tf.where(dead, tf.zeros_like(folded), folded))
    folded = tf.where(dead, tf.where(others > 0, others, tf.ones_like(others)), folded)
    sign = tf.where(dead, tf.zeros_like(gain), tf.sign(gain))
    signs = tf.stop_gradient(tf.reshape(sign, column))
    levels = levels * signs

    # A scale is raised where the int32 bias would not fit.
    least = tf.abs(wide(shift)) / (wide(input_scale) * MAX_BIAS_LEVEL)
    raised = least > wide(folded)
    up = tf.math.nextafter(narrow(least), tf.constant(np.inf, tf.float32))
    final = tf.stop_gradient(tf.where(raised, up, folded))
    coarser = levels_on(levels * tf.reshape(folded, column), final)
    levels = tf.where(tf.reshape(raised, column), coarser, levels)

    # Equation (18), on the scale that the exporter writes.
    bias_scale = tf.maximum(narrow(wide(input_scale) * wide(final)), _TINY)
    bias_levels = tf.cast(tf.round(wide(shift) / wide(bias_scale)), tf.int32)
    return Weights(
        levels=passed(levels, inside * signs),
        reach=tf.stop_gradient(tf.reduce_sum(tf.abs(levels), axis=1)),
        scale=final,
        bias=bias_levels,
        slope=tf.stop_gradient(sign * scale * input_scale) * gain,
        shift=shift,
    )


#: One function for all products of a model, so that its graph stays small.
weights: Final = tf.function(_weights, input_signature=[_MATRIX, *[_VECTOR] * 6, _SCALAR, _SCALAR], autograph=False)


# -- operators -------------------------------------------------------------------------------------------------------


def product(
    multiply: Callable[[Any, Any], Any],
    x: Any,
    kernel: Any,
    w: Weights,
    input_scale: Any,
    output: Grid | None,
    spread: Callable[[Any], Any],
) -> Any:
    """Equations (7) to (9).

    Args:
        multiply: the layer without bias and activation: from levels and weights to their sums of products.
        x: reals on the grid of ``input_scale``.
        kernel: the levels of ``w`` as the layer has its weight.
        w: the weights.
        input_scale: float32.
        output: the grid that follows; None leaves reals.
        spread: one value an output channel, shaped to broadcast with the result.
    """
    levels = levels_of(x, input_scale)

    def sums(of: Callable[[Any], Any]) -> tuple[Any, Any]:
        found = multiply(of(levels), of(kernel))
        return tf.cast(tf.round(found), tf.int32), narrow(found)

    n_summed = kernel.shape.num_elements() // w.scale.shape[0]
    if n_summed * INT8_NARROW.qmax * _LARGEST_LEVEL <= EXACT:
        total, real = sums(narrow)
    else:
        largest = tf.reduce_max(w.reach) * _LARGEST_LEVEL
        total, real = tf.cond(largest <= EXACT, lambda: sums(narrow), lambda: sums(wide))
    total = total + spread(w.bias)
    scale = narrow(wide(input_scale) * wide(w.scale))
    if output is None:
        found = narrow(total) * spread(scale)
    else:
        found = tf.round(narrow(total) * spread(quotient(scale, output.scale))) * output.scale
    return passed(found, real * spread(w.slope) + spread(w.shift))


def added(a: Any, b: Any, grid_a: Grid, grid_b: Grid, output: Grid, sign: int) -> Any:
    """Equation (12)."""
    terms = [
        levels_of(v, g.scale) * (quotient(g.scale, output.scale) * s)
        for v, g, s in ((a, grid_a, 1.0), (b, grid_b, float(sign)))
    ]
    found = tf.round(narrow(wide(terms[0]) + wide(terms[1]))) * output.scale
    return passed(found, a + sign * b)


def multiplied(a: Any, b: Any, grid_a: Grid, grid_b: Grid, output: Grid) -> Any:
    """Equation (13)."""
    factor = quotient(narrow(wide(grid_a.scale) * wide(grid_b.scale)), output.scale)
    levels = tf.cast(levels_of(a, grid_a.scale) * levels_of(b, grid_b.scale), tf.int32)
    found = tf.round(narrow(levels) * factor) * output.scale
    return passed(found, a * b)


def averaged(total: Any, n: Any, real: Any, grid: Grid, output: Grid) -> Any:
    """Equation (14).

    Args:
        total: sums of levels, integers.
        n: how many values each sums, float64.
        real: their average.
        grid: of the values.
        output: the grid that follows.
    """
    factor = narrow(wide(grid.scale) / (n * wide(output.scale)))
    return passed(tf.round(narrow(total) * factor) * output.scale, real)
