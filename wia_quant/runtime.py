# SPDX-License-Identifier: Apache-2.0
"""Session: a model in libwia, with the calls of onnxruntime's InferenceSession."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from wia_quant import _native
from wia_quant.errors import ModelError, RuntimeFault, UnsupportedError, UsageError, WiaError

_T = TypeVar("_T")

#: wia_status_t -> what Python raises.
_ERRORS: Final[Mapping[int, type[WiaError]]] = MappingProxyType(
    {1: RuntimeFault, 2: RuntimeFault, 3: RuntimeFault, 4: UnsupportedError, 5: RuntimeFault}
)

#: libwia's element types as onnxruntime spells them.
_TYPE_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "float32": "float", "float64": "double", "float16": "float16", "bfloat16": "bfloat16",
        "float8e4m3fn": "float8e4m3fn", "float8e5m2": "float8e5m2", "bool": "bool", "int4": "int4",
        "uint4": "uint4", "int8": "int8", "uint8": "uint8", "int16": "int16", "uint16": "uint16",
        "int32": "int32", "uint32": "uint32", "int64": "int64", "uint64": "uint64", "undefined": "undefined",
    }
)  # fmt: skip

#: Types that numpy has from ml_dtypes, and the integers libwia hands them over as.
_VIEWS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "bfloat16": ("bfloat16", "uint16"), "float8e4m3fn": ("float8_e4m3fn", "uint8"),
        "float8e5m2": ("float8_e5m2", "uint8"), "int4": ("int4", "int8"), "uint4": ("uint4", "uint8"),
    }
)  # fmt: skip
_FROM_ML_DTYPES: Final = MappingProxyType({ml: (name, raw) for name, (ml, raw) in _VIEWS.items()})


#: Of one session; the library's own limit.
MAX_THREADS: Final = 1024


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model.

    Attributes:
        name: as in the file.
        type: onnxruntime's spelling, ``"tensor(float)"``.
        shape: one entry a dimension: its size, its name if symbolic, None if unknown. None without a shape.
    """

    name: str
    type: str
    shape: list[int | str | None] | None


class Session:
    """A model, compiled once. Runs from several threads take turns; the GIL is free meanwhile."""

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        threads: int = 1,
        isa: str | None = None,
        *,
        memory_limit: int = 0,
        max_loop_iterations: int = 10_000_000,
        optimize: bool = True,
    ) -> None:
        """Load and compile a model.

        Args:
            path_or_bytes: a file, or its bytes (then without external data).
            threads: how many share one run, >= 1.
            isa: the best instruction set to use ("reference", "avx2", ...); None: the environment's WIA_ISA,
                else the CPU's best.
            memory_limit: bytes that all tensors together may take; 0: the machine's memory.
            max_loop_iterations: of a Loop or Scan node in one run, with those inside it.
            optimize: fuse Q/DQ into integer operators and the like; False runs every node of the file as it
                stands, slowly: to tell a fault of the fusing from one of an operator.

        Raises:
            UnsupportedError: an operator or element type that libwia does not have; lists all of them.
            ModelError: the file cannot be read or is not valid.
            UsageError: threads or isa make no sense.
        """
        if not 1 <= threads <= MAX_THREADS:
            raise UsageError(f"threads must be from 1 to {MAX_THREADS}, not {threads}")
        capped = isa or os.environ.get("WIA_ISA")
        if capped and capped not in usable_isas():
            raise UsageError(f"instruction set '{capped}': this CPU has {', '.join(usable_isas())}")
        options = (threads, isa or "", memory_limit, max_loop_iterations, optimize)
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            data = bytes(path_or_bytes)
            self._native = _call(lambda: _native.Session.from_bytes(data, *options), ModelError)
        else:
            path = os.fspath(path_or_bytes)
            try:
                path.encode()
            except UnicodeEncodeError as error:
                raise ModelError(f"{path!r}: the file's name is not UTF-8; rename it") from error
            self._native = _call(lambda: _native.Session.from_file(path, *options), ModelError)
        self._inputs = self._native.inputs()
        self._outputs = self._native.outputs()
        self._output_index = {name: i for i, (name, *_) in enumerate(self._outputs)}
        self._input_names = frozenset(name for name, *_ in self._inputs)

    def __repr__(self) -> str:
        def ports(of: list[NodeArg]) -> str:
            return ", ".join(f"{one.name}: {one.type} {one.shape}" for one in of)

        return f"<Session {ports(self.get_inputs())} -> {ports(self.get_outputs())}>"

    def get_inputs(self) -> list[NodeArg]:
        """The inputs that run() needs, in the model's order."""
        return [_node_arg(*port) for port in self._inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The outputs, in the model's order."""
        return [_node_arg(*port) for port in self._outputs]

    def get_metadata(self) -> dict[str, str]:
        """The model's metadata_props."""
        return self._native.metadata()

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, npt.ArrayLike]
    ) -> list[npt.NDArray[Any]]:
        """The outputs of that name, in that order; all of them for None.

        Raises:
            RuntimeFault: an input that is missing, unknown, or of another type, rank or size than the model's:
                the message names it, what was expected and what was given.
        """
        if not isinstance(input_feed, Mapping):
            raise RuntimeFault(f"the inputs are given as a dict of name -> array, not as {type(input_feed).__name__}")
        if isinstance(output_names, str):
            raise RuntimeFault(f"output_names is the text '{output_names}'; give a list of names, or None for all")
        for name in input_feed:
            if name not in self._input_names:
                raise RuntimeFault(f"input '{name}': the model has no such input; it has {self._names(self._inputs)}")
        feeds = []
        for name, *_ in self._inputs:
            if name not in input_feed:
                raise RuntimeFault(f"input '{name}' is missing; the model takes {self._names(self._inputs)}")
            feeds.append(_to_native(name, input_feed[name]))
        wanted = range(len(self._outputs)) if output_names is None else [self._index(n) for n in output_names]
        results = _call(lambda: self._native.run(feeds), RuntimeFault)
        return [_from_native(self._outputs[i][1], results[i]) for i in wanted]

    def describe(self) -> dict[str, Any]:
        """What the model became.

        Returns:
            isa, threads, arena_bytes (all intermediate tensors of the last shapes), weight_bytes (constants
            as the kernels keep them), and nodes: a list, in the order they run, of name, op_type, domain, kernel,
            kind ("planned", "at run", "folded", "alias"), inputs, outputs, input_shapes, output_shapes.
            Shapes are those of the last run, or the declared ones when all are numbers.
        """
        if not any(node["kind"] for node in self._native.report()):
            _call(self._native.plan_declared, RuntimeFault)
        keys = ("runs", "total_ns")
        nodes = [{k: v for k, v in node.items() if k not in keys} for node in self._native.report()]
        return {
            "isa": self._native.isa(),
            "threads": self._native.threads(),
            "arena_bytes": self._native.arena_bytes(),
            "weight_bytes": self._native.weight_bytes(),
            "nodes": nodes,
        }

    def profiling(self) -> AbstractContextManager[None]:
        """Runs inside ``with session.profiling():`` are timed; profile() tells."""
        return _Profiling(self._native)

    def profile(self) -> list[dict[str, Any]]:
        """Of each node that ran while profiling: name, op_type, kernel, runs, and total_ns of all runs."""
        keys = ("name", "op_type", "kernel", "runs", "total_ns")
        return [{k: node[k] for k in keys} for node in self._native.report() if node["runs"]]

    def _index(self, name: str) -> int:
        if name not in self._output_index:
            raise RuntimeFault(f"output '{name}': the model has no such output; it has {self._names(self._outputs)}")
        return self._output_index[name]

    @staticmethod
    def _names(ports: Sequence[tuple[str, str, bool, list[int], list[str]]]) -> str:
        return ", ".join(f"'{name}'" for name, *_ in ports) or "none"


class _Profiling:
    def __init__(self, native: _native.Session) -> None:
        self._native = native

    def __enter__(self) -> None:
        self._native.set_profiling(True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._native.set_profiling(False)


def usable_isas() -> list[str]:
    """The names that Session's ``isa`` takes on this CPU, the slowest first."""
    return _native.usable_isas()


def operators() -> list[tuple[str, str]]:
    """Every operator libwia has: (domain, op_type), "" being ai.onnx."""
    return _native.operators()


def _call(function: Callable[[], _T], invalid: type[WiaError]) -> _T:
    """The function's result, libwia's failures as ours; ``invalid`` is for WIA_ERROR_INVALID_ARGUMENT."""
    try:
        return function()
    except RuntimeError as error:
        if not (len(error.args) == 2 and isinstance(error.args[0], int)):
            raise
        status, message = error.args
        raise (invalid if status == 1 else _ERRORS.get(status, RuntimeFault))(message) from None


def _node_arg(name: str, dtype: str, has_shape: bool, dims: list[int], dim_names: list[str]) -> NodeArg:
    shape = [d if d >= 0 else (label or None) for d, label in zip(dims, dim_names, strict=True)]
    return NodeArg(name, f"tensor({_TYPE_NAMES[dtype]})", shape if has_shape else None)


def _to_native(name: str, value: npt.ArrayLike) -> tuple[str, npt.NDArray[np.generic]]:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise RuntimeFault(f"input '{name}' is no array: {error}") from error
    dtype = array.dtype.name
    if dtype in _FROM_ML_DTYPES:
        dtype, raw = _FROM_ML_DTYPES[dtype]
        # The unused bits of a 4-bit element may be anything.
        array = array.astype(raw) if dtype in ("int4", "uint4") else array.view(raw)
    elif array.dtype.kind not in "biuf" or dtype not in _TYPE_NAMES:
        raise RuntimeFault(f"input '{name}': arrays of {dtype} are not supported")
    # ascontiguousarray would make a scalar one-dimensional.
    array = array if array.flags.c_contiguous else array.copy(order="C")
    return dtype, array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _from_native(dtype: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    if dtype not in _VIEWS:
        return array
    import ml_dtypes

    return array.view(getattr(ml_dtypes, _VIEWS[dtype][0]))
