# SPDX-License-Identifier: Apache-2.0
"""A .tflite file as plain data: tensors with their grids, operators with their options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.errors import MissingExtraError, ModelError, UnsupportedError

#: Bytes 4 to 8 of every file.
_IDENTIFIER: Final = b"TFL3"

_TYPES: Final = {
    0: "float32",
    1: "float16",
    2: "int32",
    3: "uint8",
    4: "int64",
    6: "bool",
    7: "int16",
    9: "int8",
    13: "resource",
}


@dataclass(frozen=True)
class Grid:
    """Where the levels of a tensor lie: scale float32 and zero point int64, [n]; n > 1 along ``axis``."""

    scale: npt.NDArray[np.float32]
    zero_point: npt.NDArray[np.int64]
    axis: int


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the model.

    Attributes:
        name: as in the file.
        shape: axis 0 is None where the batch is open.
        dtype: numpy's name.
        grid: None of what is not quantized.
        data: of a constant.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    grid: Grid | None
    data: npt.NDArray[Any] | None


@dataclass(frozen=True)
class Op:
    """One operator.

    Attributes:
        kind: TFLite's name: "CONV_2D".
        name: of its first output; for messages and nodes.
        options: the options object of the schema; None where it has none.
        inputs: indices of tensors, -1 for none.
        outputs: indices of tensors.
    """

    kind: str
    name: str
    options: Any  # Any: an object of the generated schema
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class TfliteModel:
    """The main graph of a file.

    Attributes:
        states: names of the variables that a streaming model keeps between runs; as many of the last inputs and
            outputs are these, before and after a run, zeros before the first one.
    """

    tensors: tuple[TensorInfo, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    content: bytes
    states: tuple[str, ...] = ()


def read_model(source: str | Path | bytes) -> TfliteModel:
    """Reads a .tflite file, or its bytes.

    Raises:
        ModelError: not such a file, or a broken one.
        UnsupportedError: control flow, variables used otherwise, or a tensor of a type that no device has.
        MissingExtraError: the schema is not installed.
    """
    try:
        from ai_edge_litert import schema_py_generated as schema
    except ImportError as error:
        raise MissingExtraError("LiteRT is not installed; install it with: pip install 'wia-quant[tflite]'") from error
    label = "the .tflite bytes" if isinstance(source, bytes) else str(source)
    try:
        content = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise ModelError(f"{label} cannot be read: {error.strerror}") from error
    if content[4:8] != _IDENTIFIER:
        raise ModelError(f"{label} is no .tflite file")
    try:
        model = schema.ModelT.InitFromPackedBuf(content, 0)
        return _model(schema, model, content)
    except (UnsupportedError, ModelError):
        raise
    except Exception as error:  # flatbuffers checks nothing: struct.error, IndexError, TypeError, MemoryError ...
        raise ModelError(f"{label} is broken or cut off: {error}") from error


def _model(schema: Any, model: Any, content: bytes) -> TfliteModel:
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    codes = [names.get(max(int(c.builtinCode), int(c.deprecatedBuiltinCode)), "?") for c in model.operatorCodes]
    graphs = [_graph(graph, codes, model.buffers, content) for graph in model.subgraphs]
    starts = {int(op.options.initSubgraphIndex) for op in graphs[0].ops if op.kind == "CALL_ONCE"}
    if starts != set(range(1, len(graphs))):
        raise UnsupportedError(f"the model has {len(graphs)} graphs; only one without control flow is read")
    return _with_states(graphs[0], [graphs[i] for i in starts])


def _with_states(main: TfliteModel, starts: list[TfliteModel]) -> TfliteModel:
    """The variables of a streaming model as inputs and outputs, in the order of their names."""
    zero = {name for start in starts for name, t in _assigned(start).items() if _is_zero(start.tensors[t])}
    read = _accesses(main, "READ_VARIABLE", lambda op: op.outputs[0])
    assigned = _assigned(main)
    if not read and not assigned:
        return main
    for name in sorted({*read, *assigned}):
        if name not in read or name not in assigned or name not in zero:
            raise UnsupportedError(f"variable '{name}' is not one that starts with zeros, is read and is then assigned")
    tensors = list(main.tensors)
    for name, i in read.items():
        tensors[i] = replace(tensors[i], name=name)
    names = sorted(read)
    inputs, outputs = (main.inputs + tuple(read[n] for n in names), main.outputs + tuple(assigned[n] for n in names))
    ops = tuple(op for op in main.ops if op.kind not in _STATE_OPERATORS)
    return replace(main, tensors=tuple(tensors), ops=ops, inputs=inputs, outputs=outputs, states=tuple(names))


_STATE_OPERATORS: Final = ("CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE")


def _accesses(model: TfliteModel, kind: str, of: Callable[[Op], int]) -> dict[str, int]:
    """Name of a variable -> the tensor that is read from it, or assigned to it."""
    handles = {op.outputs[0]: bytes(op.options.sharedName or b"") for op in model.ops if op.kind == "VAR_HANDLE"}
    found: dict[str, int] = {}
    for op in model.ops:
        if op.kind == kind:
            name = handles[op.inputs[0]].decode("utf-8", "replace")
            if name in found:
                raise UnsupportedError(f"variable '{name}' is read or assigned twice, which is not read")
            found[name] = of(op)
    return found


def _assigned(model: TfliteModel) -> dict[str, int]:
    return _accesses(model, "ASSIGN_VARIABLE", lambda op: op.inputs[1])


def _is_zero(info: TensorInfo) -> bool:
    """Whether a constant stands for zeros."""
    return info.data is not None and bool(np.all(info.data == (0 if info.grid is None else info.grid.zero_point[0])))


def _graph(graph: Any, codes: list[str], buffers: Any, content: bytes) -> TfliteModel:
    tensors = tuple(_tensor(t, buffers) for t in graph.tensors)
    ops = []
    for op in graph.operators:
        inputs = tuple(int(i) for i in _list(op.inputs))
        outputs = tuple(int(i) for i in _list(op.outputs))
        if not all(0 <= i < len(tensors) for i in outputs) or not all(
            -1 <= i < len(tensors) for i in inputs
        ):  # fmt: skip
            raise ModelError(f"operator {codes[op.opcodeIndex]} names a tensor that is not there")
        name = tensors[outputs[0]].name if outputs else ""
        ops.append(Op(codes[op.opcodeIndex], name, op.builtinOptions, inputs, outputs))
    ends = [tuple(int(i) for i in _list(v)) for v in (graph.inputs, graph.outputs)]
    if not all(0 <= i < len(tensors) for end in ends for i in end):
        raise ModelError("the graph names an input or output that is not there")
    return TfliteModel(tensors, tuple(ops), ends[0], ends[1], content)


def _list(value: Any) -> list[Any]:
    return [] if value is None else list(value)


def _tensor(tensor: Any, buffers: Any) -> TensorInfo:
    name = (tensor.name or b"").decode("utf-8", "replace")
    if tensor.type not in _TYPES:
        raise UnsupportedError(f"tensor '{name}' has type {tensor.type} of TFLite, which is not read")
    dtype = _TYPES[tensor.type]
    shape = [int(d) for d in _list(tensor.shape)]
    signature = [int(d) for d in _list(tensor.shapeSignature)]
    if tensor.sparsity is not None:
        raise UnsupportedError(f"constant '{name}' is stored sparse, which is not read")
    raw = buffers[tensor.buffer].data
    data = None
    if raw is not None and len(raw):
        data = np.frombuffer(bytes(bytearray(raw)), np.dtype(dtype)).reshape(shape)
    open_batch = bool(signature) and signature[0] == -1
    found: tuple[int | None, ...] = (None, *shape[1:]) if open_batch else tuple(shape)
    if any(d < 0 for d in shape):
        raise ModelError(f"tensor '{name}' has the shape {shape}")
    return TensorInfo(name, found, dtype, _grid(name, tensor.quantization), data)


def _grid(name: str, quantization: Any) -> Grid | None:
    if quantization is None or quantization.scale is None or not len(quantization.scale):
        return None
    scale = np.asarray(quantization.scale, np.float32)
    if not np.isfinite(scale).all() or (scale < 0).any():
        raise ModelError(f"tensor '{name}' has a scale that is negative, infinite or NaN")
    zero_point = np.asarray(_list(quantization.zeroPoint) or [0] * len(scale), np.int64)
    return Grid(scale, np.broadcast_to(zero_point, scale.shape), int(quantization.quantizedDimension))
