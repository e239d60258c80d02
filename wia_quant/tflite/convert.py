# SPDX-License-Identifier: Apache-2.0
"""An int8 TFLite model -> a .wia.onnx: the same integers on the same grids, nothing chosen anew.

The inputs and outputs of the result are float32: the reals that the integers of an int8 input stand for, on whose
levels they are put first.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import helper

from wia_quant.builder import Array, Builder, Tensor
from wia_quant.errors import ExportError, ModelError, UnsupportedError
from wia_quant.exporters.base import verify
from wia_quant.recipe import metadata, to_json
from wia_quant.targets.target import DEFAULT
from wia_quant.tflite.operators import MOVERS, OPERATORS
from wia_quant.tflite.reader import Grid, Op, TensorInfo, TfliteModel, read_model

_INTEGERS: Final = ("int8", "uint8")

#: What operators raise that read the options and shapes of a broken file.
_CONTRADICTIONS: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def to_onnx(source: str | Path | bytes) -> onnx.ModelProto:
    """The model of a .tflite file in the wia-quantized ONNX format.

    Raises:
        ModelError: the file cannot be read.
        UnsupportedError: operators or types that are not read; all of them are named.
        ExportError: a float model: export it from its framework, and calibrate it.
    """
    model = read_model(source)
    if not any(t.dtype in _INTEGERS and t.grid is not None and t.data is None for t in model.tensors):
        raise ExportError(_not_int8(model))
    counts = Counter(op.kind for op in model.ops if op.kind not in OPERATORS)
    if counts:
        listed = ", ".join(f"{kind} ({n})" for kind, n in sorted(counts.items()))
        raise UnsupportedError(f"operators of TFLite that are not read: {listed}")
    return _Converter(model).run()


def _not_int8(model: TfliteModel) -> str:
    """Why a model has nothing to take over."""
    if any(t.dtype == "int16" and t.grid is not None and t.data is None for t in model.tensors):
        return "the activations of the .tflite model are int16, not int8; convert it again with TFLITE_BUILTINS_INT8"
    weights = any(t.dtype in _INTEGERS and t.grid is not None for t in model.tensors)
    kind = "its weights alone are int8 (dynamic range)" if weights else "it is a float model"
    return (
        f"no activation of the .tflite model is int8, {kind}; convert it again with a representative dataset, or export"
        " and calibrate the float model of its framework"
    )


@contextmanager
def _contradictions(where: str) -> Iterator[None]:
    """Around what reads the options and shapes of one part of the file: nothing in the format says that they agree."""
    try:
        yield
    except _CONTRADICTIONS as error:
        raise ModelError(f"{where}: its options and tensors contradict each other: {error}") from error


class _Converter:
    def __init__(self, model: TfliteModel) -> None:
        self.model = model
        self.b = Builder()
        self.tensors: dict[int, Tensor] = {}
        self.named: dict[str, str] = {}

    def run(self) -> onnx.ModelProto:
        inputs = []
        for i in self.model.inputs:
            with _contradictions(f"input '{self.info(i).name}'"):
                inputs.append(self._input(i))
        for op in self.model.ops:
            with _contradictions(f"{op.kind} '{op.name}'"):
                self._op(op)
        last = len(self.model.outputs) - len(self.model.states)
        names = [self.info(i).name for i in self.model.outputs[:last]]
        names += [f"{name}/next" for name in self.model.states]
        outputs = []
        for i, name in zip(self.model.outputs, names, strict=True):
            with _contradictions(f"output '{name}'"):
                outputs.append(self._output(i, name))
        proto = self.b.model(inputs, outputs, "wia-quant from TFLite")
        digest = hashlib.sha256(self.model.content).hexdigest()
        grids = {t.name: [s.item().hex() for s in t.grid.scale] for t in self.model.tensors if t.grid is not None}
        own = metadata(
            source_sha256=digest,
            target=DEFAULT,
            recipe={"calibrator": "tflite", "operators": dict(Counter(op.kind for op in self.model.ops))},
            calibration={"data": {"kind": "tflite"}},
            tensors_sha256=hashlib.sha256(to_json(grids).encode()).hexdigest(),
        )
        for key, value in own.items():
            proto.metadata_props.add(key=key, value=value)
        verify(proto)
        return proto

    # -- the ends ----------------------------------------------------------------------------------------------

    def _input(self, index: int) -> onnx.ValueInfoProto:
        info = self.model.tensors[index]
        if info.dtype not in ("float32", *_INTEGERS):
            raise UnsupportedError(f"input '{info.name}' has type {info.dtype}, which is not read")
        name = self.b.fresh(info.name)
        self.named[name] = name
        self.b.where = name
        self.tensors[index] = self._on_grid(info, Tensor(name, info.shape))
        return _value_info(name, info)

    def _output(self, index: int, wanted: str) -> onnx.ValueInfoProto:
        info = self.model.tensors[index]
        self.b.where = info.name
        if index not in self.tensors:
            raise ModelError(f"output '{info.name}' is computed by no operator")
        tensor = self.b.logical(self.tensors[index])
        name = self.b.fresh(wanted)
        if tensor.name in self.named:
            node = helper.make_node("Identity", [self.named[tensor.name]], [name], self.b.fresh(f"{name}/Identity"))
            self.b.nodes.append(node)
        else:
            self.b.rename(tensor.name, name)
            self.named[tensor.name] = name
        return _value_info(name, info)

    # -- operators ---------------------------------------------------------------------------------------------

    def _op(self, op: Op) -> None:
        self.b.where = op.name
        result = OPERATORS[op.kind](self, op)
        if result is None:
            return
        results = [result] if isinstance(result, Tensor) else result
        if len(op.outputs) != len(results):
            raise UnsupportedError(f"{op.kind} '{op.name}' has {len(op.outputs)} outputs, which is not read")
        for index, made in zip(op.outputs, results, strict=True):
            moved = op.kind in MOVERS and self._same_grid(op, index)
            self.tensors[index] = made if moved else self._on_grid(self.info(index), made)

    def _same_grid(self, op: Op, output: int) -> bool:
        source = op.inputs[1 if op.kind == "SPLIT" else 0]
        before, after = self.info(source).grid, self.info(output).grid
        if before is None or after is None:
            return True
        return bool(before.scale[0] == after.scale[0] and before.zero_point[0] == after.zero_point[0])

    def _on_grid(self, info: TensorInfo, x: Tensor) -> Tensor:
        if info.dtype not in _INTEGERS:
            return x
        if info.grid is None or info.grid.scale.size != 1:
            raise UnsupportedError(f"tensor '{info.name}' is {info.dtype} without one scale")
        if not info.grid.scale[0] > 0:
            raise ModelError(f"tensor '{info.name}' has the scale {info.grid.scale[0]}, which is not positive")
        scale = self.b.floats(info.grid.scale[0], "scale")
        zero_point = self.b.constant(np.array(info.grid.zero_point[0], info.dtype), "zero_point")

        def make(y: Tensor) -> str:
            q = self.b.node("QuantizeLinear", [y.name, scale, zero_point])
            return self.b.node("DequantizeLinear", [q, scale, zero_point])

        return self.b.elementwise(x, make)

    # -- what operators ask for: the protocol Graph -------------------------------------------------------------

    def info(self, index: int) -> TensorInfo:
        return self.model.tensors[index]

    def x(self, op: Op, place: int) -> Tensor:
        index = op.inputs[place]
        info = self.info(index)
        if index not in self.tensors:
            if info.data is None:
                raise UnsupportedError(f"{op.kind} '{op.name}': input '{info.name}' is computed by what is not read")
            self.tensors[index] = Tensor(self._reals(info), tuple(info.data.shape))
        return self.tensors[index]

    def _reals(self, info: TensorInfo) -> str:
        """A constant operand."""
        assert info.data is not None
        if info.dtype == "float32":
            return self.b.floats(info.data, "constant")
        if info.grid is None or info.grid.scale.size != 1 or info.dtype not in _INTEGERS:
            raise UnsupportedError(f"constant '{info.name}' is {info.dtype} without one scale")
        zero_point = np.array(info.grid.zero_point[0], info.dtype)
        stored = self.b.constant(info.data, "constant")
        inputs = [stored, self.b.floats(info.grid.scale[0], "scale"), self.b.constant(zero_point, "zero_point")]
        return self.b.node("DequantizeLinear", inputs)

    def constant(self, op: Op, place: int) -> Array:
        info = self.info(op.inputs[place])
        if info.data is None:
            raise UnsupportedError(f"{op.kind} '{op.name}': input '{info.name}' is not constant, which is not read")
        return info.data

    def weight(self, op: Op, place: int, turn: Callable[[Array], Array], axis: int) -> str:
        info, w = self.info(op.inputs[place]), turn(self.constant(op, place))
        grid = self._grid(op, info)
        if info.dtype != "int8" or grid.zero_point.any():
            raise UnsupportedError(
                f"{op.kind} '{op.name}': weight '{info.name}' is {info.dtype} with a zero point; only symmetric int8"
                " weights are of the format: convert the model again with int8 quantization"
            )
        n = w.shape[axis]
        scale = self.b.floats(np.broadcast_to(grid.scale, (n,)), "weight/scale")
        inputs = [self.b.constant(w, "weight"), scale, self.b.constant(np.zeros(n, np.int8), "weight/zero_point")]
        return self.b.node("DequantizeLinear", inputs, axis=axis)

    def bias(self, op: Op, place: int) -> str | None:
        if place >= len(op.inputs) or op.inputs[place] < 0:
            return None
        info, levels = self.info(op.inputs[place]), self.constant(op, place)
        if info.dtype != "int32":
            raise UnsupportedError(f"{op.kind} '{op.name}': bias '{info.name}' is {info.dtype}; only int32 is read")
        scale = (
            self._data(op).scale.astype(np.float64) * self._grid(op, self.info(op.inputs[1])).scale.astype(np.float64)
        ).astype(np.float32)
        names = [
            self.b.constant(levels.reshape(-1), "bias"),
            self.b.floats(np.broadcast_to(scale, levels.size), "bias/scale"),
        ]
        return self.b.node("DequantizeLinear", names, axis=0)

    def _data(self, op: Op) -> Grid:
        return self._grid(op, self.info(op.inputs[2 if op.kind == "TRANSPOSE_CONV" else 0]))

    def _grid(self, op: Op, info: TensorInfo) -> Grid:
        if info.grid is None:
            raise UnsupportedError(
                f"{op.kind} '{op.name}': '{info.name}' is not quantized, its product is not all int8"
            )
        return info.grid


def _value_info(name: str, info: TensorInfo) -> onnx.ValueInfoProto:
    axes = ["batch" if d is None else d for d in info.shape]
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, axes)
