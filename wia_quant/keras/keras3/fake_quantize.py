# SPDX-License-Identifier: Apache-2.0
"""Fake quantization as a Keras 3 layer: forward equations (1) to (4), backward straight through."""

from __future__ import annotations

from typing import Any, Final

import keras
import numpy as np
from keras import ops

from wia_quant.affine import INT8, MIN_SCALE
from wia_quant.keras import observing
from wia_quant.keras.keras3.exact import in_float64, quotient, wants_gradient

#: The weight of a new batch in the moving average, as in wia_quant.torch.
AVERAGING_CONSTANT: Final = 0.01


def fake_quantize(x: Any, scale: Any, lowest: Any, highest: Any) -> Any:
    """The real of the level of each value; the gradient passes where ``x`` did not saturate.

    Levels are counted from the zero point: they saturate at ``lowest`` = qmin - zero point and ``highest``. Adding
    what is exactly zero, the straight-through term, leaves the values those of equation (2).
    """
    levels = ops.round(quotient(x, scale))
    rounded = ops.clip(levels, lowest, highest) * scale
    if not wants_gradient(x):
        return rounded + 0.0
    inside = ops.where(ops.logical_and(levels >= lowest, levels <= highest), x, ops.zeros_like(x))
    return ops.stop_gradient(rounded) + (inside - ops.stop_gradient(inside))


def affine_grid(lo: Any, hi: Any) -> tuple[Any, Any]:
    """Scale and zero point of a range that contains 0, equations (3) and (4), in float64."""
    scale = in_float64(lambda a, b: quotient(b - a, INT8.qmax - INT8.qmin), lo, hi)
    scale = ops.where(ops.equal(hi, lo), ops.ones_like(scale), ops.maximum(scale, MIN_SCALE))
    zero_point = in_float64(lambda a, s: ops.round(INT8.qmin - quotient(a, s)), lo, scale)
    zero_point = ops.clip(zero_point, INT8.qmin, INT8.qmax)
    return scale, ops.where(ops.equal(hi, lo), ops.zeros_like(zero_point), zero_point)


@keras.saving.register_keras_serializable("wia_quant")
class FakeQuantize(keras.layers.Layer):
    """Observes in training what passes, and replaces it by what its integers stand for.

    Before it has seen a training batch it passes values unchanged. It also returns its scale, on which the products
    behind it put their biases. Called with ``scale_only`` it looks at no values: what ends on its grid in evaluation
    wants its scale.

    Args:
        averaging_constant: the weight of a new batch.
        sites: how many tensors share this grid, which spans the ranges of all: the inputs of a Concat. Each has its
            place in ``lo`` and ``hi`` and says it, ``site``, when it passes.
    """

    lo: Any
    hi: Any
    seen: Any
    #: The tensor's name where the model was made; not saved.
    tensor: str = ""

    def __init__(self, averaging_constant: float = AVERAGING_CONSTANT, sites: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.averaging_constant, self.sites = averaging_constant, sites
        self.supports_masking = True

    def build(self, input_shape: Any) -> None:
        for name in ("lo", "hi", "seen"):
            weight = self.add_weight(
                name=name, shape=(self.sites,), initializer="zeros", trainable=False, dtype="float32"
            )
            setattr(self, name, weight)
        self.built = True

    def call(self, inputs: Any, site: int = 0, scale_only: bool = False, training: bool = False) -> tuple[Any, Any]:
        if scale_only:
            return inputs, ops.zeros(()) if observing.share is not None else self._scale()
        if observing.share is not None:
            self._observe(inputs, site, observing.share)
            return inputs, ops.zeros(())
        if training and self.trainable:
            self._observe(inputs, site, self.averaging_constant)
        scale, zero_point = affine_grid(ops.min(self.lo), ops.max(self.hi))
        given = inputs if training else ops.where(ops.isnan(inputs), ops.zeros_like(inputs), inputs)  # (1)
        rounded = fake_quantize(given, scale, INT8.qmin - zero_point, INT8.qmax - zero_point)
        seen = ops.max(self.seen) > 0
        return ops.where(seen, rounded, inputs), ops.where(seen, scale, ops.zeros_like(scale))

    def _scale(self) -> Any:
        """What ``call`` returns beside the values: 0 before the first batch."""
        scale, _ = affine_grid(ops.min(self.lo), ops.max(self.hi))
        return ops.where(ops.max(self.seen) > 0, scale, ops.zeros_like(scale))

    def _observe(self, x: Any, site: int, share: float) -> None:
        x = ops.stop_gradient(x)
        lo, hi = ops.minimum(ops.min(x), 0.0), ops.maximum(ops.max(x), 0.0)
        here = ops.convert_to_tensor(np.eye(self.sites, dtype=np.float32)[site])
        share = here * ops.where(self.seen > 0, share, 1.0)
        self.lo.assign(self.lo + share * (lo - self.lo))
        self.hi.assign(self.hi + share * (hi - self.hi))
        self.seen.assign(ops.maximum(self.seen, here))

    def compute_output_spec(
        self, inputs: Any, site: int = 0, scale_only: bool = False, training: bool = False
    ) -> tuple[Any, Any]:
        return keras.KerasTensor(inputs.shape, inputs.dtype), keras.KerasTensor((), "float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "averaging_constant": self.averaging_constant, "sites": self.sites}
