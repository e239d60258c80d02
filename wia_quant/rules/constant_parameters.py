# SPDX-License-Identifier: Apache-2.0
"""Scales and zero points are constants of the file."""

from __future__ import annotations

from collections.abc import Iterator

from wia_quant.qdq import DEQUANTIZE, QUANTIZE, ModelView
from wia_quant.rules.base import Place, Rule, Severity, at


def find(model: ModelView) -> Iterator[Place]:
    """Q and DQ whose parameters are computed while running."""
    for view, node in model.nodes():
        if node.op_type not in (QUANTIZE, DEQUANTIZE):
            continue
        for role, name in zip(("scale", "zero point"), node.input[1:3], strict=False):
            if name and view.constant(name) is None:
                yield at(view, node, f"its {role} '{name}' is not a constant", "calibrate it statically", tensor=name)


RULE = Rule("scales and zero points are constants", Severity.ERROR, find)
