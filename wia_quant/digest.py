# SPDX-License-Identifier: Apache-2.0
"""What a graph computes as one number: equal for equal computations, whatever their names and the order of nodes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import onnx
from onnx import helper


def graph_digest(model: onnx.ModelProto) -> str:
    """SHA-256 over operators, attributes, edges, constants' values, and the types of inputs and outputs.

    Left out: names, metadata, shapes inferred on the way, what no output depends on, and attributes that say what
    holds without them. A subgraph (of If or Loop) enters as its bytes, names included.
    """
    versions = {o.domain: o.version for o in model.opset_import}
    sizes = {tensor.name: list(tensor.dims)[2:] for tensor in model.graph.initializer}
    known: dict[str, bytes] = {"": b"absent"}
    for place, info in enumerate(model.graph.input):
        known[info.name] = _hash(b"input", str(place).encode(), _type(info))
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        known[tensor.name] = _hash(str(tensor.data_type).encode(), str(array.shape).encode(), array.tobytes())
    for node in model.graph.node:  # ONNX keeps them sorted: inputs first
        if node.op_type == "DequantizeLinear" and node.input[0] in sizes:
            sizes[node.output[0]] = sizes[node.input[0]]
        says_nothing = _defaults(node, versions.get(node.domain, 1), sizes)
        attributes = sorted(
            a.SerializeToString(deterministic=True)
            for a in node.attribute
            if helper.get_attribute_value(a) not in says_nothing.get(a.name, ())
        )
        own = _hash(node.domain.encode(), node.op_type.encode(), *attributes, *(known[name] for name in node.input))
        for place, name in enumerate(node.output):
            known[name] = _hash(own, str(place).encode())
    opsets = sorted(f"{o.domain}:{o.version}".encode() for o in model.opset_import)
    outputs = [_hash(known[info.name], _type(info)) for info in model.graph.output]
    return _hash(*opsets, *outputs).hex()


#: Window of an operator: one number, repeated, that changes nothing.
_WINDOWS: Final = {"strides": 1, "dilations": 1, "pads": 0, "output_padding": 0}


def _defaults(node: onnx.NodeProto, version: int, sizes: Mapping[str, list[int]]) -> dict[str, list[Any]]:
    """Attribute -> the values that hold without it: the operator's default, and those that follow from the shapes."""
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:  # no operator of ONNX
        return {}
    found: dict[str, list[Any]] = {}
    for name, attribute in schema.attributes.items():
        if attribute.default_value.name:
            found[name] = [helper.get_attribute_value(attribute.default_value)]
        elif name in _WINDOWS:
            lengths = [len(a.ints) for a in node.attribute if a.name == name]
            found[name] = [[_WINDOWS[name]] * n for n in lengths]
    weights = [sizes[name] for name in node.input[1:2] if name in sizes]
    if node.op_type in ("Conv", "ConvTranspose") and weights:
        found["kernel_shape"] = weights
    return found


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def _type(info: onnx.ValueInfoProto) -> bytes:
    """Element type and shape; an open length is open, whatever its name."""
    tensor = info.type.tensor_type
    lengths = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
    return f"{tensor.elem_type}{lengths}".encode()
