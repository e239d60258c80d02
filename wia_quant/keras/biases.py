# SPDX-License-Identifier: Apache-2.0
"""Puts the biases of a trained model on the grid that they have in the file, so that it evaluates as the file does.

Our Keras 3 layers round their biases while they train. Those of tf_keras belong to tensorflow-model-optimization, which
leaves them float: int32 in the file, they differ by up to half a step of input scale times weight scale.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wia_quant.keras.emit.products import batch_norm_of
from wia_quant.keras.emit.table import key_of
from wia_quant.keras.placement import ROLES, Role, role_name
from wia_quant.keras.steps import FAKE_QUANTIZE, Step, fold_batch_norms, split
from wia_quant.keras.trace import Keras, trace
from wia_quant.keras.values import array
from wia_quant.keras.walk import is_known
from wia_quant.keras.weights import WEIGHTS
from wia_quant.keras.wrappers import UNWRAP


def round_biases(model: Keras) -> Keras:
    """The same model, its biases (or the offsets of its BatchNorms) changed by at most half a step each.

    Call it after training, before the last evaluation; ``export`` then finds them on their grids.

    Raises:
        CalibrationError: a fake quantizer that saw no data.
    """
    found = trace(model, is_known)
    steps = fold_batch_norms(split(found, key_of, UNWRAP), found.outputs)
    producers = {id(v): step for step in steps for v in step.outputs}
    for step in steps:
        if step.key not in WEIGHTS or step.key == "Embedding" or not step.grids:
            continue
        input_scale = _scale_of_input(step, producers)
        if input_scale is not None:
            (grid,) = step.grids.values()
            _round(step, input_scale * grid.scale.astype(np.float64))
    return model


def _scale_of_input(step: Step, producers: dict[int, Step]) -> float | None:
    producer = producers.get(id(step.inputs[0]))
    while producer is not None:
        if producer.key == FAKE_QUANTIZE:
            assert producer.qparams is not None
            return float(producer.qparams.scale)
        if ROLES.get(role_name(producer)) is not Role.MOVER:
            return None
        producer = producers.get(id(producer.inputs[0]))
    return None


def _round(step: Step, scale: np.ndarray[Any, np.dtype[np.float64]]) -> None:
    bias, norm = step.layer.bias, step.batch_norm
    if norm is None:
        if bias is not None:
            bias.assign(_on_grid(array(bias).astype(np.float64), scale).astype(np.float32))
        return
    fold = batch_norm_of(norm)
    offset = fold.shift(None if bias is None else array(bias)).astype(np.float64)
    moved = _on_grid(offset, scale * np.abs(fold.gain)) - offset
    if norm.beta is not None:
        norm.beta.assign((array(norm.beta) + moved).astype(np.float32))


def _on_grid(bias: np.ndarray[Any, np.dtype[np.float64]], scale: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    safe = np.where(scale > 0, scale, 1.0)
    return np.where(scale > 0, np.rint(bias / safe) * safe, bias)
