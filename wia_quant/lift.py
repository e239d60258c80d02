# SPDX-License-Identifier: Apache-2.0
"""Tensors from within If, Loop and Scan, made outputs of these nodes so that they can be observed outside."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from itertools import count
from types import MappingProxyType
from typing import Final

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from wia_quant.errors import CalibrationError

#: Prefix of the names that tensors get outside.
INNER: Final = "wia.inner."


def lifted(model: ModelProto, tensors: Collection[str]) -> tuple[ModelProto, dict[str, str]]:
    """The model with ``tensors`` in its main graph, and {their name there: their own name}.

    What is in the main graph already keeps its name. A tensor of a branch that is not taken is empty; one in a
    loop has all iterations along a new first axis. If two subgraphs have a tensor of that name, both are lifted.
    The model itself is not changed.

    Raises:
        CalibrationError: a tensor is nowhere, or within an operator that is none of If, Loop and Scan.
    """
    graph = model.graph
    outside = {name for node in graph.node for name in node.output} | {v.name for v in graph.input}
    names = {name: name for name in tensors if name in outside}
    wanted = set(tensors) - outside
    if not wanted:
        return model, names
    copy = ModelProto()
    copy.CopyFrom(model)
    fresh = (f"{INNER}{n}." for n in count())
    for node in copy.graph.node:
        names |= _lift(node, wanted, fresh)
    if missing := sorted(wanted - set(names.values())):
        raise CalibrationError(f"tensor {missing[0]!r} is not in the model")
    return copy, names


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs that a node holds."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def _lift(node: NodeProto, wanted: set[str], fresh: Iterator[str]) -> dict[str, str]:
    """Give the node an output for every wanted tensor within; {its name: the tensor's own name}."""
    found: list[tuple[GraphProto, dict[str, str]]] = []
    for graph in subgraphs(node):
        inside = {name: name for inner in graph.node for name in inner.output if name in wanted}
        for inner in graph.node:
            inside |= _lift(inner, wanted, fresh)
        found.append((graph, inside))
    if not any(inside for _, inside in found):
        return {}
    if node.op_type not in _LIFTS:
        name = next(own for _, inside in found for own in inside.values())
        raise CalibrationError(
            f"tensor {name!r} is within {node.op_type} {node.name!r}; only those within {', '.join(_LIFTS)} and of the "
            "main graph are observed: leave it out"
        )
    return _LIFTS[node.op_type](node, found, fresh)


def _lift_if(node: NodeProto, found: list[tuple[GraphProto, dict[str, str]]], fresh: Iterator[str]) -> dict[str, str]:
    lifted: dict[str, str] = {}
    for chosen, inside in found:
        for name, own in inside.items():
            outer = next(fresh) + own
            for n, (graph, _) in enumerate(found):
                # Both branches give the output; where the tensor is not, nothing.
                output = f"{outer}.{n}"
                if graph is chosen:
                    graph.node.append(helper.make_node("Identity", [name], [output]))
                else:
                    nothing = numpy_helper.from_array(np.zeros(0, np.float32))
                    graph.node.append(helper.make_node("Constant", [], [output], value=nothing))
                graph.output.append(ValueInfoProto(name=output))
            node.output.append(outer)
            lifted[outer] = own
    return lifted


def _lift_loop(node: NodeProto, found: list[tuple[GraphProto, dict[str, str]]], fresh: Iterator[str]) -> dict[str, str]:
    ((body, inside),) = found
    lifted = {}
    for name, own in inside.items():
        outer = next(fresh) + own
        body.node.append(helper.make_node("Identity", [name], [f"{outer}.0"]))
        body.output.append(ValueInfoProto(name=f"{outer}.0"))
        node.output.append(outer)
        lifted[outer] = own
    for attribute in node.attribute:
        if attribute.name in ("scan_output_axes", "scan_output_directions"):
            attribute.ints.extend([0] * len(lifted))
    return lifted


_Lift = Callable[[NodeProto, list[tuple[GraphProto, dict[str, str]]], Iterator[str]], dict[str, str]]
_LIFTS: Final = MappingProxyType[str, _Lift]({"If": _lift_if, "Loop": _lift_loop, "Scan": _lift_loop})
