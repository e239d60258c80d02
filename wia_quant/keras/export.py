# SPDX-License-Identifier: Apache-2.0
"""A Keras model trained with fake quantizers -> a .wia.onnx file that computes what was trained."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from wia_quant.errors import ExportError
from wia_quant.files import check_writable, replacing
from wia_quant.graph import save
from wia_quant.keras.trace import Keras, flat, framework_of
from wia_quant.keras.walk import to_onnx
from wia_quant.policy import Plan
from wia_quant.targets.target import DEFAULT
from wia_quant.trained import export_trained


@dataclass(frozen=True)
class Exported:
    """What ``export`` gives.

    Attributes:
        model: the QDQ model, in the wia-quantized ONNX format.
        plan: the decision for every node.
        notes: what else a user should know, one sentence each.
        differences: with ``verify``: output -> the largest difference from the Keras model as a share of the output's
            largest magnitude, and the share of the values that differ by more than 1e-4 of it.
    """

    model: onnx.ModelProto = field(repr=False)
    plan: Plan
    notes: tuple[str, ...]
    differences: Mapping[str, tuple[float, float]]


def export(
    model: Keras,
    path: str | Path | None = None,
    *,
    input_shape: Any = None,
    channels_first_io: bool = False,
    target: str = DEFAULT,
    force: bool = False,
    verify: Any = None,
) -> Exported:
    """Writes a trained model in the wia-quantized ONNX format.

    Args:
        model: what ``quantize_model`` returned, trained; or a model made by tensorflow-model-optimization.
        path: the file; None only returns the model.
        input_shape: as in ``to_onnx``.
        channels_first_io: as in ``to_onnx``.
        target: a built-in target or a .json file.
        force: overwrite ``path``.
        verify: an array, or a list of them, on which the file in libwia is compared with the Keras model.

    Raises:
        CalibrationError: a fake quantizer that saw no data.
        ExportError: a layer that has no ONNX form here, or a model without fake quantizers; names it.
    """
    if path is not None:
        check_writable([Path(path)], force=force)
    proto = to_onnx(model, input_shape=input_shape, channels_first_io=channels_first_io)
    if not is_trained(proto):
        raise ExportError(f"model '{model.name}' has no fake quantizers; call quantize_model on it and train it first")
    written = export_trained(proto, source=str(framework_of(model)), target=target)
    differences = {} if verify is None else _compare(written.model, model, verify, channels_first_io)
    if path is not None:
        with replacing(Path(path), force=force) as temporary:
            save(written.model, temporary)
    return Exported(written.model, written.plan, written.notes, differences)


def is_trained(proto: onnx.ModelProto) -> bool:
    """Whether a walked model has grids of training."""
    return any(node.op_type == "QuantizeLinear" for node in proto.graph.node)


#: float32 sums in another order differ by less; more is a difference of levels.
_ROUNDING = 1e-4


def _compare(
    file: onnx.ModelProto, model: Keras, example: Any, channels_first_io: bool
) -> dict[str, tuple[float, float]]:
    from wia_quant.runtime import Session  # the native module is needed only here

    inputs = [np.asarray(x) for x in (example if isinstance(example, list | tuple) else [example])]
    wanted = model.predict(inputs if len(inputs) > 1 else inputs[0], verbose=0)
    session = Session(file.SerializeToString())
    feeds = {i.name: _turned(x, channels_first_io) for i, x in zip(session.get_inputs(), inputs, strict=True)}
    outputs = session.run(None, feeds)
    named = dict(zip((o.name for o in session.get_outputs()), outputs, strict=True))
    # As the model's own outputs are flattened: a dict by its sorted keys, whatever order predict gives it.
    ordered = sys.modules["keras"].tree.flatten(wanted) if framework_of(model) == "keras" else flat(wanted)
    found = {}
    for (name, got), want in zip(named.items(), ordered, strict=True):
        apart = np.abs(got - _turned(np.asarray(want), channels_first_io))
        span = float(np.abs(want).max(initial=0)) or 1.0
        found[name] = (float(apart.max(initial=0)) / span, float((apart > _ROUNDING * span).mean()))
    return found


def _turned(x: npt.NDArray[Any], channels_first_io: bool) -> npt.NDArray[Any]:
    return np.moveaxis(x, -1, 1) if channels_first_io and x.ndim > 2 else x
