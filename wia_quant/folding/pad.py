# SPDX-License-Identifier: Apache-2.0
"""A Pad with zeros directly before a Conv becomes the padding of the Conv."""

from __future__ import annotations

from wia_quant.graph import Model, Node


def fold_pad(model: Model, keep: frozenset[str]) -> int:
    """Move zero padding of spatial axes into every Conv that reads it."""
    edits = 0
    for _, node in list(model.nodes()):
        if node.op_type != "Pad" or not node.standard or node.name in keep:
            continue
        pads, result = _zero_spatial_pads(model, node), node.outputs[0]
        readers = model.consumers(result)
        if pads is None or not readers or result in model.outputs:
            continue
        if any(not _takes_padding(model, reader, result, keep) for reader in readers):
            continue
        for reader in readers:
            own = reader.integers("pads") or [0] * len(pads)
            reader.set("pads", [a + b for a, b in zip(own, pads, strict=True)])
            reader.set("auto_pad", None)
            reader.inputs[0] = node.inputs[0]
        edits += 1
        model.index()
    return edits


def _takes_padding(model: Model, node: Node, value: str, keep: frozenset[str]) -> bool:
    padding = node.attribute("auto_pad", "NOTSET")
    return (
        node.op_type == "Conv"
        and node.standard
        and node.name not in keep
        and (padding == "NOTSET" or (padding == "VALID"))
        and node.inputs.count(value) == 1
        and node.inputs[0] == value
    )


def _zero_spatial_pads(model: Model, node: Node) -> list[int] | None:
    """``[begin of each spatial axis, end of each]``; None when this Pad does anything else."""
    if node.attribute("mode", "constant") != "constant" or node.input(3):
        return None
    if model.opset < 11:
        pads, value = node.integers("pads"), node.attribute("value", 0.0)
    else:
        array = model.array(node.input(1))
        pads = None if array is None else [int(p) for p in array]
        fill = model.array(node.input(2)) if node.input(2) else None
        value = 0.0 if not node.input(2) else (None if fill is None else float(fill.reshape(-1)[0]))
    if pads is None or value != 0.0 or len(pads) % 2 or len(pads) < 6:
        return None
    rank = len(pads) // 2
    if any(pads[:2]) or any(pads[rank : rank + 2]) or any(p < 0 for p in pads):
        return None
    return pads[2:rank] + pads[rank + 2 :]
