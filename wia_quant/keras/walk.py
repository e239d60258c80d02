# SPDX-License-Identifier: Apache-2.0
"""A Keras model -> a float ONNX model that computes the same; with the grids of training where it was trained on some.

One walk for tf_keras and Keras 3: no tracing of TensorFlow graphs, so the file has the layers' names and no node that
is not in the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from wia_quant.builder import ELEMENT_TYPES, Builder, Tensor, channels_first
from wia_quant.errors import ExportError
from wia_quant.keras.emit.operations import operation
from wia_quant.keras.emit.table import LAYERS, OPERATION, key_of
from wia_quant.keras.steps import FAKE_QUANTIZE, Step, fold_batch_norms, split, with_tensors
from wia_quant.keras.trace import Keras, Trace, Value, framework_of, trace
from wia_quant.keras.wrappers import UNWRAP

#: The batch axis of every input and output.
BATCH = "batch"


def to_onnx(model: Keras, *, input_shape: Any = None, channels_first_io: bool = False) -> onnx.ModelProto:
    """The float ONNX form of ``model``; QuantizeLinear and DequantizeLinear where it was trained with them.

    Args:
        model: of tf_keras or Keras 3; not changed.
        input_shape: of a subclassed model that has not been called: without the batch; a list for several inputs.
        channels_first_io: inputs and outputs of three axes and more have their channels on axis 1, as in torch;
            otherwise they are as the Keras model has them.

    Raises:
        ExportError: a layer that has no ONNX form here; names it.
    """
    found = trace(model, is_known, input_shape)
    return Walk(found, channels_first_io).run()


def is_known(layer: Keras) -> bool:
    """Whether the tables have this layer, or the wrapper that it is."""
    return type(layer).__name__ in UNWRAP or key_of(layer) is not None


class Walk:
    """One emission of a trace.

    Attributes:
        b: the graph.
        tensors: ``id`` of a Value -> what stands for it.
        renamed: tensor -> the name that it has since it became an output of the model.
    """

    def __init__(self, found: Trace, channels_first_io: bool = False) -> None:
        self.trace = found
        self.first = channels_first_io
        self.b = Builder()
        self.tensors: dict[int, Tensor] = {}
        self.renamed: dict[str, str] = {}
        #: Tensors whose name is that of an input or output of the model.
        self.named: dict[str, str] = {}

    def run(self) -> onnx.ModelProto:
        """The whole model."""
        steps = fold_batch_norms(split(self.trace, key_of, UNWRAP), self.trace.outputs)
        inputs = [self._input(value) for value in self.trace.inputs]
        for step in steps:
            self.step(step)
        outputs = [self._output(v, n) for v, n in zip(self.trace.outputs, self.trace.output_names, strict=True)]
        proto = self.b.model(inputs, outputs, f"wia-quant from {framework_of(self.trace.graph)}")
        onnx.checker.check_model(proto)
        return proto

    def _input(self, value: Value) -> onnx.ValueInfoProto:
        if value.dtype not in ELEMENT_TYPES:
            raise ExportError(f"input '{value.name}' has type {value.dtype}, which ONNX models here do not take")
        order = channels_first(len(value.shape)) if self.first else None
        name = self.b.fresh(value.name)
        self.named[name] = name
        self.tensors[id(value)] = Tensor(name, value.shape, order, value.dtype)
        return self._info(name, value, order)

    def _info(self, name: str, value: Value, order: tuple[int, ...] | None) -> onnx.ValueInfoProto:
        axes = order or tuple(range(len(value.shape)))
        named = [BATCH if a == 0 else value.shape[a] or f"{name}_{a}" for a in axes]
        return helper.make_tensor_value_info(name, ELEMENT_TYPES[value.dtype], named)

    def step(self, step: Step) -> None:
        """Emits one step and keeps what stands for its outputs."""
        self.b.where = step.name
        args = with_tensors(step.args, self.tensors)
        kwargs = with_tensors(dict(step.kwargs), self.tensors)
        if step.key == FAKE_QUANTIZE:
            # A fake quantizer of Keras 3 also returns its scale, which only products in training read.
            result: Tensor | list[Tensor] = [fake_quantize(self.b, step, args[0])] * len(step.outputs)
        elif step.key.startswith(OPERATION):
            result = operation(step.key.removeprefix(OPERATION))(self.b, step, args, kwargs)
        else:
            result = LAYERS[step.key](self.b, step, _first(args, kwargs))
        results = result if isinstance(result, list) else [result]
        self.tensors.update({id(v): t for v, t in zip(step.outputs, results, strict=True)})

    def _output(self, value: Value, name: str) -> onnx.ValueInfoProto:
        self.b.where = name
        tensor = self.tensors[id(value)]
        order = channels_first(len(value.shape)) if self.first else None
        tensor = self.b.arranged(tensor, order)
        unique = self.b.fresh(name)
        if tensor.name in self.named:
            source = self.named[tensor.name]
            self.b.nodes.append(helper.make_node("Identity", [source], [unique], self.b.fresh(f"{name}/Identity")))
        else:
            self.b.rename(tensor.name, unique)
            self.renamed[tensor.name] = unique
            self.named[tensor.name] = unique
        return self._info(unique, value, order)


def _first(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    return args[0] if args else next(iter(kwargs.values()))


def fake_quantize(b: Builder, step: Step, x: Tensor) -> Tensor:
    """Q and DQ of a tensor, on the grid that training chose."""
    if step.qparams is None:
        return x
    scale, zero_point = (
        b.constant(np.asarray(v), n)
        for v, n in ((step.qparams.scale, "scale"), (step.qparams.zero_point, "zero_point"))
    )

    def make(y: Tensor) -> str:
        return b.node("DequantizeLinear", [b.node("QuantizeLinear", [y.name, scale, zero_point]), scale, zero_point])

    return b.elementwise(x, make)
