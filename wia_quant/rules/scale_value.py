# SPDX-License-Identifier: Apache-2.0
"""Every scale is a positive, finite, normal float32, dead channels' included."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, numpy_helper

from wia_quant.qdq import DEQUANTIZE, QUANTIZE, Dequantized, ModelView, view_model
from wia_quant.rules.base import Place, Rule, Severity, at


def find(model: ModelView) -> Iterator[Place]:
    """Scales of 0, below 0, NaN, infinite or denormal."""
    for view, node in model.nodes():
        if node.op_type not in (QUANTIZE, DEQUANTIZE):
            continue
        scale = view.constant(node.input[1])
        bad = None if scale is None else np.flatnonzero(_bad(scale))
        if scale is None or bad is None or bad.size == 0:
            continue
        tensor = view.dequantized.get(node.output[0])
        dead = tensor is not None and _is_dead(tensor, _bad(scale))
        yield at(
            view,
            node,
            f"{bad.size} of {scale.size} scales are 0, negative, not finite or denormal;"
            f" the first is scale[{bad[0]}] = {scale.reshape(-1)[bad[0]]}",
            "a channel of zeros takes scale 1" if dead else "calibrate again; the range was empty or not finite",
            tensor=node.input[1],
            fixable=dead,
        )


def fix(model: ModelProto) -> int:
    """Sets the scales of channels whose integers are all zero to 1: the result is 0 either way."""
    changed = 0
    for view, tensor in view_model(model).tensors():
        name = tensor.node.input[1]
        if tensor.scale is None or name not in view.initializers or not _bad(tensor.scale).any():
            continue
        if not _is_dead(tensor, _bad(tensor.scale)):
            continue
        mended = np.where(_bad(tensor.scale), np.ones_like(tensor.scale), tensor.scale)
        view.initializers[name].CopyFrom(numpy_helper.from_array(mended.astype(tensor.scale.dtype), name))
        changed += 1
    return changed


def _bad(scale: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    s = scale.astype(np.float64)
    smallest = float(np.finfo(np.float32).tiny) if scale.dtype == np.float32 else 0.0
    return ~(np.isfinite(s) & (s > 0) & (s >= smallest))


def _is_dead(tensor: Dequantized, bad: npt.NDArray[np.bool_]) -> bool:
    """True when every channel with a bad scale holds only its zero point."""
    if tensor.levels is None or tensor.zero_point is None or tensor.scale is None:
        return False
    if tensor.scale.size == 1:
        return bool((tensor.levels == tensor.zero_point.reshape(-1)[0]).all())
    if tensor.scale.ndim != 1 or not -tensor.levels.ndim <= tensor.axis < tensor.levels.ndim:
        return False
    channels = np.moveaxis(tensor.levels, tensor.axis, 0).reshape(tensor.levels.shape[tensor.axis], -1)
    if channels.shape[0] != tensor.scale.size:
        return False
    at_zero = (channels == tensor.zero_point.reshape(-1, 1)).all(axis=1)
    return bool(at_zero[bad].all())


RULE = Rule("every scale is a positive, finite, normal number", Severity.ERROR, find, fix)
