# SPDX-License-Identifier: Apache-2.0
"""Models of one operator, cut out of a .tflite file or made, and what LiteRT and libwia make of their integers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.interpreter import Interpreter, OpResolverType

from wia_quant import Session
from wia_quant.tflite import read_model, to_onnx
from wia_quant.tflite.reader import Op, TensorInfo, TfliteModel

Array = npt.NDArray[Any]

#: The three sets of kernels: XNNPACK where it can, the optimized ones, the readable ones.
KERNELS = {
    "default": OpResolverType.AUTO,
    "optimized": OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    "reference": OpResolverType.BUILTIN_REF,
}

_TYPES = {"float32": 0, "int32": 2, "uint8": 3, "int8": 9, "resource": 13}


@dataclass(frozen=True)
class T:
    """A tensor of a model to be made: a constant if it has data; one scale, or many along ``axis``."""

    shape: tuple[int, ...]
    dtype: str = "int8"
    scale: Any = None
    zero_point: Any = 0
    data: Array | None = None
    axis: int = 0


def packed(model: Any) -> bytes:
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def make(
    kind: str,
    options: str | None,
    values: dict[str, Any],
    inputs: Sequence[T],
    output: T | Sequence[T],
    version: int = 2,
) -> bytes:
    """The .tflite file of one operator."""
    outputs = [output] if isinstance(output, T) else output
    model, graph, op = schema.ModelT(), schema.SubGraphT(), schema.OperatorT()
    code = schema.OperatorCodeT()
    code.builtinCode, code.version = getattr(schema.BuiltinOperator, kind), version
    code.deprecatedBuiltinCode = min(code.builtinCode, 127)
    model.version, model.operatorCodes, model.subgraphs, model.buffers = 3, [code], [graph], [schema.BufferT()]
    graph.tensors = [tensor(f"t{i}", t, model.buffers) for i, t in enumerate([*inputs, *outputs])]
    graph.inputs = [i for i, t in enumerate(inputs) if t.data is None]
    op.opcodeIndex, op.inputs, op.outputs = (
        0,
        list(range(len(inputs))),
        list(range(len(inputs), len(inputs) + len(outputs))),
    )
    graph.outputs, graph.operators = op.outputs, [op]
    if options is not None:
        op.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        op.builtinOptions = getattr(schema, f"{options}T")()
        for name, value in values.items():
            setattr(op.builtinOptions, name, value)
    return packed(model)


def tensor(name: str, t: T, buffers: list[Any]) -> Any:
    """A tensor of the schema; its data are put among ``buffers``."""
    made = schema.TensorT()
    made.name, made.shape, made.type, made.buffer = name, list(t.shape), _TYPES[t.dtype], 0
    if t.data is not None:
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(np.asarray(t.data, t.dtype).tobytes(), np.uint8)
        buffers.append(buffer)
        made.buffer = len(buffers) - 1
    if t.scale is not None:
        made.quantization = schema.QuantizationParametersT()
        made.quantization.scale = np.atleast_1d(np.asarray(t.scale, np.float32))
        zero_point = np.broadcast_to(np.asarray(t.zero_point, np.int64), made.quantization.scale.shape)
        made.quantization.zeroPoint = np.array(zero_point)
        made.quantization.quantizedDimension = t.axis
    return made


def run(content: bytes, inputs: Sequence[Array], kernels: str = "default") -> list[Array]:
    """What LiteRT makes of the inputs as they are stored: integers of an int8 model."""
    interpreter = Interpreter(
        model_content=content, num_threads=1, experimental_op_resolver_type=KERNELS[kernels]
    )  # fmt: skip
    details = interpreter.get_input_details()
    for detail, x in zip(details, inputs, strict=True):
        if tuple(detail["shape"]) != x.shape:
            interpreter.resize_tensor_input(detail["index"], x.shape)
    interpreter.allocate_tensors()
    for detail, x in zip(details, inputs, strict=True):
        interpreter.set_tensor(detail["index"], x)
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


def reals(info: TensorInfo, x: Array) -> Array:
    """What the integers of a tensor stand for."""
    if info.grid is None:
        return x
    return (x.astype(np.int32) - info.grid.zero_point[0]).astype(np.float32) * info.grid.scale[0]


def levels(info: TensorInfo, x: Array) -> Array:
    """The integers that stand for these reals."""
    if info.grid is None:
        return x
    return (np.rint(x.astype(np.float64) / np.float64(info.grid.scale[0])) + info.grid.zero_point[0]).astype(info.dtype)


def in_libwia(content: bytes, inputs: Sequence[Array]) -> list[Array]:
    """What libwia makes of the same integers, as integers."""
    model, proto = read_model(content), to_onnx(content)
    given = {
        end.name: reals(model.tensors[i], x) for end, i, x in zip(proto.graph.input, model.inputs, inputs, strict=True)
    }
    made = Session(proto.SerializeToString()).run(None, given)
    return [levels(model.tensors[i], y) for i, y in zip(model.outputs, made, strict=True)]


def run_stream(content: bytes, frames: Sequence[Array], kernels: str = "default") -> Array:
    """What LiteRT makes of one frame after another."""
    interpreter = Interpreter(model_content=content, num_threads=1, experimental_op_resolver_type=KERNELS[kernels])
    interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    found = []
    for frame in frames:
        interpreter.set_tensor(given["index"], frame)
        interpreter.invoke()
        found.append(interpreter.get_tensor(made["index"]))
    return np.concatenate(found)


def stream_in_libwia(content: bytes, frames: Sequence[Array]) -> Array:
    """The same frames, the states handed on."""
    model, proto = read_model(content), to_onnx(content)
    session, ends = Session(proto.SerializeToString()), (model.inputs[0], model.outputs[0])
    names = [i.name for i in proto.graph.input]
    shapes = [[int(d or 1) for d in model.tensors[i].shape] for i in model.inputs[1:]]
    states = [np.zeros(shape, np.float32) for shape in shapes]
    found = []
    for frame in frames:
        given = [reals(model.tensors[ends[0]], frame), *states]
        y, *states = session.run(None, dict(zip(names, given, strict=True)))
        found.append(levels(model.tensors[ends[1]], y))
    return np.concatenate(found)


@dataclass(frozen=True)
class Step:
    """One operator of a whole model and the integers that LiteRT gave it and made of it.

    Attributes:
        op: with the tensors' indices in ``model``.
        model: the whole one.
        content: of a model with this operator alone; shapes that it takes are constant.
        inputs: of that model.
        values: of every tensor so far.
        outputs: by LiteRT's default kernels.
    """

    op: Op
    model: TfliteModel
    content: bytes
    inputs: tuple[Array, ...]
    values: dict[int, Array]
    outputs: tuple[Array, ...]

    @property
    def output(self) -> Array:
        """The first."""
        return self.outputs[0]


def steps(content: bytes, inputs: Sequence[Array]) -> Iterator[Step]:
    """The operators of a model, each with what LiteRT's default kernels give it, in order."""
    source, model = schema.ModelT.InitFromPackedBuf(content, 0), read_model(content)
    values = dict(zip(model.inputs, inputs, strict=True))
    places = {tuple(op.outputs): k for k, op in enumerate(source.subgraphs[0].operators)}
    for op in model.ops:
        place = places[op.outputs]
        alone, given = _alone(source, place, {})
        made = run(alone, [values[i] for i in given])
        values.update(zip(op.outputs, made, strict=True))
        shapes = {i: values[i] for i in given if model.tensors[i].dtype in ("int32", "int64")}
        fixed, given = _alone(source, place, shapes)
        yield Step(op, model, fixed, tuple(values[i] for i in given), values, tuple(made))


def _alone(source: Any, place: int, constants: dict[int, Array]) -> tuple[bytes, list[int]]:
    """The model of one operator, and which tensors of the whole are its inputs."""
    whole = source.subgraphs[0]
    op = copy.copy(whole.operators[place])
    model, graph = schema.ModelT(), schema.SubGraphT()
    model.version, model.operatorCodes, model.subgraphs = 3, [source.operatorCodes[op.opcodeIndex]], [graph]
    model.buffers, graph.tensors, graph.inputs = [schema.BufferT()], [], []
    places: dict[int, int] = {}
    given = []
    outputs = [int(i) for i in op.outputs]
    for i in [int(i) for i in op.inputs] + outputs:
        if i < 0 or i in places:
            continue
        tensor = copy.copy(whole.tensors[i])
        buffer = copy.copy(source.buffers[tensor.buffer])
        if i in constants:
            buffer.data = np.frombuffer(constants[i].tobytes(), np.uint8)
        tensor.buffer, places[i] = 0, len(graph.tensors)
        if buffer.data is not None and len(buffer.data):
            model.buffers.append(buffer)
            tensor.buffer = len(model.buffers) - 1
        elif i not in outputs:
            graph.inputs.append(places[i])
            given.append(i)
        graph.tensors.append(tensor)
    op.opcodeIndex, op.inputs = 0, [places.get(int(i), -1) for i in op.inputs]
    op.outputs = graph.outputs = [places[i] for i in outputs]
    graph.operators = [op]
    return packed(model), given
