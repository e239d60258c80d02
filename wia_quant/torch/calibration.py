# SPDX-License-Identifier: Apache-2.0
"""Training that begins where post-training quantization ended: ranges from a calibration table, or from samples."""

from __future__ import annotations

import copy
import hashlib
import inspect
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
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
from wia_quant.integers import PRODUCTS, integers_of
from wia_quant.prepare import prepare as fold
from wia_quant.quantizer import QuantizedModel
from wia_quant.table import CalibrationTable
from wia_quant.torch.beginning import Place, begin_weights, products_at
from wia_quant.torch.export import OPSET, float_onnx, to_onnx
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.freeze import FrozenProduct, freeze
from wia_quant.torch.observers import CurrentMinMaxObserver, MinMaxObserver
from wia_quant.torch.prepare import prepare_qat
from wia_quant.torch.product import QuantizedProduct
from wia_quant.torch.usable import positional
from wia_quant.torch.verify import arguments

_log = logging.getLogger(__name__)


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
        CalibrationError: the table has a range for none of the model's tensors, or the result is of another model, or
            of this one before its weights changed. Of a table alone the latter is said on the log.
        TableError: a file that is no table.
    """
    if not isinstance(table, CalibrationTable | QuantizedModel):
        table = CalibrationTable.load(table)
    source = fold(float_onnx(model, example), opset=OPSET)
    _require_same(table, source.sha256)
    folded = source.model
    ranges = table.ranges if isinstance(table, CalibrationTable) else table.ranges_in(folded)
    proto = folded.to_proto()
    known = _places(proto)
    span_of = {place: ranges[name] for name, place in known.items() if name in ranges}
    prepared = prepare_qat(model, qconfig=qconfig, exclude=exclude)
    quantizers = [m for m in prepared.modules() if isinstance(m, FakeQuantize) and m.observer.has_history]
    begun = 0
    marked = _marked_places(prepared, example)
    for place, index in marked.quantizers.items():
        if place in span_of:
            _begin(quantizers[index], span_of[place])
            begun += 1
    if not begun and (ranges or not isinstance(table, QuantizedModel)):
        raise CalibrationError("the table has a range for no tensor of this model; it was made of another one")
    if isinstance(table, QuantizedModel):
        nodes = products_at(prepared, marked.products, proto, known)
        begin_weights(prepared, integers_of(table.model), nodes)
    return prepared


def _require_same(table: CalibrationTable | QuantizedModel, sha256: str) -> None:
    """Nothing, where this very model was quantized; ranges alone may begin another training, which is said."""
    if isinstance(table, CalibrationTable):
        if table.model_sha256 != sha256:
            _log.warning("the table was made of another model, or this one's weights have changed since")
        return
    table.require_made_of(sha256)


def _places(proto: onnx.ModelProto) -> dict[str, Place]:
    """Tensor -> where it is."""
    known = {t.name: f"constant {list(t.dims)}" for t in proto.graph.initializer}
    found: dict[str, Place] = {}
    counts: Counter[str] = Counter()

    def add(name: str, path: str) -> None:
        known[name] = hashlib.sha256(path.encode()).hexdigest()
        found[name] = known[name], counts[known[name]]
        counts[known[name]] += 1

    for n, info in enumerate(proto.graph.input):
        add(info.name, f"input {n}")
    for node in proto.graph.node:
        inputs = [known.get(name, "absent") for name in node.input]
        for n, name in enumerate(node.output):
            add(name, f"{node.op_type} {n} {inputs}")
    return found


@dataclass(frozen=True)
class _Marked:
    """Where in the graph the parts of a prepared model are.

    Attributes:
        quantizers: place -> which of the observed fake quantizers is there.
        products: path of a product -> the place of its result, of its first call; without those into whose weight
            more than a BatchNorm is folded.
    """

    quantizers: dict[Place, int]
    products: dict[str, Place]


def _marked_places(prepared: nn.Module, example: Any) -> _Marked:
    """Sees the parts by numbers of their own: a scale for each quantizer, a weight for each product."""
    marked = copy.deepcopy(prepared).eval()
    quantizers = [m for m in marked.modules() if isinstance(m, FakeQuantize) and m.observer.has_history]
    for n, quantizer in enumerate(quantizers):
        _begin(quantizer, Range(-1.0, 1.0))
        zero = np.array(quantizer.qtype.middle, quantizer.qtype.dtype)
        quantizer.set_qparams(QParams(quantizer.qtype, np.array(_mark(n), np.float32), zero))
    for module in marked.modules():
        if isinstance(module, FakeQuantize) and isinstance(module.observer, CurrentMinMaxObserver):
            _begin(module, Range(-1.0, 1.0))
    frozen = freeze(marked)
    names = {n: name for n, (name, m) in enumerate(frozen.named_modules()) if isinstance(m, FrozenProduct)}
    for n, name in names.items():
        frozen.get_submodule(name).get_parameter("weight").fill_(_mark(n))
        trained = prepared.get_submodule(name)
        assert isinstance(trained, QuantizedProduct)
        bias = trained.folded()[1]
        if bias is not None:  # not rounded: one that became 0 would be folded away
            frozen.get_submodule(name).get_parameter("bias").copy_(bias.detach())
    encodings = take_apart(to_onnx(frozen, example))
    proto = fold(encodings.model, opset=OPSET).model.to_proto()
    places = _places(proto)
    marks = {float(np.float32(_mark(n))): n for n in range(len(quantizers))}
    by_tensor = {name: marks.get(float(qp.scale)) for name, qp in encodings.activations.items()}
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in proto.graph.initializer}
    by_mark = {_mark(n): name for n, name in names.items()}
    products: dict[str, Place] = {}
    for node in proto.graph.node:
        weight = constants.get(node.input[PRODUCTS[node.op_type]]) if node.op_type in PRODUCTS else None
        if weight is not None and weight.size and (weight == weight.flat[0]).all() and weight.flat[0] in by_mark:
            products.setdefault(by_mark[float(weight.flat[0])], places[node.output[0]])
    return _Marked({places[name]: n for name, n in by_tensor.items() if n is not None and name in places}, products)


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
