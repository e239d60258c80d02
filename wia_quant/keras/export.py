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

from wia_quant.errors import ExportError, UsageError
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
        verify: an array, a list of them, or a dict of them by input name, on which the file in libwia is compared with
            the Keras model.

    Raises:
        CalibrationError: a fake quantizer that saw no data.
        ExportError: a layer that has no ONNX form here, or a model without fake quantizers; names it.
        UsageError: ``verify`` does not give each input one array.
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

    session = Session(file.SerializeToString())
    names = [i.name for i in session.get_inputs()]
    inputs = _in_order(example, names)
    # As the model takes them: by name where it was made so.
    structure = getattr(model, "_inputs_struct" if framework_of(model) == "keras" else "_nested_inputs", None)
    by_name = isinstance(structure, dict) and set(structure) == set(names)
    wanted = model.predict(
        dict(zip(names, inputs, strict=True)) if by_name else inputs if len(inputs) > 1 else inputs[0], verbose=0
    )
    feeds = {name: _turned(x, channels_first_io) for name, x in zip(names, inputs, strict=True)}
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


def _in_order(example: Any, names: list[str]) -> list[npt.NDArray[Any]]:
    """One array an input."""
    if isinstance(example, Mapping):
        unknown = [str(name) for name in example if name not in names]
        missing = [name for name in names if name not in example]
        if unknown or missing:
            said = [f"has no input {', '.join(unknown)}"] * bool(unknown) + [f"needs {', '.join(missing)}"] * bool(
                missing
            )
            raise UsageError(f"verify: the model {' and '.join(said)}; its inputs are {', '.join(names)}")
        return [np.asarray(example[name]) for name in names]
    given = [np.asarray(x) for x in (example if isinstance(example, list | tuple) else [example])]
    if len(given) != len(names):
        raise UsageError(f"verify: {len(given)} arrays for {len(names)} inputs: {', '.join(names)}")
    return given


def _turned(x: npt.NDArray[Any], channels_first_io: bool) -> npt.NDArray[Any]:
    return np.moveaxis(x, -1, 1) if channels_first_io and x.ndim > 2 else x
