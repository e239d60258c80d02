# SPDX-License-Identifier: Apache-2.0
"""Constant nodes and everything computed from constants alone become initializers."""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx
from onnx import numpy_helper

from wia_quant.errors import ModelError
from wia_quant.graph import AnyArray, Graph, Model, Node

#: Results no larger than this are always kept; larger ones only if they grow little against their inputs.
SMALL_BYTES: Final = 1 << 16
_MAX_GROWTH: Final = 4

#: Not functions of their inputs, or whose result is the point of the format.
_NEVER: Final = frozenset(
    {
        "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli",
        "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Constant", "SequenceEmpty", "Optional",
    }
)  # fmt: skip


def fold_constants(model: Model, keep: frozenset[str]) -> int:
    """Replace Constant nodes, and nodes whose inputs are all constants, by initializers."""
    edits = _forget_default_inputs(model)
    for graph, node in list(model.nodes()):
        if not node.standard or node.graphs or node.name in keep:
            continue
        values = _constant_values(node) if node.op_type == "Constant" else _evaluate(model, node)
        if values is None:
            continue
        graph.nodes.remove(node)
        for name, value in zip(node.outputs, values, strict=False):
            if name:
                model.add_tensor(graph, name, numpy_helper.from_array(value, name))
                model.types[name] = graph.initializers[name].data_type
                model.shapes[name] = value.shape
        edits += 1
    model.index()
    return edits


def _forget_default_inputs(model: Model) -> int:
    """Initializers that are also inputs become plain constants: before IR 4 that was the only form."""
    edits = 0
    for graph in model.graphs:
        both = [info.name for info in graph.inputs if info.name in graph.initializers]
        if both:
            graph.inputs = [info for info in graph.inputs if info.name not in graph.initializers]
            if model.ir_version >= 4:
                model.notes.append("inputs with default values became constants: " + ", ".join(sorted(both)))
            edits += len(both)
    return edits


def _constant_values(node: Node) -> list[AnyArray] | None:
    if len(node.attributes) != 1:
        raise ModelError(f"{node.where}: a Constant needs exactly one value")
    (key, proto), value = next(iter(node.attributes.items())), node.attribute(next(iter(node.attributes)))
    if key == "value":
        return [np.asarray(numpy_helper.to_array(proto.t))]
    if key in ("value_float", "value_floats"):
        return [np.asarray(value, dtype=np.float32)]
    if key in ("value_int", "value_ints"):
        return [np.asarray(value, dtype=np.int64)]
    if key in ("value_string", "value_strings"):
        return [np.asarray(value, dtype=np.object_)]
    return None  # sparse_value stays a node


def _evaluate(model: Model, node: Node) -> list[AnyArray] | None:
    if node.op_type in _NEVER or (not any(node.inputs) and node.op_type != "ConstantOfShape"):
        return None
    feeds: dict[str, AnyArray] = {}
    for name in filter(None, node.inputs):
        value = model.array(name)
        if value is None:
            return None
        feeds[name] = value
    if node.op_type in ("ConstantOfShape", "Expand", "Tile", "Range") and _grows(model, node):
        return None
    results = _run(model, node, feeds)
    if results is None:
        return None
    n_in, n_out = sum(v.nbytes for v in feeds.values()), sum(v.nbytes for v in results)
    return results if n_out <= max(SMALL_BYTES, _MAX_GROWTH * n_in) else None


def _grows(model: Model, node: Node) -> bool:
    """True when the result is known to be large, or not known at all."""
    shape = model.shape(node.outputs[0])
    if shape is None or None in shape:
        sizes = model.array(node.inputs[-1 if node.op_type != "Range" else 1])
        return sizes is None or float(np.prod(np.abs(sizes.astype(np.float64)))) > SMALL_BYTES
    return float(np.prod([float(d or 0) for d in shape])) > SMALL_BYTES


def _run(model: Model, node: Node, feeds: dict[str, AnyArray]) -> list[AnyArray] | None:
    from onnx.reference import ReferenceEvaluator  # slow to import, and only needed here

    single = Graph("constant", [node], [], [], {})
    proto = onnx.GraphProto(name=single.name)
    target = proto.node.add(op_type=node.op_type, name=node.name)
    target.input.extend(node.inputs)
    target.output.extend(node.outputs)
    target.attribute.extend(node.attributes.values())
    proto.input.extend(
        onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in feeds.items()
    )
    names = [n for n in node.outputs if n]
    proto.output.extend(onnx.ValueInfoProto(name=n) for n in names)
    whole = onnx.helper.make_model(proto, opset_imports=[onnx.helper.make_opsetid("", model.opset)])
    try:
        results = ReferenceEvaluator(whole).run(names, feeds)
    except Exception:  # an operator the reference lacks, or a fault the executing runtime will report
        return None
    if not all(isinstance(r, np.ndarray | np.generic) for r in results):
        return None
    return [np.asarray(r) for r in results] if len(names) == len(node.outputs) else None
