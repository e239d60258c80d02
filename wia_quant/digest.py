# SPDX-License-Identifier: Apache-2.0
"""What a graph computes as one number: equal for equal computations, whatever their names and the order of nodes."""

from __future__ import annotations

import hashlib

import onnx


def graph_digest(model: onnx.ModelProto) -> str:
    """SHA-256 over operators, attributes, edges, constants' values, and the types of inputs and outputs.

    Left out: names, metadata, shapes inferred on the way, and what no output depends on. A subgraph (of If or Loop)
    enters as its bytes, names included.
    """
    known: dict[str, bytes] = {"": b"absent"}
    for place, info in enumerate(model.graph.input):
        known[info.name] = _hash(b"input", str(place).encode(), _type(info))
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        known[tensor.name] = _hash(str(tensor.data_type).encode(), str(array.shape).encode(), array.tobytes())
    for node in model.graph.node:  # ONNX keeps them sorted: inputs first
        attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
        own = _hash(node.domain.encode(), node.op_type.encode(), *attributes, *(known[name] for name in node.input))
        for place, name in enumerate(node.output):
            known[name] = _hash(own, str(place).encode())
    opsets = sorted(f"{o.domain}:{o.version}".encode() for o in model.opset_import)
    outputs = [_hash(known[info.name], _type(info)) for info in model.graph.output]
    return _hash(*opsets, *outputs).hex()


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
