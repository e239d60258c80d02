# SPDX-License-Identifier: Apache-2.0
"""Activations are quantized per tensor, to 8 or 16 bits, and read on the grid they were written on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from wia_quant.qdq import ModelView
from wia_quant.rules.base import Place, Rule, Severity, at


def find(model: ModelView) -> Iterator[Place]:
    """Per-axis activations, and a DQ whose scale or zero point is not its Q's."""
    for view, tensor in model.tensors():
        q = tensor.quantize_node
        if q is None or tensor.is_constant:
            continue
        if tensor.per_axis:
            message = f"activation '{tensor.source}' has {0 if tensor.scale is None else tensor.scale.size} scales"
            yield at(view, q, message, "quantize activations per tensor", tensor=tensor.source)
            continue
        for role, i in (("scale", 1), ("zero point", 2)):
            written = view.constant(q.input[i]) if len(q.input) > i else None
            read = view.constant(tensor.node.input[i]) if len(tensor.node.input) > i else None
            if written is not None and read is not None and not np.array_equal(written.reshape(-1), read.reshape(-1)):
                w, r = written.reshape(-1)[0], read.reshape(-1)[0]
                message = f"'{tensor.source}' is written with {role} {w} and read with {r}"
                yield at(view, tensor.node, message, f"give Q and DQ one {role}", tensor=tensor.source)


RULE = Rule("activations are per tensor, and read as they were written", Severity.ERROR, find)
