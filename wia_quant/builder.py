# SPDX-License-Identifier: Apache-2.0
"""An ONNX graph in the making from a framework that puts channels last, and how its tensors lie in memory.

Keras and TFLite put channels last, ONNX before the spatial axes. A tensor remembers how it lies; only what needs
another order than it finds has it transposed. So a net of convolutions has one Transpose at its input and none inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from wia_quant.errors import ExportError
from wia_quant.graph import ir_version_of

Array = npt.NDArray[Any]
Shape = tuple[int | None, ...]

#: As the exports from torch: every operator that the emitters write is in it.
OPSET: Final = 18

ELEMENT_TYPES: Final = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "float64": TensorProto.DOUBLE,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "bool": TensorProto.BOOL,
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of the graph.

    Attributes:
        name: in the graph.
        shape: as the framework sees it; None is open.
        order: axis i of the graph's tensor is the framework's axis ``order[i]``; None as the framework has it.
        dtype: as numpy names it.
        unflattened: of a flattened tensor that is not in the graph yet: what will be flattened. A Dense takes it as it
            lies, with its kernel's rows in that order; others have it put in the framework's order.
    """

    name: str
    shape: Shape
    order: tuple[int, ...] | None = None
    dtype: str = "float32"
    unflattened: Tensor | None = None

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def axis(self, axis: int) -> int:
        """Where the framework's ``axis`` is in the graph's tensor."""
        axis %= self.rank
        return axis if self.order is None else self.order.index(axis)


def channels_first(rank: int) -> tuple[int, ...] | None:
    """The order of a channels-last tensor of this rank for ONNX' spatial operators."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 2 else None


@dataclass
class Builder:
    """Nodes and constants by unique names.

    Attributes:
        where: the layer that is being emitted: nodes take its name.
    """

    where: str = ""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _moved: dict[tuple[str, tuple[int, ...] | None], Tensor] = field(default_factory=dict)

    def fresh(self, base: str) -> str:
        """``base``, or with a number if it is taken."""
        name, n = base, 1
        while name in self._names:
            name, n = f"{base}_{n}", n + 1
        self._names.add(name)
        return name

    def constant(self, array: Array, name: str) -> str:
        """A stored tensor."""
        name = self.fresh(f"{self.where}/{name}")
        self.constants.append(numpy_helper.from_array(np.asarray(array, order="C"), name))
        return name

    def floats(self, array: Any, name: str) -> str:
        """A stored float32 tensor."""
        return self.constant(np.asarray(array, np.float32), name)

    def integers(self, values: Any, name: str) -> str:
        """A stored int64 tensor: shapes and axes."""
        return self.constant(np.asarray(values, np.int64), name)

    def node(self, op_type: str, inputs: list[str], **attributes: Any) -> str:
        """One node with one output; the output's name."""
        return self.node_n(op_type, inputs, 1, **attributes)[0]

    def node_n(self, op_type: str, inputs: list[str], outputs: int, **attributes: Any) -> list[str]:
        """One node with several outputs."""
        name = self.fresh(f"{self.where}/{op_type}")
        names = [self.fresh(f"{name}:{i}") for i in range(outputs)]
        kept = {k: v for k, v in attributes.items() if v is not None}
        self.nodes.append(helper.make_node(op_type, inputs, names, name, **kept))
        return names

    def rename(self, old: str, new: str) -> None:
        """Gives a tensor another name, everywhere."""
        for node in self.nodes:
            for names in (node.input, node.output):
                for i, name in enumerate(names):
                    if name == old:
                        names[i] = new

    def arranged(self, x: Tensor, order: tuple[int, ...] | None) -> Tensor:
        """``x`` lying in ``order``; a Transpose only where it does not yet."""
        x = self._in_order(x)
        if x.order == order:
            return x
        key = (x.name, order)
        if key not in self._moved:
            wanted = order or tuple(range(x.rank))
            perm = [x.axis(axis) for axis in wanted]
            name = self.node("Transpose", [x.name], perm=perm)
            self._moved[key] = Tensor(name, x.shape, order, x.dtype)
        return self._moved[key]

    def logical(self, x: Tensor) -> Tensor:
        """``x`` as the framework has it."""
        return self.arranged(x, None)

    def first(self, x: Tensor) -> Tensor:
        """``x`` with its last axis, the channels, moved to axis 1."""
        return self.arranged(x, channels_first(x.rank))

    def _in_order(self, x: Tensor) -> Tensor:
        if x.unflattened is None:
            return x
        source = self.logical(x.unflattened)
        key = (f"{source.name} flat", None)
        if key not in self._moved:
            name = self.node("Flatten", [source.name], axis=1)
            self._moved[key] = Tensor(name, x.shape, None, x.dtype)
        return self._moved[key]

    def alike(self, *tensors: Tensor) -> tuple[list[Tensor], tuple[int, ...] | None]:
        """Operands of one elementwise operator in one order: that of the first of full rank."""
        rank = max(t.rank for t in tensors)
        order = next((t.order for t in tensors if t.rank == rank), None)
        if any(t.rank not in (rank, 0) for t in tensors):
            order = None
        return [self.arranged(t, order if t.rank == rank else None) for t in tensors], order

    def spread(self, values: Any, x: Tensor, axis: int = -1) -> Array:
        """Constants along the framework's ``axis`` of ``x``, shaped to broadcast with it as it lies."""
        array = np.asarray(values, np.float32)
        if array.ndim == 0 or array.size == 1:
            return array.reshape(())
        if array.ndim == 1:
            shape = [1] * x.rank
            shape[x.axis(axis)] = array.size
            return array.reshape(shape)
        full = array.reshape([1] * (x.rank - array.ndim) + list(array.shape))
        return full if x.order is None else full.transpose(x.order)

    def like(self, x: Tensor, name: str, shape: Shape | None = None, dtype: str | None = None) -> Tensor:
        """A result that lies as ``x`` does."""
        return Tensor(name, x.shape if shape is None else shape, x.order, dtype or x.dtype)

    def unary(self, x: Tensor, op_type: str, *more: str, **attributes: Any) -> Tensor:
        """An elementwise operator of one tensor and constants that broadcast to any shape; the order stays."""
        return self.elementwise(x, lambda y: self.node(op_type, [y.name, *more], **attributes))

    def elementwise(self, x: Tensor, make: Callable[[Tensor], str]) -> Tensor:
        """What ``make`` does to each value of ``x``, before it is flattened where that is still to come."""
        if x.unflattened is None:
            return self.like(x, make(x))
        return replace(x, unflattened=self.elementwise(x.unflattened, make))

    def model(
        self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], producer: str
    ) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(self.nodes, "graph", inputs, outputs, self.constants)
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=ir_version_of(OPSET),
            producer_name=producer,
        )


def padding_of(
    mode: str, sizes: list[int | None], kernel: list[int], strides: list[int], dilations: list[int]
) -> dict[str, Any]:
    """ONNX' attributes for the framework's padding: explicit numbers where the sizes are known."""
    if mode == "valid":
        return {}
    if mode == "causal":
        return {"pads": [*[d * (k - 1) for k, d in zip(kernel, dilations, strict=True)], *[0] * len(kernel)]}
    if mode != "same":
        raise ExportError(f"padding '{mode}' is unknown")
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    totals = [_same(size, span, stride) for size, span, stride in zip(sizes, spans, strides, strict=True)]
    if any(t is None for t in totals):
        return {"auto_pad": "SAME_UPPER"}
    known = [t for t in totals if t is not None]
    if not any(known):
        return {}
    return {"pads": [*[t // 2 for t in known], *[t - t // 2 for t in known]]}


def _same(size: int | None, span: int, stride: int) -> int | None:
    if stride == 1:
        return span - 1
    if size is None:
        return None
    return max((math.ceil(size / stride) - 1) * stride + span - size, 0)


def flattened_rows(source: Tensor) -> npt.NDArray[np.int64]:
    """Which rows of the framework's kernel, in which order, a kernel has that reads ``source`` flattened as it lies."""
    sizes = [1, *(int(d or 0) for d in source.shape[1:])]
    places = np.arange(math.prod(sizes)).reshape(sizes)
    return places.transpose(source.order or range(len(sizes))).reshape(-1)
