# SPDX-License-Identifier: Apache-2.0
"""Training that begins where post-training quantization ended: ranges from a calibration table, or from samples."""

from __future__ import annotations

import copy
import hashlib
import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.ao.quantization import QConfig

from wia_quant.affine import QParams, Range
from wia_quant.errors import CalibrationError, DataError, UsageError
from wia_quant.exporters.encodings import take_apart
from wia_quant.graph import Model
from wia_quant.grids import group_ranges
from wia_quant.prepare import prepare as fold
from wia_quant.quantizer import QuantizedModel
from wia_quant.table import CalibrationTable
from wia_quant.torch.beginning import begin_weights
from wia_quant.torch.export import OPSET, float_onnx, to_onnx
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.freeze import freeze
from wia_quant.torch.observers import CurrentMinMaxObserver, MinMaxObserver
from wia_quant.torch.prepare import prepare_qat
from wia_quant.torch.usable import positional
from wia_quant.torch.verify import arguments


def from_calibration(
    model: nn.Module,
    table: str | Path | CalibrationTable | QuantizedModel,
    example: Any,
    *,
    qconfig: QConfig | None = None,
    exclude: Iterable[str] = (),
) -> nn.Module:
    """``prepare_qat`` that begins with what ``wia_quant.quantize(model, data)`` found.

    With a table the fake quantizers begin with its ranges. With the whole result the weights and biases begin as what
    the integers of that file stand for, too, so that the model evaluates as the file does before the first step; a
    module without a bias gets one where the file has one, a module that is called twice begins with its first call's.

    A tensor is the same in both where the operators that lead to it are; those without a range in the table are
    observed from the first batch, as usual.

    Args:
        model: the float model that was quantized; not changed.
        table: what ``wia_quant.quantize`` returned, or its table, or the file of that.
        example: inputs as the model takes them: a tensor, a tuple, or a dict by argument name.
        qconfig: as for ``prepare_qat``; its observers must follow minimum and maximum.
        exclude: likewise.

    Raises:
        CalibrationError: the table has a range for none of the model's tensors, or the file none of its weights: it
            belongs to another.
        TableError: a file that is no table.
    """
    folded = fold(float_onnx(model, example), opset=OPSET).model
    ranges = _ranges(table, folded)
    known = _places(folded.to_proto())
    span_of = {place: ranges[name] for name, place in known.items() if name in ranges}
    prepared = prepare_qat(model, qconfig=qconfig, exclude=exclude)
    quantizers = [m for m in prepared.modules() if isinstance(m, FakeQuantize) and m.observer.has_history]
    begun = 0
    for place, index in _quantized_places(prepared, example).items():
        if place in span_of:
            _begin(quantizers[index], span_of[place])
            begun += 1
    if not begun and (ranges or not isinstance(table, QuantizedModel)):
        raise CalibrationError("the table has a range for no tensor of this model; it was made of another one")
    if isinstance(table, QuantizedModel):
        begin_weights(prepared, table.model)
    return prepared


def _ranges(table: str | Path | CalibrationTable | QuantizedModel, folded: Model) -> Mapping[str, Range]:
    """Tensor -> its range; with a file's plan that of all tensors it shares its grid with."""
    if not isinstance(table, QuantizedModel):
        return (table if isinstance(table, CalibrationTable) else CalibrationTable.load(table)).ranges
    groups = group_ranges(folded, table.plan, table.table.ranges)
    return {name: groups[activation.group] for name, activation in table.plan.activations.items()}


def _places(proto: onnx.ModelProto) -> dict[str, str]:
    """Tensor -> where it is: the operators that lead to it, and which of several such it is in the graph's order."""
    known = {t.name: f"constant {list(t.dims)}" for t in proto.graph.initializer}
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()

    def add(name: str, path: str) -> None:
        known[name] = hashlib.sha256(path.encode()).hexdigest()
        found[name] = f"{known[name]} {counts[known[name]]}"
        counts[known[name]] += 1

    for n, info in enumerate(proto.graph.input):
        add(info.name, f"input {n}")
    for node in proto.graph.node:
        inputs = [known.get(name, "absent") for name in node.input]
        for n, name in enumerate(node.output):
            add(name, f"{node.op_type} {n} {inputs}")
    return found


def _quantized_places(prepared: nn.Module, example: Any) -> dict[str, int]:
    """Place -> which of the observed fake quantizers is there, seen by a scale of its own for each."""
    marked = copy.deepcopy(prepared).eval()
    quantizers = [m for m in marked.modules() if isinstance(m, FakeQuantize) and m.observer.has_history]
    for n, quantizer in enumerate(quantizers):
        _begin(quantizer, Range(-1.0, 1.0))
        zero = np.array(quantizer.qtype.middle, quantizer.qtype.dtype)
        quantizer.set_qparams(QParams(quantizer.qtype, np.array(_mark(n), np.float32), zero))
    for module in marked.modules():
        if isinstance(module, FakeQuantize) and isinstance(module.observer, CurrentMinMaxObserver):
            _begin(module, Range(-1.0, 1.0))
    encodings = take_apart(to_onnx(freeze(marked), example))
    places = _places(fold(encodings.model, opset=OPSET).model.to_proto())
    marks = {float(np.float32(_mark(n))): n for n in range(len(quantizers))}
    by_tensor = {name: marks.get(float(qp.scale)) for name, qp in encodings.activations.items()}
    return {places[name]: n for name, n in by_tensor.items() if n is not None and name in places}


def _mark(n: int) -> float:
    return 1.0 + n / 4096


def observe(prepared: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Shows samples to a prepared model before training, so that the first step's ranges are not those of one batch.

    Args:
        prepared: what ``prepare_qat`` or ``prepare`` returned.
        batches: a DataLoader or another iterable of tensors, dicts by argument name, or tuples, of which the first
            are the arguments (what follows, such as labels, is not read).

    Raises:
        UsageError: a model that is not prepared, or data that it does not run on.
        DataError: no batch.
    """
    if not any(isinstance(module, FakeQuantize) for module in prepared.modules()):
        raise UsageError(f"{type(prepared).__name__} has no fake quantizers to observe; call prepare_qat on it first")
    modes = {module: module.training for module in prepared.modules()}
    quantizers = [m for m in prepared.modules() if isinstance(m, FakeQuantize) and m.observer.has_history]
    shown, n_taken = 0, _n_taken(prepared)
    before = [(m.always_observe, m.quantizing) for m in quantizers]
    try:
        prepared.eval()
        for quantizer in quantizers:
            quantizer.always_observe, quantizer.quantizing = True, False
        with torch.no_grad():
            for batch in batches:
                args, kwargs = arguments(batch)
                prepared(*args[:n_taken], **kwargs)
                shown += 1
    finally:
        for quantizer, (always, quantizing) in zip(quantizers, before, strict=True):
            quantizer.always_observe, quantizer.quantizing = always, quantizing
        for module, training in modes.items():
            module.training = training
    if not shown:
        raise DataError("the data gives no batch: nothing was observed")
    return prepared


def _n_taken(model: nn.Module) -> int | None:
    """How many inputs ``forward`` takes by place; None where it takes any number."""
    parameters = inspect.signature(model.forward).parameters.values()
    return None if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters) else len(positional(model))


def _begin(quantizer: FakeQuantize, span: Range) -> None:
    observer = quantizer.observer
    if not isinstance(observer, MinMaxObserver):
        raise CalibrationError(f"{type(observer).__name__} cannot begin with a range; use observer='moving_average'")
    observer.load_state({"lo": span.lo, "hi": span.hi, "seen": True})
    quantizer.set_qparams(observer.qparams(quantizer.qtype, quantizer.axis))
