# SPDX-License-Identifier: Apache-2.0
"""Training that begins where post-training quantization ended: its ranges, and its weights and biases."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from wia_quant.affine import INT8, Range, place
from wia_quant.errors import CalibrationError, UsageError
from wia_quant.graph import metadata_of, source_sha256
from wia_quant.integers import PRODUCTS, Integers, integers_of
from wia_quant.keras.beginning import begin_bias, begin_weight
from wia_quant.keras.emit.activations import function_name
from wia_quant.keras.placement import ROLES, Role
from wia_quant.keras.quantize import with_biases
from wia_quant.keras.steps import FAKE_QUANTIZE, FOLDS_BATCH_NORM, Step, Substituted, activation_of
from wia_quant.keras.trace import Keras, framework_of, trace
from wia_quant.keras.values import array
from wia_quant.keras.walk import Walk, is_known
from wia_quant.keras.weights import WEIGHTS
from wia_quant.keras.wrappers import UNWRAP
from wia_quant.places import places
from wia_quant.policy import scheme_named
from wia_quant.prepare import prepare
from wia_quant.quantizer import QuantizedModel
from wia_quant.table import CalibrationTable

_log = logging.getLogger(__name__)

#: What a trained model is exported as.
_SCHEME: Final = "w8a8"
_OPSET: Final = scheme_named(_SCHEME).opset


def from_calibration(
    model: Keras,
    table: str | Path | CalibrationTable | QuantizedModel,
    *,
    exclude: Iterable[str] = (),
    input_shape: Any = None,
) -> Keras:
    """``quantize_model`` that begins with what ``wia_quant.quantize(model, data)`` found.

    With a table its fake quantizers begin with those ranges. With the whole result the weights and biases begin as
    what the integers of that file stand for, too: before the first step the model evaluates as the file does. What the
    file has and the model cannot hold is said on the log; a shared layer, which has other weights for each of its calls
    there, takes those of the first. A layer without a bias gets one where the file has one. A tensor of which there is
    no range is observed from the first batch, as usual.

    Args:
        model: the float model that was quantized; not changed.
        table: what ``wia_quant.quantize`` returned, or its table, or the file of that.
        exclude: as for ``quantize_model``.
        input_shape: likewise.

    Raises:
        CalibrationError: the table or file is of another model, or of a scheme other than w8a8.
        TableError: a file that is no table.
    """
    if not isinstance(table, str | Path | CalibrationTable | QuantizedModel):
        raise UsageError(
            f"{type(table).__name__} is no calibration: give what wia_quant.quantize returned, its table or the"
            " file of that"
        )
    walk = _PlainWalk(trace(model, is_known, input_shape))
    source = walk.run()
    if isinstance(table, QuantizedModel):
        folded = prepare(source, opset=_OPSET, keep=_kept_float(table, source))
        file = integers_of(table.model)
        spans = table.ranges_in(folded.model)
    else:
        folded = prepare(source, opset=_OPSET)
        file = {}
        spans = (table if isinstance(table, CalibrationTable) else CalibrationTable.load(table)).ranges
    biased, proto = _without_place(walk, file), folded.model.to_proto()
    prepared = with_biases(model, biased, exclude=exclude, input_shape=input_shape)
    mapped = _map(prepared, proto)
    rangeless = _rangeless(mapped, spans)
    if rangeless:
        prepared = with_biases(model, biased, rangeless=rangeless, exclude=exclude, input_shape=input_shape)
        mapped = _map(prepared, proto)
    inside = _activated_inside(prepared)
    if inside:
        _log.warning("%s: %s", ", ".join(inside), _INSIDE)
    begun = _begin_ranges(mapped, spans)
    if not begun and (spans or not isinstance(table, QuantizedModel)):
        raise CalibrationError("the table has a range for no tensor of this model; it was made of another one")
    if isinstance(table, QuantizedModel):
        _begin_weights(mapped, file)
    return prepared


def _kept_float(whole: QuantizedModel, source: onnx.ModelProto) -> frozenset[str]:
    """The nodes of ``source`` that the file leaves as they are; raises for a file of another model or scheme."""
    if whole.plan.scheme != _SCHEME:
        raise CalibrationError(f"the model was quantized by scheme {whole.plan.scheme}; training begins with {_SCHEME}")
    whole.require_made_of(source_sha256(source))
    return frozenset(json.loads(metadata_of(whole.model)["wia.recipe"])["exclusions"])


class _PlainWalk(Walk):
    """The float model inside one that is to train, and where in it fake quantizers and layers with weights are."""

    def __init__(self, found: Any) -> None:
        super().__init__(found)
        #: Layer, which of its places, tensor.
        self.quantizers: list[tuple[Keras, int, str]] = []
        #: Node -> its step, and the tensor before the flattening of its input.
        self.steps: dict[str, tuple[Step, Any]] = {}

    def step(self, step: Step) -> None:
        x = self.tensors.get(id(step.inputs[0])) if step.inputs else None
        if step.key == FAKE_QUANTIZE:
            assert x is not None
            lying = x
            while lying.unflattened is not None:
                lying = lying.unflattened
            if step.qparams is not None:  # it is not asked for its scale only
                self.quantizers.append((step.layer, int(step.kwargs.get("site", 0)), lying.name))
            self.tensors.update({id(v): x for v in step.outputs})
            return
        n = len(self.b.nodes)
        super().step(replace(step, grids={}))
        made = [node for node in self.b.nodes[n:] if node.op_type in PRODUCTS]
        self.steps.update((node.name, (step, x and x.unflattened)) for node in made)


def _without_place(walk: _PlainWalk, file: Mapping[str, Integers]) -> frozenset[str]:
    """The layers of a float model whose product has a bias in the file, and which have no place for it."""
    found: set[str] = set()
    met: set[int] = set()
    for name, (step, _) in walk.steps.items():
        depthwise = step.key.startswith("SeparableConv") and id(step) not in met  # the first of its two products
        met.add(id(step))
        if step.key not in FOLDS_BATCH_NORM or name not in file or file[name].bias is None:
            continue
        if depthwise:
            found.add(f"{step.name}/depthwise")
        elif step.layer.bias is None and step.batch_norm is None:
            found.add(step.name)
    return frozenset(found)


@dataclass(frozen=True)
class _Mapped:
    """What in a prepared model is what in the folded float one.

    Attributes:
        quantizers: layer, which of its places, the tensor there; "" where folding left none.
        products: the step of a layer with a weight, the tensor before the flattening of its input, the node; "" where
            more than the layer and its BatchNorm has gone into the node's weight and bias.
    """

    quantizers: list[tuple[Keras, int, str]]
    products: list[tuple[Step, Any, str]]


def _map(prepared: Keras, proto: onnx.ModelProto) -> _Mapped:
    """Lays the two upon each other by what leads to each tensor, as names are not the same."""
    for layer in _quantizers(prepared):
        _set(layer, 0, Range(-1.0, 1.0))  # any, so that the walk finds a grid
    walk = _PlainWalk(trace(prepared, is_known))
    plain = walk.run()
    folded = prepare(plain, opset=_OPSET).model.to_proto()
    known = {name: kept for name, kept in walk.steps.items() if kept[0].key in WEIGHTS}
    there = {at: name for name, at in places(proto).items()}
    same = {name: there.get(at, "") for name, at in places(folded).items()}
    makers = {name: node for node in proto.graph.node for name in node.output}
    emitted = {node.name: _parameters(plain, node) for node in plain.graph.node if node.name in known}
    products = []
    for node in folded.graph.node:
        if node.name in emitted and node.op_type in PRODUCTS:
            maker = makers.get(same[node.output[0]]) if emitted[node.name] == _parameters(folded, node) else None
            products.append((*known[node.name], "" if maker is None else maker.name))
    quantizers = [(layer, site, same.get(walk.renamed.get(name, name), "")) for layer, site, name in walk.quantizers]
    return _Mapped(quantizers, products)


def _parameters(proto: onnx.ModelProto, node: onnx.NodeProto) -> list[bytes]:
    """The values of the constants that a node reads."""
    constants = {t.name: t for t in proto.graph.initializer}
    return [onnx.numpy_helper.to_array(constants[n]).tobytes() for n in node.input if n in constants]


def _quantizers(prepared: Keras) -> list[Keras]:
    """The layers that put a tensor on a grid."""
    layers = prepared._flatten_layers() if hasattr(prepared, "_flatten_layers") else prepared.layers
    return [layer for layer in layers if type(layer).__name__ in UNWRAP and _ends(layer) is not None]


def _activated_inside(prepared: Keras) -> list[str]:
    """The layers of a tf_keras model that compute a table of levels from reals."""
    if framework_of(prepared) != "tf_keras":
        return []
    wrapped = [layer.layer for layer in prepared._flatten_layers() if hasattr(layer, "_weight_vars")]
    own = {layer.name: activation_of(layer) for layer in wrapped}
    return [name for name, a in own.items() if a is not None and ROLES.get(function_name(a)) is Role.TABLE]


def _ends(layer: Keras) -> tuple[Any, Any] | None:
    """The variables that hold the range of a fake quantizer of either Keras; None for a wrapper that has none."""
    if type(layer).__name__ == "FakeQuantize":
        return layer.lo, layer.hi
    held = getattr(layer, "quantizer_vars", None) or getattr(layer, "_output_quantizer_vars", None)
    return None if held is None else (held["min_var"], held["max_var"])


def _set(layer: Keras, site: int, span: Range | None) -> None:
    """Gives a fake quantizer a range, or takes it away: it then has seen nothing."""
    variables = [*(_ends(layer) or ()), *([layer.seen] if type(layer).__name__ == "FakeQuantize" else [])]
    values = (0.0, 0.0, 0.0) if span is None else (*_in_float32(span), 1.0)
    for variable, value in zip(variables, values, strict=False):
        before = np.atleast_1d(array(variable)).astype(np.float32)
        before[site] = value
        variable.assign(before.reshape(variable.shape))


def _in_float32(span: Range) -> tuple[float, float]:
    """The float32 numbers nearest to the ends of a range that give its very grid, where there are such."""
    wanted = place(span, INT8)
    near = sorted(itertools.product(range(-_NEAR, _NEAR + 1), repeat=2), key=lambda steps: sum(map(abs, steps)))
    ends = [np.float32(span.lo), np.float32(span.hi)]
    for steps in near:
        lo, hi = (float(end + np.float32(n) * np.spacing(end)) for end, n in zip(ends, steps, strict=True))
        if lo <= 0.0 <= hi and place(Range(lo, hi), INT8) == wanted:
            return lo, hi
    return float(ends[0]), float(ends[1])


#: Units in the last place that an end is moved at most.
_NEAR: Final = 4


def _rangeless(mapped: _Mapped, spans: Mapping[str, Range]) -> frozenset[str]:
    """The tensors of our quantizers for which there is no range: the file has them in float."""
    known = {id(layer) for layer, _, name in mapped.quantizers if name in spans}
    return frozenset(getattr(layer, "tensor", "") for layer, *_ in mapped.quantizers if id(layer) not in known) - {""}


def _begin_ranges(mapped: _Mapped, spans: Mapping[str, Range]) -> int:
    """How many tensors begin with a range."""
    for layer, site, _ in mapped.quantizers:
        _set(layer, site, None)
    without = []
    for layer, site, name in mapped.quantizers:
        if name in spans:
            _set(layer, site, spans[name])
        else:
            without.append(str(layer.name))
    if without:
        _log.warning("%s: no range is known, the first batch gives it", ", ".join(without))
    return len(mapped.quantizers) - len(without)


def _begin_weights(mapped: _Mapped, file: Mapping[str, Integers]) -> None:
    said: dict[str, list[str]] = {}
    done: set[int] = set()
    order = {name: n for n, name in enumerate(file)}
    for step, unflattened, name in sorted(mapped.products, key=lambda product: order.get(product[2], -1)):
        layer = step.layer.real if isinstance(step.layer, Substituted) else step.layer
        if not name:
            said.setdefault(_JOINED, []).append(step.name)
        elif name not in file:
            said.setdefault(_FLOAT, []).append(step.name)
        elif id(layer) in done:
            said.setdefault(_SHARED, []).append(name)
        else:
            if begin_weight(step, file[name], unflattened):
                said.setdefault(_RAISED, []).append(step.name)
            bias = file[name].bias
            if bias is not None and not begin_bias(step, bias):
                said.setdefault(_UNCORRECTED, []).append(step.name)
        done.add(id(layer))
    for what, names in said.items():
        _log.log(logging.INFO if what is _RAISED else logging.WARNING, "%s: %s", ", ".join(names), what)


_INSIDE: Final = (
    "trains with no quantizer before the activation inside the layer, where the file of wia_quant.quantize has one, and"
    " so does not begin as that file; make the activation a layer of its own (Activation behind it), or use Keras 3"
)
_JOINED: Final = "more than the layer is in the weights of the file; these begin as they are"
_FLOAT: Final = "float in the file, though trained as integers; exclude it, or its weights begin as they are"
_SHARED: Final = "a further call of a layer, which begins with the weights that the file has for its first"
_RAISED: Final = "the largest weight of a channel is not at level 127 in the file; it is put back there"
_UNCORRECTED: Final = "the file has a bias, the layer none to take it"
