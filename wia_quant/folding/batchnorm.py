# SPDX-License-Identifier: Apache-2.0
"""A BatchNormalization that no product took in becomes a depthwise 1x1 Conv, which quantizes without loss of weight.

One weight a channel is exactly 127 steps of its own scale, and the shift is an int32 bias.
"""

from __future__ import annotations

import numpy as np

from wia_quant.graph import Model, make_node


def batchnorm_to_conv(model: Model, keep: frozenset[str]) -> int:
    """Replace BatchNormalization of feature maps [N, C, ...spatial] by a depthwise Conv of kernel 1."""
    edits = 0
    for graph, node in list(model.nodes()):
        if node.op_type != "BatchNormalization" or not node.standard or node.name in keep:
            continue
        rank = model.rank(node.inputs[0])
        parameters = [model.array(name) for name in node.inputs[1:5]]
        if rank not in (3, 4, 5) or node.integer("training_mode", 0) or any(p is None for p in parameters):
            continue
        if any(o and (model.consumers(o) or o in model.outputs) for o in node.outputs[1:]):
            continue
        if not model.is_float(node.inputs[0]):
            continue
        gamma, beta, mean, variance = (np.asarray(p, dtype=np.float64) for p in parameters)
        scale = gamma / np.sqrt(variance + float(node.attribute("epsilon", 1e-5)))  # type: ignore[arg-type]
        shift = beta - mean * scale
        if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
            continue
        channels = len(scale)
        weight = model.add_constant(
            graph, f"{node.name}/weight", scale.astype(np.float32).reshape(channels, 1, *[1] * (rank - 2))
        )
        bias = model.add_constant(graph, f"{node.name}/bias", shift.astype(np.float32))
        conv = make_node("Conv", [node.inputs[0], weight, bias], node.outputs[:1], node.name, {"group": channels})
        conv.set("kernel_shape", [1] * (rank - 2))
        graph.nodes[graph.nodes.index(node)] = conv
        edits += 1
    if edits:
        model.index()
    return edits
