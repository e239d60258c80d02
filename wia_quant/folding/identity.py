# SPDX-License-Identifier: Apache-2.0
"""Operators that hand their input on unchanged disappear: Identity, Dropout at inference, a Cast to the same type."""

from __future__ import annotations

from wia_quant.graph import Graph, Model, Node


def remove_identities(model: Model, keep: frozenset[str]) -> int:
    """Bypass every node that changes nothing; names of graph inputs and outputs stay."""
    edits = 0
    for graph, node in list(model.nodes()):
        if not node.standard or node.name in keep or not _changes_nothing(model, node):
            continue
        if _bypass(model, graph, node):
            edits += 1
            model.index()
    return edits


def _changes_nothing(model: Model, node: Node) -> bool:
    if node.op_type == "Identity":
        return True
    if node.op_type == "Dropout":
        training = model.array(node.input(2)) if node.input(2) else None
        mask_used = (
            len(node.outputs) > 1
            and bool(node.outputs[1])
            and (bool(model.consumers(node.outputs[1])) or node.outputs[1] in model.outputs)
        )
        return not mask_used and (not node.input(2) or (training is not None and not bool(training)))
    if node.op_type == "Cast":
        return model.types.get(node.inputs[0], -1) == node.attribute("to")
    if node.op_type == "Pad":
        pads = node.integers("pads") if model.opset < 11 else model.array(node.input(1))
        return pads is not None and not any(int(p) for p in pads)
    return node.op_type in ("Concat", "Sum", "Max", "Min", "Mean") and len(node.inputs) == 1


def _bypass(model: Model, graph: Graph, node: Node) -> bool:
    source, result = node.inputs[0], node.outputs[0]
    if result not in model.outputs:
        if model.owners.get(source) is not graph and any(result == i.name for g in model.graphs for i in g.outputs):
            return False
        graph.nodes.remove(node)
        model.replace_readers(result, source)
        return True
    # The output keeps its name: the node that makes the source takes it over, if it may.
    producer = model.producers.get(source)
    if producer is None or source in model.outputs or model.owners.get(source) is not graph:
        return False
    graph.nodes.remove(node)
    producer.outputs = [result if o == source else o for o in producer.outputs]
    model.replace_readers(source, result)
    model.types[result] = model.types.get(source, 0)
    if source in model.shapes:
        model.shapes[result] = model.shapes[source]
    return True
