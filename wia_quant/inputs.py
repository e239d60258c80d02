# SPDX-License-Identifier: Apache-2.0
"""What a model takes: names, shapes and types of its inputs, from a model or a session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.errors import DataError, ModelError

#: The element types of ONNX that numpy has too: number in TensorProto.DataType -> numpy's name.
_ONNX_TYPES: Final = MappingProxyType(
    {
        1: "float32",
        2: "uint8",
        3: "int8",
        4: "uint16",
        5: "int16",
        6: "int32",
        7: "int64",
        9: "bool",
        10: "float16",
        11: "float64",
        12: "uint32",
        13: "uint64",
    }
)
#: As sessions call them, where not as numpy does.
_SESSION_TYPES: Final = MappingProxyType({"float": "float32", "double": "float64"})


@dataclass(frozen=True)
class ModelInput:
    """One required input of a model.

    Attributes:
        name: as in the model.
        shape: one entry per axis; None where the model leaves the length open.
        dtype: numpy's.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: npt.DTypeLike

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", np.dtype(self.dtype))

    @property
    def shape_text(self) -> str:
        """The shape for messages: [N, 3, 224, 224], ? where it is open."""
        return "[" + ", ".join("?" if n is None else str(n) for n in self.shape) + "]"

    def accepts(self, shape: Sequence[int], wanted: Sequence[int | None] | None = None) -> bool:
        """Whether an array of ``shape`` can be this input (or one of shape ``wanted``)."""
        wanted = self.shape if wanted is None else wanted
        return len(shape) == len(wanted) and all(w in (None, n) for n, w in zip(shape, wanted, strict=True))


def as_model_inputs(source: Any) -> tuple[ModelInput, ...]:  # Any: a ModelProto, without importing onnx
    """The required inputs of a ModelProto, of what ``get_inputs()`` of a session gives, or as they are.

    An input with a default (an initializer of the same name) is not required.

    Raises:
        ModelError: the model has no input, or one that is not a tensor of numbers.
    """
    graph = getattr(source, "graph", None)
    if graph is not None:
        defaults = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
        found = tuple(_from_proto(v) for v in graph.input if v.name not in defaults)
    elif isinstance(source, Iterable):
        found = tuple(v if isinstance(v, ModelInput) else _from_session(v) for v in source)
    else:
        raise DataError(f"inputs of a model are not read from {type(source).__name__}")
    if not found:
        raise ModelError("the model takes no input, so there is nothing to calibrate it with")
    return found


def _from_proto(value: Any) -> ModelInput:  # Any: onnx.ValueInfoProto
    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or tensor.elem_type not in _ONNX_TYPES:
        raise ModelError(f"input {value.name!r} is not a tensor of numbers")
    if not tensor.HasField("shape"):
        raise ModelError(f"input {value.name!r} has no shape; give the model one")
    shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else None for d in tensor.shape.dim)
    return ModelInput(value.name, shape, _ONNX_TYPES[tensor.elem_type])


def _from_session(value: Any) -> ModelInput:  # Any: onnxruntime.NodeArg or our own
    name = str(value.type).removeprefix("tensor(").removesuffix(")")
    name = _SESSION_TYPES.get(name, name)
    if name not in _ONNX_TYPES.values():
        raise ModelError(f"input {value.name!r} is not a tensor of numbers but {value.type}")
    if value.shape is None:
        raise ModelError(f"input {value.name!r} has no shape; give the model one")
    shape = tuple(n if isinstance(n, int) and n > 0 else None for n in value.shape)
    return ModelInput(value.name, shape, name)
