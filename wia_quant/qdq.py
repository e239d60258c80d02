# SPDX-License-Identifier: Apache-2.0
"""A QDQ model as its readers see it: every quantized tensor with its parameters, every node with its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from wia_quant.affine import INT8, UINT8, IntArray, QParams, QType, quantize

_GRIDS: Final[Mapping[int, QType]] = MappingProxyType(
    {
        TensorProto.INT8: INT8,
        TensorProto.UINT8: UINT8,
        TensorProto.INT16: QType("int16", np.dtype(np.int16), -32768, 32767),
    }
)

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"


@dataclass(frozen=True)
class Dequantized:
    """A float tensor that DequantizeLinear makes.

    Attributes:
        name: the tensor.
        node: the DequantizeLinear.
        scale: as stored; shape [] or [1] per tensor, [n] per axis, more when blocked. None when not constant.
        zero_point: int64; the shape of ``scale``. None when not constant; zeros when the node has none.
        elem_type: onnx.TensorProto type of the integers; UNDEFINED when not known.
        axis: the node's axis attribute, as written (default 1).
        levels: the integers, when they are constant: a weight or a bias, stored as them or quantized on every run.
        quantize_node: the QuantizeLinear that makes the integers; None for constants and integer inputs.
        source: the float tensor before the QuantizeLinear, or the integer tensor when there is none.
    """

    name: str
    node: NodeProto
    scale: npt.NDArray[np.floating] | None
    zero_point: npt.NDArray[np.int64] | None
    elem_type: int
    axis: int
    levels: npt.NDArray[np.int64] | None
    quantize_node: NodeProto | None
    source: str

    @property
    def per_axis(self) -> bool:
        """True when there is more than one scale."""
        return self.scale is not None and self.scale.size > 1

    @property
    def is_constant(self) -> bool:
        """True for a weight or a bias stored as integers."""
        return self.levels is not None


@dataclass
class GraphView:
    """One graph or subgraph, with look-ups; names of outer graphs are found through ``parent``."""

    graph: GraphProto
    opset: int
    parent: GraphView | None = None
    path: str = ""
    children: list[GraphView] = field(default_factory=list)

    @cached_property
    def producers(self) -> Mapping[str, NodeProto]:
        """Tensor -> the node of this graph that makes it."""
        return {name: node for node in self.graph.node for name in node.output if name}

    @cached_property
    def consumers(self) -> Mapping[str, Sequence[NodeProto]]:
        """Tensor -> the nodes of this graph that read it, subgraphs' readers not included."""
        found: dict[str, list[NodeProto]] = {}
        for node in self.graph.node:
            for name in dict.fromkeys(n for n in node.input if n):
                found.setdefault(name, []).append(node)
        return found

    @cached_property
    def initializers(self) -> Mapping[str, TensorProto]:
        """Initializers and the outputs of Constant nodes."""
        found = {t.name: t for t in self.graph.initializer}
        for node in self.graph.node:
            if node.op_type == "Constant" and node.attribute and node.attribute[0].type == AttributeProto.TENSOR:
                found[node.output[0]] = node.attribute[0].t
        return found

    @cached_property
    def output_names(self) -> frozenset[str]:
        """The graph's outputs."""
        return frozenset(v.name for v in self.graph.output)

    def constant(self, name: str) -> npt.NDArray[np.generic] | None:
        """The value of a constant of this graph or one around it; None for anything else."""
        view: GraphView | None = self
        while view is not None:
            if name in view.initializers:
                return numpy_helper.to_array(view.initializers[name])
            if name in view.producers:
                return None
            view = view.parent
        return None

    @cached_property
    def dequantized(self) -> Mapping[str, Dequantized]:
        """Every DequantizeLinear of this graph by its output."""
        return {n.output[0]: self._read(n) for n in self.graph.node if n.op_type == DEQUANTIZE}

    def _read(self, node: NodeProto) -> Dequantized:
        scale = self.constant(node.input[1])
        levels: npt.NDArray[np.generic] | None = self.constant(node.input[0])
        made_by = self.producers.get(node.input[0])
        quantize_node = made_by if made_by is not None and made_by.op_type == QUANTIZE else None
        if levels is None and quantize_node is not None:
            levels = self.quantized_constant(quantize_node)
        zero_point: npt.NDArray[np.int64] | None
        elem_type: int = TensorProto.UNDEFINED
        if len(node.input) > 2 and node.input[2]:
            value = self.constant(node.input[2])
            zero_point = None if value is None else value.astype(np.int64)
            elem_type = self._elem_type(node.input[2])
        else:
            zero_point = None if scale is None else np.zeros(scale.shape, np.int64)
        if node.input[0] in self.initializers:
            elem_type = self.initializers[node.input[0]].data_type
        return Dequantized(
            name=node.output[0],
            node=node,
            scale=None if scale is None else scale.astype(scale.dtype),
            zero_point=zero_point,
            elem_type=elem_type,
            axis=attribute(node, "axis", 1),
            levels=None if levels is None else levels.astype(np.int64),
            quantize_node=quantize_node,
            source=quantize_node.input[0] if quantize_node is not None else node.input[0],
        )

    def quantized_constant(self, node: NodeProto) -> IntArray | None:
        """The integers that QuantizeLinear makes of a constant, by equation (1); None where it reads anything else."""
        x = self.constant(node.input[0])
        if x is None or len(node.input) < 3:
            return None
        scale, zero_point = self.constant(node.input[1]), self.constant(node.input[2])
        grid = _GRIDS.get(self._elem_type(node.input[2]))
        if scale is None or zero_point is None or grid is None or attribute(node, "block_size", 0):
            return None
        axis = None if scale.size == 1 else attribute(node, "axis", 1)
        if axis is not None:
            if scale.ndim != 1 or not -x.ndim <= axis < x.ndim or x.shape[axis] != scale.size:
                return None
            axis %= x.ndim
        shape = () if axis is None else scale.shape
        if zero_point.size != scale.size or not (np.isfinite(scale).all() and (scale > 0).all()):  # type: ignore[operator]
            return None
        qparams = QParams(
            grid, scale.astype(np.float32).reshape(shape), zero_point.astype(grid.dtype).reshape(shape), axis
        )
        return quantize(x.astype(np.float32), qparams)

    def _elem_type(self, name: str) -> int:
        view: GraphView | None = self
        while view is not None:
            if name in view.initializers:
                return view.initializers[name].data_type
            view = view.parent
        return TensorProto.UNDEFINED

    def where(self, node: NodeProto) -> str:
        """``"Conv 'stem/conv'"``, with the subgraph it stands in."""
        name = node.name or (node.output[0] if node.output else "")
        return f"{node.op_type} '{self.path}{name}'"


@dataclass(frozen=True)
class ModelView:
    """A model and the views of its graphs, the main one first."""

    model: ModelProto
    graphs: Sequence[GraphView]

    @property
    def opset(self) -> int:
        """The version of ai.onnx."""
        return self.graphs[0].opset

    def nodes(self) -> Iterator[tuple[GraphView, NodeProto]]:
        """Every node of every graph."""
        for view in self.graphs:
            for node in view.graph.node:
                yield view, node

    def tensors(self) -> Iterator[tuple[GraphView, Dequantized]]:
        """Every dequantized tensor of every graph."""
        for view in self.graphs:
            for tensor in view.dequantized.values():
                yield view, tensor


def view_model(model: ModelProto) -> ModelView:
    """The views of all graphs of ``model``; the model itself is not copied nor changed."""
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), onnx.defs.onnx_opset_version())
    graphs: list[GraphView] = []

    def add(graph: GraphProto, parent: GraphView | None, path: str) -> None:
        view = GraphView(graph, opset, parent, path)
        graphs.append(view)
        if parent is not None:
            parent.children.append(view)
        for node in graph.node:
            for a in node.attribute:
                for sub in [a.g] if a.type == AttributeProto.GRAPH else a.graphs:
                    add(sub, view, f"{path}{node.name}.{a.name}/")

    add(model.graph, None, "")
    return ModelView(model, graphs)


def is_quantized(model: ModelProto) -> bool:
    """Whether the model has a DequantizeLinear in its graph or in one inside it."""
    return any(n.op_type == DEQUANTIZE for view in view_model(model).graphs for n in view.graph.node)


def attribute(node: NodeProto, name: str, otherwise: int) -> int:
    """An integer attribute, or ``otherwise`` where the node has none."""
    return next((int(a.i) for a in node.attribute if a.name == name), otherwise)
