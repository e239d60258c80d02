# SPDX-License-Identifier: Apache-2.0
"""Where the tensors of a float graph are, so that two forms of one model can be laid upon each other without names."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Final

import onnx

#: Operator -> its inputs that are weights and biases; known by their values, other constants by their shapes.
_PARAMETERS: Final = {"Conv": (1, 2), "ConvTranspose": (1, 2), "Gemm": (1, 2), "MatMul": (0, 1), "Gather": (0,)}

#: What an input that is left out is known by.
_ABSENT: Final = "absent"


def places(proto: onnx.ModelProto) -> dict[str, str]:
    """Tensor -> the operators, attributes and weights that lead to it, and which of several such it is.

    Two tensors of equal weights on equal paths hold equal values, so it does not matter which is taken for which.
    """
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    by_value = {
        node.input[i]
        for node in proto.graph.node
        for i in _PARAMETERS.get(node.op_type, ())
        if i < len(node.input) and node.input[i] in constants
    }
    known = {name: f"constant {list(tensor.dims)}" for name, tensor in constants.items()}
    for name in by_value:
        values = onnx.numpy_helper.to_array(constants[name])
        known[name] = f"{known[name]} {hashlib.sha256(values.tobytes()).hexdigest()}"
        if values.ndim == 1 and not values.any():
            known[name] = _ABSENT  # a bias that adds nothing
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()

    def add(name: str, path: str) -> None:
        known[name] = hashlib.sha256(path.encode()).hexdigest()
        found[name] = f"{known[name]} {counts[known[name]]}"
        counts[known[name]] += 1

    for n, info in enumerate(proto.graph.input):
        add(info.name, f"input {n}")
    for node in proto.graph.node:
        # A product is known by its weight: its window may be written out or left to the defaults.
        named = [] if node.op_type in _PARAMETERS else node.attribute
        attributes = sorted(a.SerializeToString(deterministic=True).hex() for a in named)
        inputs = [known.get(name, _ABSENT) for name in node.input]
        while inputs and inputs[-1] == _ABSENT:
            inputs.pop()
        for n, name in enumerate(node.output):
            add(name, f"{node.domain} {node.op_type} {n} {attributes} {inputs}")
    return found
