# SPDX-License-Identifier: Apache-2.0
"""Gemm with constants in its plainest form: alpha and beta 1, the bias a vector."""

from __future__ import annotations

import numpy as np

from wia_quant.graph import Model


def normalize_gemm(model: Model, keep: frozenset[str]) -> int:
    """Multiply alpha into the weight and beta into the bias; spread a scalar bias over the channels."""
    edits = 0
    for graph, node in model.nodes():
        if node.op_type != "Gemm" or not node.standard or node.name in keep or model.opset < 7:
            continue
        weight = model.array(node.inputs[1])
        if weight is None or weight.dtype != np.float32 or weight.ndim != 2:
            continue
        alpha, beta = float(node.attribute("alpha", 1.0)), float(node.attribute("beta", 1.0))  # type: ignore[arg-type]
        if alpha != 1.0:
            scaled = (weight.astype(np.float64) * alpha).astype(np.float32)
            node.inputs[1] = model.add_constant(graph, f"{node.inputs[1]}/alpha", scaled)
            node.set("alpha", None)
            edits += 1
        bias = model.array(node.input(2)) if node.input(2) else None
        channels = weight.shape[0 if node.integer("transB", 0) else 1]
        if bias is not None and (beta != 1.0 or bias.shape != (channels,)) and bias.size in (1, channels):
            if bias.size == channels and bias.ndim == 2 and bias.shape[0] != 1:
                continue  # one value a row: not a bias
            vector = np.broadcast_to((bias.astype(np.float64) * beta).astype(np.float32).reshape(-1), (channels,))
            node.inputs[2] = model.add_constant(graph, f"{node.inputs[2]}/beta", vector)
            node.set("beta", None)
            edits += 1
    return edits
