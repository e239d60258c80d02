# SPDX-License-Identifier: Apache-2.0
"""Run the float model and show every planned tensor to its calibrator.

A copy of the model gives the planned tensors as outputs, so that onnxruntime's optimizations fuse none of them
away. If the tensors together are large, the copy is cut into pieces that run one after the other, each tensor being
observed and let go before the next piece runs: memory stays near that of plain inference, and nothing is computed
twice.
"""

from __future__ import annotations

import ctypes
import functools
import math
import signal
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import ModelProto

from wia_quant.calibrators import Observer
from wia_quant.calibrators.base import State
from wia_quant.errors import CalibrationError, DataError, ModelError
from wia_quant.inputs import as_model_inputs
from wia_quant.instrument import (
    SIZE_PREFIX,
    Piece,
    cut,
    merged,
    piece_model,
    sizes_model,
)
from wia_quant.lift import lifted

Progress = Callable[[int, int | None, str], None]
Arrays = Mapping[str, npt.NDArray[Any]]

#: Bytes of observed tensors held at a time: within the last-level cache of most machines.
BUDGET: Final = 16 << 20

#: Larger weights go to onnxruntime in a file, which it maps, instead of being copied for every piece.
EXTERNAL_FROM: Final = 4 << 20

#: Element types that are observed, as onnxruntime calls them.
_FLOATS: Final = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
}

#: onnxruntime's messages below this severity are not shown: errors come as exceptions.
_ONLY_FATAL: Final = 4


class Observations(dict[str, Observer]):
    """{tensor name: what observed it}.

    Attributes:
        n_batches: batches shown.
        skipped: {tensor name: why it was not observed}.
    """

    def __init__(self) -> None:
        super().__init__()
        self.n_batches = 0
        self.skipped: dict[str, str] = {}

    def merge(self, other: Observations) -> None:
        """Take in what ``other`` observed of other batches; exact, so the order does not matter."""
        for name, observer in other.items():
            if name in self:
                self[name].merge(observer)
            else:
                self[name] = observer
        self.n_batches += other.n_batches
        self.skipped.update(other.skipped)

    def state(self) -> State:
        """All of it as JSON values."""
        return {
            "n_batches": self.n_batches,
            "skipped": dict(self.skipped),
            "observers": {name: observer.state() for name, observer in self.items()},
        }

    @classmethod
    def from_state(cls, state: State, kind: type[Observer]) -> Observations:
        """What ``state`` was taken of; all observers being of one ``kind``."""
        new = cls()
        new.n_batches = int(state["n_batches"])
        new.skipped = dict(state["skipped"])
        new.update((name, kind.from_state(one)) for name, one in state["observers"].items())
        return new


def observe(
    model: str | Path | bytes | ModelProto,
    tensors: Collection[str],
    batches: Iterable[Arrays],
    make: Callable[[], Observer],
    *,
    progress: Progress | None = None,
    n_batches: int | None = None,
    threads: int = 0,
    budget: int = BUDGET,
    into: Observations | None = None,
) -> Observations:
    """What the float model's ``tensors`` hold on the ``batches``.

    Args:
        model: it is not changed.
        tensors: names of tensors, inputs and outputs included; also of tensors within If, Loop and Scan, of which
            all branches and iterations are shown under the one name. One that is not of a floating type is left
            out, with the reason in ``skipped``.
        batches: {input name: array}, read one at a time.
        make: makes the calibrator of one tensor, as the constructors in CALIBRATORS do.
        progress: called as ``progress(batches done, total, "calibrating")``.
        n_batches: the total for ``progress``; by default ``batches.n_batches`` if there is one.
        threads: of onnxruntime; 0 lets it choose.
        budget: bytes of observed tensors held at a time; larger ones still come, alone.
        into: observations to go on with: its first ``n_batches`` batches are read and not run again.

    Raises:
        CalibrationError: a tensor that is not there, or that holds NaN or infinity (named, with the batch).
        ModelError: onnxruntime does not take the model.
        DataError: onnxruntime does not take a batch.

    A keyboard interrupt is raised between two batches, so ``into`` can be gone on with.
    """
    result = Observations() if into is None else into
    total = n_batches if n_batches is not None else getattr(batches, "n_batches", None)
    done = 0
    with Instrumented(model, tensors, threads=threads, budget=budget) as instrumented:
        for batch in batches:
            if done < result.n_batches:
                done += 1
                continue
            with interrupt_deferred():
                instrumented.show(batch, getattr(batch, "source", f"batch {done}"), make, result)
                done += 1
                result.n_batches = done
            if progress:
                progress(done, total, "calibrating")
    if done == 0:
        raise DataError("no batch of data: nothing was observed")
    return result


class Instrumented:
    """The model, ready to show chosen tensors; a context that ends with its temporary files."""

    def __init__(
        self,
        model: str | Path | bytes | ModelProto,
        tensors: Collection[str],
        *,
        threads: int = 0,
        budget: int = BUDGET,
    ) -> None:
        self._files = tempfile.TemporaryDirectory(prefix="wia-quant-")
        try:
            self._model, self._folder = _loaded(model, Path(self._files.name))
            self._model, self._names = lifted(self._model, tensors)
            self._required = [i.name for i in as_model_inputs(self._model)]
        except BaseException:
            self._files.cleanup()
            raise
        self._tensors = tuple(self._names)
        self._threads, self._budget = threads, budget
        self._pieces: list[tuple[Piece, ort.InferenceSession]] = []
        self._types: dict[str, str] = {}
        self.skipped: dict[str, str] = {}
        self._graph_inputs = {v.name: v for v in self._model.graph.input}

    def __enter__(self) -> Instrumented:
        return self

    def __exit__(self, *error: object) -> None:
        self._pieces.clear()
        self._files.cleanup()

    def show(self, batch: Arrays, where: str, make: Callable[[], Observer], into: Observations) -> None:
        """Show every tensor to its observer in ``into``, made if it is not there yet."""
        for name, value in self.run(batch, where):
            if name not in into:
                into[name] = make()
            try:
                into[name].observe(value)
            except CalibrationError as e:
                raise CalibrationError(
                    f"tensor {name!r} on {where}: {e}; mend the model or the data, or exclude the tensor"
                ) from e
        into.skipped.update(self.skipped)

    def run(self, batch: Arrays, where: str = "the batch") -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """(tensor name, value) of every tensor on the batch; a value is only good until the next is asked for."""
        if missing := [n for n in self._required if n not in batch]:
            raise DataError(f"{where}: no data for input {missing[0]!r}")
        feeds = {n: a for n, a in batch.items() if n in self._graph_inputs}
        values = {n: ort.OrtValue.ortvalue_from_numpy(np.require(a, requirements="C")) for n, a in feeds.items()}
        if not self._pieces:
            self._prepare(values, where)
        for name in self._tensors:
            if name in feeds:
                if np.issubdtype(feeds[name].dtype, np.floating):
                    yield name, feeds[name]
                else:
                    self.skipped[name] = f"it is {feeds[name].dtype}, not floating-point"
        for k, (piece, session) in enumerate(self._pieces):
            outputs = [o.name for o in session.get_outputs()]
            results = _run(session, outputs, {n: values[n] for n in piece.feeds if n in values}, where)
            values.update((n, v) for n, v in zip(outputs, results, strict=True) if n in piece.gives)
            shown = {n: v for n, v in zip(outputs, results, strict=True) if n in piece.shown}
            del results
            for name in piece.shown:
                if name in shown and self._names[name] not in self.skipped:
                    yield self._names[name], _view(shown[name], self._types[name])
                shown.pop(name, None)
            later = {n for p, _ in self._pieces[k + 1 :] for n in p.feeds}
            values = {n: v for n, v in values.items() if n in later}

    def _prepare(self, values: Mapping[str, ort.OrtValue], where: str) -> None:
        """Measure the tensors on a first batch, cut the model, make a session of each piece."""
        inner = [t for t in self._tensors if t not in self._graph_inputs]
        sizes = self._sizes(inner, values, where)
        pieces = cut(self._model, inner, sizes, self._budget)
        types = dict(self._graph_inputs)
        k = 0
        sessions: list[ort.InferenceSession] = []
        while k < len(pieces):
            piece = pieces[k]
            session = self._session(piece_model(self._model, piece, [types[n] for n in piece.feeds]))
            found = {o.name: o.type for o in session.get_outputs()}
            if any(found[n] not in _TENSOR_TYPES for n in piece.gives):
                # A sequence or an optional cannot be declared as an input: cut somewhere else.
                pieces = merged(self._model, inner, pieces, k)
                continue
            for name, kind in found.items():
                self._types[name] = kind
                if name in piece.gives:
                    types[name] = onnx.helper.make_tensor_value_info(name, _TENSOR_TYPES[kind], None)
                if name in piece.shown and kind not in _FLOATS:
                    self.skipped[self._names[name]] = (
                        f"it is {kind.removeprefix('tensor(').removesuffix(')')}, not floating-point"
                    )
            sessions.append(session)
            k += 1
        self._pieces = list(zip(pieces, sessions, strict=True))

    def _sizes(self, tensors: Collection[str], values: Mapping[str, ort.OrtValue], where: str) -> dict[str, int]:
        """Bytes of each tensor on the first batch, taken as float32."""
        if not tensors:
            return {}
        session = self._session(sizes_model(self._model, tensors))
        names = [o.name for o in session.get_outputs()]
        feeds = {i.name: values[i.name] for i in session.get_inputs() if i.name in values}
        counts = _run(session, names, feeds, where)
        return {n.removeprefix(SIZE_PREFIX): 4 * int(c.numpy()) for n, c in zip(names, counts, strict=True)}

    def _session(self, model: ModelProto) -> ort.InferenceSession:
        options = ort.SessionOptions()
        # Beyond, layouts change: copies of tensors in blocks of channels would double the memory above inference.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.intra_op_num_threads = self._threads
        options.log_severity_level = _ONLY_FATAL
        # Several sessions take turns: their idle threads must not spin, and they share what memory they keep.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        _register_shared_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(self._folder))
        options.enable_mem_pattern = False
        # Sizes are taken as soon as there is something to take them of.
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        try:
            return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except _ort_errors() as e:
            raise ModelError(f"onnxruntime does not take the model: {_one_line(e)}") from e


@contextmanager
def interrupt_deferred() -> Iterator[None]:
    """Within the block a keyboard interrupt is kept back; it is raised at its end.

    Only the main thread receives interrupts; elsewhere nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if received:
        signal.raise_signal(signal.SIGINT)


#: Element types a tensor between two pieces may have: as onnxruntime calls them -> TensorProto.DataType.
_TENSOR_TYPES: Final = {
    "tensor(float)": onnx.TensorProto.FLOAT,
    "tensor(float16)": onnx.TensorProto.FLOAT16,
    "tensor(bfloat16)": onnx.TensorProto.BFLOAT16,
    "tensor(double)": onnx.TensorProto.DOUBLE,
    "tensor(bool)": onnx.TensorProto.BOOL,
    "tensor(int8)": onnx.TensorProto.INT8,
    "tensor(int16)": onnx.TensorProto.INT16,
    "tensor(int32)": onnx.TensorProto.INT32,
    "tensor(int64)": onnx.TensorProto.INT64,
    "tensor(uint8)": onnx.TensorProto.UINT8,
    "tensor(uint16)": onnx.TensorProto.UINT16,
    "tensor(uint32)": onnx.TensorProto.UINT32,
    "tensor(uint64)": onnx.TensorProto.UINT64,
    "tensor(string)": onnx.TensorProto.STRING,
}


@functools.cache
def _register_shared_arena() -> None:
    """One arena for all sessions of this process that ask for it, growing by what is asked of it."""
    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    as_requested = 1
    try:
        ort.create_and_register_allocator(memory, ort.OrtArenaCfg({"arena_extend_strategy": as_requested}))
    except _ort_errors():
        return  # there is one already, of the program that we are part of: it is shared as well


def _run(
    session: ort.InferenceSession, outputs: list[str], feeds: dict[str, ort.OrtValue], where: str
) -> list[ort.OrtValue]:
    try:
        return list(session.run_with_ort_values(outputs, feeds))
    except _ort_errors() as e:
        raise DataError(f"{where}: the model does not run on it: {_one_line(e)}") from e


def _view(value: ort.OrtValue, kind: str) -> npt.NDArray[Any]:
    """The values where they lie: OrtValue.numpy() would copy them."""
    shape = value.shape()
    n_values = math.prod(shape)
    dtype = np.dtype(_FLOATS[kind])
    if n_values == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * (n_values * dtype.itemsize)).from_address(value.data_ptr())
    return np.frombuffer(memory, dtype=dtype).reshape(shape)


def _loaded(model: str | Path | bytes | ModelProto, folder: Path) -> tuple[ModelProto, Path]:
    """A model whose large weights are in files, and the folder of these."""
    if isinstance(model, str | Path):
        path = Path(model)
        try:
            proto = onnx.load(path, load_external_data=False)
        except OSError as e:
            raise ModelError(f"{path}: cannot be read ({e.strerror or e})") from e
        except Exception as e:  # protobuf's DecodeError is not importable by a stable name
            raise ModelError(f"{path}: not an ONNX model ({_one_line(e)})") from e
        if any(onnx.external_data_helper.uses_external_data(t) for t in proto.graph.initializer):
            _load_small(proto, path)
            return proto, path.resolve().parent
    elif isinstance(model, bytes):
        proto = ModelProto()
        try:
            proto.ParseFromString(model)
        except Exception as e:
            raise ModelError(f"not an ONNX model ({_one_line(e)})") from e
    else:
        # Shared, not copied: nothing here writes into it.
        proto = model
        if any(onnx.external_data_helper.uses_external_data(t) for t in proto.graph.initializer):
            raise ModelError("the model's weights are in files; give its path, or load them into it")
    if sum(len(t.raw_data) for t in proto.graph.initializer) >= EXTERNAL_FROM:
        proto = _externalized(proto, folder)
    return proto, folder


def _load_small(model: ModelProto, path: Path) -> None:
    """Take the small weights out of their files: onnxruntime wants to see shapes and axes in the model."""
    folder = path.resolve().parent
    for tensor in model.graph.initializer:
        width = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        if onnx.external_data_helper.uses_external_data(tensor) and math.prod(tensor.dims) * width < _SMALL:
            try:
                onnx.external_data_helper.load_external_data_for_tensor(tensor, str(folder))
            except (OSError, ValueError, onnx.checker.ValidationError) as e:
                raise ModelError(f"{path}: the weights {tensor.name!r} cannot be read ({_one_line(e)})") from e
            tensor.data_location = onnx.TensorProto.DEFAULT
            del tensor.external_data[:]


def write_model(model: str | Path | bytes | ModelProto, folder: Path) -> Path:
    """A file of the model, in ``folder`` unless it is one already."""
    if isinstance(model, str | Path):
        return Path(model)
    loaded, _ = _loaded(model, folder)
    path = folder / "model.onnx"
    path.write_bytes(loaded.SerializeToString())
    return path


def _externalized(model: ModelProto, folder: Path) -> ModelProto:
    """A copy of the model with its large weights in one file of the folder."""
    light = ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    graph = light.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    with (folder / "weights").open("wb") as file:
        for tensor in model.graph.initializer:
            if len(tensor.raw_data) < _SMALL or tensor.data_type == onnx.TensorProto.STRING:
                graph.initializer.append(tensor)
                continue
            file.write(b"\0" * (-file.tell() % _PAGE))
            moved = graph.initializer.add()
            moved.name, moved.data_type = tensor.name, tensor.data_type
            moved.dims.extend(tensor.dims)
            moved.data_location = onnx.TensorProto.EXTERNAL
            entries = {"location": "weights", "offset": file.tell(), "length": len(tensor.raw_data)}
            for key, value in entries.items():
                moved.external_data.add(key=key, value=str(value))
            file.write(tensor.raw_data)
    return light


#: Weights below this many bytes stay in the model; the others start at a page in their file.
_SMALL: Final = 1024
_PAGE: Final = 4096


def _ort_errors() -> tuple[type[Exception], ...]:
    """What onnxruntime raises: its own exceptions have no base class of their own."""
    state = ort.capi.onnxruntime_pybind11_state
    names = (
        "Fail",
        "InvalidArgument",
        "InvalidGraph",
        "InvalidProtobuf",
        "NotImplemented",
        "NoSuchFile",
        "RuntimeException",
        "EPFail",
        "ModelLoaded",
        "EngineError",
    )
    found = [getattr(state, n) for n in names if hasattr(state, n)]
    return (*found, RuntimeError, ValueError)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
