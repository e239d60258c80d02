# SPDX-License-Identifier: Apache-2.0
"""Operators that only move values, Concat included, keep one scale on all sides."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wia_quant.qdq import QUANTIZE, Dequantized, GraphView, ModelView
from wia_quant.rules.base import Place, Rule, Severity, at

#: Operators whose every output value is one of the values of the inputs counted here.
MOVERS: dict[str, int] = {
    "Reshape": 1,
    "Transpose": 1,
    "Squeeze": 1,
    "Unsqueeze": 1,
    "Flatten": 1,
    "Slice": 1,
    "Split": 1,
    "MaxPool": 1,
    "Gather": 1,
    "Expand": 1,
    "Tile": 1,
    "DepthToSpace": 1,
    "SpaceToDepth": 1,
    "Concat": 1_000_000,
}


def find(model: ModelView) -> Iterator[Place]:
    """Movers with quantized inputs whose scale or zero point differs from an output's."""
    for view, node in model.nodes():
        if node.op_type not in MOVERS:
            continue
        read = [view.dequantized.get(name) for name in node.input[: MOVERS[node.op_type]]]
        inputs = [t for t in read if t is not None and t.scale is not None]
        if not inputs or len(inputs) != len(read):
            continue
        sides = [(t.name, *_parameters(t)) for t in inputs]
        sides += [(name, *p) for name in node.output if (p := _written(view, name)) is not None]
        first = sides[0]
        other = next((side for side in sides[1:] if side[1:] != first[1:]), None)
        if other is not None:
            message = (
                f"'{first[0]}' has scale {first[1]:.6g}, zero point {first[2]};"
                f" '{other[0]}' has {other[1]:.6g} and {other[2]}"
            )
            yield at(view, node, message, "give all sides one scale", tensor=other[0])


def _parameters(tensor: Dequantized) -> tuple[float, int]:
    assert tensor.scale is not None
    zero_point = 0 if tensor.zero_point is None else int(tensor.zero_point.reshape(-1)[0])
    return float(np.float32(tensor.scale.reshape(-1)[0])), zero_point


def _written(view: GraphView, name: str) -> tuple[float, int] | None:
    """The parameters of the QuantizeLinear that reads ``name``, if one does."""
    for reader in view.consumers.get(name, ()):
        if reader.op_type == QUANTIZE:
            scale = view.constant(reader.input[1])
            zero_point = view.constant(reader.input[2]) if len(reader.input) > 2 else np.zeros(1)
            if scale is not None and zero_point is not None and scale.size == 1:
                return float(np.float32(scale.reshape(-1)[0])), int(zero_point.reshape(-1)[0])
    return None


RULE = Rule("operators that move values keep one scale on all sides", Severity.NOTE, find)
