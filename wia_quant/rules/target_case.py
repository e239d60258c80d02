# SPDX-License-Identifier: Apache-2.0
"""A model beside a target: the shapes of its tensors, and which of its nodes work on integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from wia_quant.qdq import DEQUANTIZE, QUANTIZE, GraphView, ModelView
from wia_quant.rules.base import Place, Severity
from wia_quant.rules.products import products
from wia_quant.targets.target import Shape, Target

_FLOATING = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE})


@dataclass(frozen=True)
class TargetCase:
    """What the rules of a target look at."""

    model: ModelView
    target: Target

    @cached_property
    def tensors(self) -> Mapping[str, tuple[int, Shape | None]]:
        """Tensor -> element type and shape, where they are known."""
        try:
            inferred: ModelProto = onnx.shape_inference.infer_shapes(self.model.model, data_prop=True)
        except (onnx.shape_inference.InferenceError, ValueError):  # ValueError: above 2 GB
            inferred = self.model.model
        return {info.name: _type_and_shape(info) for info in _infos(inferred.graph)}

    def shape(self, name: str) -> Shape | None:
        """The shape of a tensor; None where it is not known."""
        return self.tensors.get(name, (0, None))[1]

    def is_float(self, name: str) -> bool:
        """Whether a tensor holds floats, or may."""
        return self.tensors.get(name, (TensorProto.FLOAT, None))[0] in _FLOATING

    @cached_property
    def integer_nodes(self) -> Sequence[tuple[GraphView, NodeProto]]:
        """Products of quantized operands, and every node on the way from a DequantizeLinear to a QuantizeLinear."""
        by_product = {id(p.node) for p in products(self.model) if p.x is not None}
        found: list[tuple[GraphView, NodeProto]] = []
        for view in self.model.graphs:
            after = _after_integers(view)
            before = _before_integers(view)
            found += [
                (view, n)
                for n in view.graph.node
                if n.op_type not in (QUANTIZE, DEQUANTIZE)
                and (id(n) in by_product or (id(n) in after and id(n) in before))
            ]
        return found

    def float_nodes(self) -> Iterator[tuple[GraphView, NodeProto]]:
        """The other nodes that make floats, constants left out."""
        on_integers = {id(n) for _, n in self.integer_nodes}
        for view, node in self.model.nodes():
            if node.op_type in (QUANTIZE, DEQUANTIZE, "Constant") or id(node) in on_integers:
                continue
            if any(self.is_float(name) for name in node.output if name):
                yield view, node


@dataclass(frozen=True)
class TargetRule:
    """One thing that a target description says and a program can verify.

    Attributes:
        summary: the sentence.
        severity: of a finding that does not say its own.
        find: yields the breaches.
    """

    summary: str
    severity: Severity
    find: Callable[[TargetCase], Iterator[Place]]


def _after_integers(view: GraphView) -> set[int]:
    """Nodes that read, however far ahead, an activation from DequantizeLinear; ids."""
    reached = {t.name for t in view.dequantized.values() if not t.is_constant}
    found: set[int] = set()
    for node in view.graph.node:
        if node.op_type in (QUANTIZE, DEQUANTIZE):
            continue
        if any(name in reached for name in node.input):
            found.add(id(node))
            reached.update(node.output)
    return found


def _before_integers(view: GraphView) -> set[int]:
    """Nodes whose every result ends, however far behind, in a QuantizeLinear; ids."""
    found: set[int] = set()
    for node in reversed(view.graph.node):
        readers = [r for name in node.output for r in view.consumers.get(name, ())]
        kept = view.output_names.intersection(node.output)
        if readers and not kept and all(r.op_type == QUANTIZE or id(r) in found for r in readers):
            found.add(id(node))
    return found


def _infos(graph: GraphProto) -> Iterator[ValueInfoProto]:
    yield from (*graph.input, *graph.output, *graph.value_info)
    for tensor in graph.initializer:
        yield helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
    for node in graph.node:
        for a in node.attribute:
            for sub in [a.g] if a.type == onnx.AttributeProto.GRAPH else a.graphs:
                yield from _infos(sub)


def _type_and_shape(info: ValueInfoProto) -> tuple[int, Shape | None]:
    tensor = info.type.tensor_type
    if not tensor.HasField("shape"):
        return tensor.elem_type, None
    return tensor.elem_type, tuple(d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim)
