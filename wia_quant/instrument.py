# SPDX-License-Identifier: Apache-2.0
"""Copies of a model that give chosen tensors as outputs: whole, or cut into pieces that run one by one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from wia_quant.errors import CalibrationError
from wia_quant.lift import subgraphs

#: Prefix of the outputs that hold the sizes of tensors.
SIZE_PREFIX = "wia.size."


@dataclass(frozen=True)
class Piece:
    """A run of nodes of the graph.

    Attributes:
        nodes: positions in the graph, ascending.
        feeds: the tensors it takes, apart from initializers.
        gives: the tensors it gives to later pieces.
        shown: the tensors in it that are to be observed.
    """

    nodes: tuple[int, ...]
    feeds: tuple[str, ...]
    gives: tuple[str, ...]
    shown: tuple[str, ...]


def node_inputs(node: NodeProto) -> set[str]:
    """Every tensor the node reads, also from within its subgraphs; absent optional ones left out."""
    read = {name for name in node.input if name}
    for graph in subgraphs(node):
        read |= _free_names(graph)
    return read


def cut(model: ModelProto, tensors: Collection[str], n_bytes: Mapping[str, int], budget: int) -> list[Piece]:
    """Pieces whose observed tensors take about ``budget`` bytes at most, or that have only one.

    Nodes that no observed tensor depends on are left out.
    """
    graph = model.graph
    wanted = set(tensors)
    reads = [node_inputs(node) for node in graph.node]
    needed = _needed(graph, reads, wanted)
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    given = {v.name for v in graph.input} - constants

    runs: list[list[int]] = [[]]
    held = 0
    for i in needed:
        size = sum(n_bytes.get(name, 0) for name in graph.node[i].output if name in wanted)
        if runs[-1] and held and held + size > budget:
            runs.append([])
            held = 0
        runs[-1].append(i)
        held += size
    return _pieces(graph, reads, [run for run in runs if run], wanted, given)


def merged(model: ModelProto, tensors: Collection[str], pieces: Sequence[Piece], at: int) -> list[Piece]:
    """The same pieces with number ``at`` and the next made one."""
    graph = model.graph
    runs = [list(p.nodes) for p in pieces]
    runs[at : at + 2] = [runs[at] + runs[at + 1]]
    constants = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    given = {v.name for v in graph.input} - constants
    return _pieces(graph, [node_inputs(n) for n in graph.node], runs, set(tensors), given)


def piece_model(model: ModelProto, piece: Piece, feeds: Sequence[ValueInfoProto]) -> ModelProto:
    """A model of the piece's nodes with its shown and given tensors as outputs."""
    graph = model.graph
    nodes = [graph.node[i] for i in piece.nodes]
    read = set().union(*(node_inputs(n) for n in nodes)) if nodes else set()
    new = _shell(model)
    new.graph.node.extend(nodes)
    for node in new.graph.node:
        node.name = ""  # onnxruntime refuses two nodes of one name, which the format allows
    new.graph.initializer.extend(t for t in graph.initializer if t.name in read)
    new.graph.sparse_initializer.extend(t for t in graph.sparse_initializer if t.values.name in read)
    new.graph.input.extend(feeds)
    passed = {v.name for v in feeds}
    names = dict.fromkeys([*piece.shown, *piece.gives])
    # An output that is also an input of the same graph is not allowed; the caller has that tensor anyway.
    new.graph.output.extend(ValueInfoProto(name=n) for n in names if n not in passed)
    return new


def sizes_model(model: ModelProto, tensors: Collection[str]) -> ModelProto:
    """A model whose outputs are the number of values of each tensor, int64 []."""
    graph = model.graph
    wanted = dict.fromkeys(t for t in tensors if t not in {v.name for v in graph.input})
    reads = [node_inputs(node) for node in graph.node]
    needed = _needed(graph, reads, set(wanted))
    read = set().union(*(reads[i] for i in needed)) if needed else set()
    new = _shell(model)
    for i in needed:
        new.graph.node.append(graph.node[i])
        new.graph.node[-1].name = ""
        # Right behind the node, so that the tensor need not be kept.
        for name in graph.node[i].output:
            if name in wanted:
                new.graph.node.append(onnx.helper.make_node("Size", [name], [SIZE_PREFIX + name]))
    new.graph.initializer.extend(t for t in graph.initializer if t.name in read)
    new.graph.sparse_initializer.extend(t for t in graph.sparse_initializer if t.values.name in read)
    new.graph.input.extend(v for v in graph.input if v.name in read)
    new.graph.output.extend(
        onnx.helper.make_tensor_value_info(SIZE_PREFIX + name, onnx.TensorProto.INT64, []) for name in wanted
    )
    return new


def _shell(model: ModelProto) -> ModelProto:
    """The model without a graph's content: versions and functions."""
    new = ModelProto()
    new.ir_version = model.ir_version
    new.opset_import.extend(model.opset_import)
    if not any(o.domain in ("", "ai.onnx") for o in new.opset_import):
        raise CalibrationError("the model imports no version of the standard operators")
    new.functions.extend(model.functions)
    new.graph.name = model.graph.name or "instrumented"
    return new


def _pieces(
    graph: GraphProto,
    reads: Sequence[set[str]],
    runs: Sequence[Sequence[int]],
    wanted: set[str],
    given: set[str],
) -> list[Piece]:
    made_in = {name: k for k, run in enumerate(runs) for i in run for name in graph.node[i].output if name}
    read_in = [set().union(*(reads[i] for i in run)) if run else set() for run in runs]
    pieces = []
    for k, run in enumerate(runs):
        made = [name for i in run for name in graph.node[i].output if name]
        later = set().union(*read_in[k + 1 :]) if k + 1 < len(runs) else set()
        feeds = sorted(n for n in read_in[k] if n in given or made_in.get(n, k) < k)
        pieces.append(
            Piece(
                tuple(run),
                tuple(feeds),
                tuple(n for n in made if n in later),
                tuple(n for n in made if n in wanted),
            )
        )
    return pieces


def _needed(graph: GraphProto, reads: Sequence[set[str]], wanted: set[str]) -> list[int]:
    """Positions of the nodes that the ``wanted`` tensors depend on, ascending."""
    pending = set(wanted)
    kept = []
    for i in range(len(graph.node) - 1, -1, -1):
        if pending & set(graph.node[i].output):
            kept.append(i)
            pending |= reads[i]
    return kept[::-1]


def _free_names(graph: GraphProto) -> set[str]:
    """What a subgraph reads from outside."""
    local = {v.name for v in graph.input} | {t.name for t in graph.initializer}
    local |= {t.values.name for t in graph.sparse_initializer}
    free: set[str] = set()
    for node in graph.node:
        free |= node_inputs(node) - local
        local |= set(node.output)
    return free | ({v.name for v in graph.output} - local)
