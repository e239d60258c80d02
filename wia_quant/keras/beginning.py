# SPDX-License-Identifier: Apache-2.0
"""Integers of a file -> the weights and biases of a layer that is to train: those whose grids give these integers.

What a BatchNorm behind the layer has put into the file is taken out again: ``kernel = levels * scale / gain``.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wia_quant.builder import flattened_rows
from wia_quant.integers import Floats, Integers, Levels, weight_of
from wia_quant.keras.emit.products import batch_norm_of
from wia_quant.keras.steps import Step
from wia_quant.keras.values import array
from wia_quant.keras.weights import WEIGHTS, summed_axes


def begin_weight(step: Step, file: Integers, unflattened: Any) -> int:
    """Gives the layer of ``step`` the weight that the integers stand for.

    Args:
        step: of a trace of the model that is to train.
        file: what to begin with.
        unflattened: the tensor before the flattening that the step's input went through; None where it did not.

    Returns:
        As ``weight_of``: how many channels had their largest weight put back.
    """
    weight = WEIGHTS[step.key]
    name = weight.attribute if hasattr(step.layer, weight.attribute) else weight.legacy
    variable = getattr(step.layer, name)
    before = array(variable).astype(np.float32)
    along = [n if i in {a % before.ndim for a in weight.channels} else 1 for i, n in enumerate(before.shape)]
    gain = np.ones(along, np.float32)
    if step.batch_norm is not None:
        gain = batch_norm_of(step.batch_norm).gain.reshape(along)
    scale = np.broadcast_to(file.scale.reshape(-1), (gain.size,)).reshape(along)
    levels = _in_kept_order(step, file, unflattened, before.shape)
    values, n_raised = weight_of(levels, scale, gain, before, summed_axes(before.ndim, weight.channels))
    variable.assign(values)
    return n_raised


def _in_kept_order(step: Step, file: Integers, unflattened: Any, shape: tuple[int, ...]) -> Levels:
    """The levels as Keras keeps the weight: the inverse of what emit/products.py does."""
    if step.key == "Embedding":
        return file.levels
    if step.key.startswith("Depthwise"):
        channels = file.levels[:, 0].reshape(*shape[-2:], *shape[:-2])
        return np.moveaxis(channels, (0, 1), (-2, -1))
    if step.key != "Dense":
        return np.moveaxis(file.levels, (0, 1), (-1, -2))
    turned = any(a.name == "transB" and a.i for a in file.node.attribute)
    levels = file.levels.T if turned else file.levels
    if unflattened is None:
        return levels
    kept = np.empty_like(levels)
    kept[flattened_rows(unflattened)] = levels
    return kept


def begin_bias(step: Step, bias: Floats) -> bool:
    """Gives the layer, or the BatchNorm behind it, the bias that the integers stand for.

    A BatchNorm takes it in its beta; without one the layer's own bias does, else the moving mean.

    Returns:
        Whether there was a place for it.
    """
    own, norm = step.layer.bias, step.batch_norm
    if norm is None:
        if own is not None:
            own.assign(bias.astype(np.float32))
        return own is not None
    for _ in range(_ROUNDS):
        fold = batch_norm_of(norm)
        missing = bias - fold.shift(None if own is None else array(own)).astype(np.float64)
        gain = np.where(fold.gain == 0, np.inf, fold.gain.astype(np.float64))
        for variable, change in ((norm.beta, missing), (own, missing / gain), (norm.moving_mean, -missing / gain)):
            if variable is not None:
                variable.assign((array(variable) + change).astype(np.float32))
                break
    return True


#: The second makes good what float32 lost in the first.
_ROUNDS: Final = 2
