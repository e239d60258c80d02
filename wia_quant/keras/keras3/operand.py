# SPDX-License-Identifier: Apache-2.0
"""Weights of users' layers that operations read: each in a layer of ours, so that it is trained, saved and loaded."""

from __future__ import annotations

from typing import Any, Final

import keras
import numpy as np
from keras import ops

from wia_quant import affine
from wia_quant.affine import INT8, QParams, Range, choose_qparams
from wia_quant.keras.keras3.fake_quantize import affine_grid, fake_quantize
from wia_quant.keras.values import array

#: Roundings after which a constant stays as it is: a range from -1 to 1 has an odd number of steps; rounded, it is
#: another range.
_SETTLED: Final = 3


def rounded(operand: Any) -> Any:
    """An operand that is no tensor of the model: what its int8 levels stand for, on the grid that spans these."""
    values, grid = operand, _grid_of(operand)
    for _ in range(_SETTLED):
        if grid is not None:
            values = affine.fake_quantize(array(values).astype(np.float32), grid)
            grid = _grid_of(values)
    return values


def scale_of(operand: Any) -> Any:
    """Of a rounded operand; None where it has no grid. A tensor, as Keras takes no numbers among tensors."""
    grid = _grid_of(operand)
    return None if grid is None else ops.convert_to_tensor(grid.scale)


def _grid_of(operand: Any) -> QParams | None:
    if isinstance(operand, keras.KerasTensor) or not (hasattr(operand, "shape") or isinstance(operand, float)):
        return None
    values = array(operand)
    if values.dtype.kind != "f" or not values.size:
        return None
    return choose_qparams(Range.around_zero(float(values.min()), float(values.max())), INT8)


@keras.saving.register_keras_serializable("wia_quant")
class OperandWeight(keras.layers.Layer):
    """Returns its weight, and the scale of the grid that it is rounded to.

    Called on any tensor, as the layers of a functional model are; looks at none.

    Args:
        shape: of the weight.
        rounds: whether it is what its int8 levels stand for, as ``rounded`` has it; else the scale is 0.
    """

    def __init__(self, shape: Any, rounds: bool, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.shape, self.rounds = tuple(shape), rounds
        self.weight = self.add_weight(
            name="weight", shape=self.shape, initializer="zeros", trainable=True, dtype="float32"
        )
        self.built = True

    def call(self, inputs: Any) -> tuple[Any, Any]:
        values, scale = ops.convert_to_tensor(self.weight), ops.zeros(())
        if self.rounds:
            for _ in range(_SETTLED):
                scale, zero_point = self._grid(values)
                values = fake_quantize(values, scale, INT8.qmin - zero_point, INT8.qmax - zero_point)
            scale = self._grid(values)[0]
        return values, ops.stop_gradient(scale)

    @staticmethod
    def _grid(values: Any) -> tuple[Any, Any]:
        held = ops.stop_gradient(values)
        return affine_grid(ops.minimum(ops.min(held), 0.0), ops.maximum(ops.max(held), 0.0))

    def values(self) -> Any:
        """What ``call`` returns first, in numpy."""
        values = array(self.weight)
        return rounded(values) if self.rounds else values

    def compute_output_spec(self, inputs: Any) -> tuple[Any, Any]:
        return keras.KerasTensor(self.shape, "float32"), keras.KerasTensor((), "float32")

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "shape": self.shape, "rounds": self.rounds}
