# SPDX-License-Identifier: Apache-2.0
"""Which tensors become integers, on which grid, and why: a float model -> a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np

from wia_quant.affine import INT4_NARROW, INT8, INT8_NARROW, INT16_SYMMETRIC, QType, Range
from wia_quant.errors import PolicyError, UsageError
from wia_quant.graph import Model, Node
from wia_quant.halves import HalfNode, half_nodes, observed
from wia_quant.operators import Kind, Operator, Role, operator
from wia_quant.prepare import Source, prepare
from wia_quant.regions import Regions, find_regions
from wia_quant.targets.target import DEFAULT, Target, load_target


@dataclass(frozen=True)
class Scheme:
    """A name for a choice of grids.

    Attributes:
        weights: the grid of weights; None leaves them float.
        activations: the grid of activations; None quantizes weights only.
        opset: the oldest operator set that can say it.
        summary: one line for people.
        matrices: the grid of the weights of matrix products and embeddings, where it differs.
        block: weights of ``matrices`` a scale, along the axis that is summed; 0 is one scale a channel.
        halves: compute in float16 instead of integers.
    """

    weights: QType | None
    activations: QType | None
    opset: int
    summary: str
    matrices: QType | None = None
    block: int = 0
    halves: bool = False


SCHEMES: Final = MappingProxyType(
    {
        "w8a8": Scheme(INT8_NARROW, INT8, 13, "int8 weights by channel, int8 activations"),
        "w8a16": Scheme(INT8_NARROW, INT16_SYMMETRIC, 21, "int8 weights by channel, int16 activations"),
        "w8": Scheme(INT8_NARROW, None, 13, "int8 weights by channel, float activations"),
        "w4": Scheme(
            INT8_NARROW,
            None,
            21,
            "int4 weights of matrix products in blocks of 32, int8 convolutions, float activations",
            INT4_NARROW,
            32,
        ),
        "fp16": Scheme(None, None, 13, "float16 weights and arithmetic, float32 inputs and outputs", halves=True),
    }
)


@dataclass(frozen=True)
class ActivationPlan:
    """One activation tensor: its grid, and the group whose members share one range."""

    qtype: QType
    group: str


@dataclass(frozen=True)
class WeightPlan:
    """One use of a constant as a weight.

    Attributes:
        tensor: the initializer.
        node: the node that uses it.
        index: which input of the node.
        axis: the axis with a scale of its own; None is one scale for all.
        qtype: the grid.
        block: weights along ``axis`` that share a scale; 0: all of a channel do.
    """

    tensor: str
    node: str
    index: int
    axis: int | None
    qtype: QType
    block: int = 0


@dataclass(frozen=True)
class BiasPlan:
    """A bias that becomes int32 at the scale of its product: ``index`` of ``node``, for ``product``."""

    tensor: str
    node: str
    index: int
    product: str


@dataclass(frozen=True)
class Decision:
    """What happens to one node, and why."""

    node: str
    op_type: str
    quantized: bool
    reason: str


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before data is seen.

    Attributes:
        scheme: name of the scheme.
        activations: tensor -> grid and group; constants in activation positions are among them.
        observe: the tensors whose range has to be measured; those of a group together span it.
        weights: one entry for each use of a weight.
        biases: one entry for each int32 bias.
        integer_made: the activations whose float form exists only between their producer and Q.
        integer_readers: tensor -> names of the nodes that read its integers.
        decisions: one a node, in the order of the graph.
        notes: what else was decided.
        halves: node -> what of it becomes float16.
    """

    scheme: str
    activations: Mapping[str, ActivationPlan]
    observe: tuple[str, ...]
    weights: tuple[WeightPlan, ...]
    biases: tuple[BiasPlan, ...]
    integer_made: frozenset[str]
    integer_readers: Mapping[str, frozenset[str]]
    decisions: tuple[Decision, ...]
    notes: tuple[str, ...] = ()
    halves: Mapping[str, HalfNode] = field(default_factory=dict)

    def group(self, name: str) -> list[str]:
        """The tensors of a group."""
        return [t for t, a in self.activations.items() if a.group == name]

    def __repr__(self) -> str:
        return f"Plan({self._head()})"

    def _head(self) -> str:
        what = "in float16" if self.halves else "on integers"
        n = sum(d.quantized for d in self.decisions)
        return f"{n} of {len(self.decisions)} nodes {what}, scheme {self.scheme} ({SCHEMES[self.scheme].summary})"

    def text(self) -> str:
        """The plan for people: one line a node."""
        width = max((len(d.node) for d in self.decisions), default=4)
        on = "half" if self.halves else "int"
        lines = [
            f"{d.node:{width}}  {d.op_type:18}  {on if d.quantized else 'float':5}  {d.reason}" for d in self.decisions
        ]
        return "\n".join([self._head(), *lines, *(f"note: {note}" for note in self.notes)])


#: A product no larger than this, between float operators, costs less than quantizing its input.
SMALL_PRODUCT: Final = 256

#: A table of rows smaller than this is not worth quantizing.
SMALL_EMBEDDING: Final = 1024

#: Sharing one scale, a tensor whose range is this many times smaller than the others' would keep 8 levels.
MIXED_RANGES: Final = 32.0


def plan(
    source: Source, scheme: str = "w8a8", exclude: Iterable[str] = (), target: str | Path | Target = DEFAULT
) -> Plan:
    """What would be done with a float model: every node, with its reason. Runs nothing, writes nothing.

    Args:
        source: the float model: a path, its bytes, or a ModelProto; not changed.
        scheme: a name of ``SCHEMES``.
        exclude: rules of exclude.py.
        target: a built-in target, or a JSON file.

    Raises:
        ModelError: the model cannot be read.
        UsageError: unknown scheme or target.
        PolicyError: a rule that matches nothing, or nothing left to quantize.
    """
    prepared = prepare(source, opset=scheme_named(scheme).opset, exclude=exclude)
    return decide(prepared.model, scheme, prepared.excluded, load_target(target))


def scheme_named(name: str) -> Scheme:
    """The scheme, or an error that lists them."""
    if name not in SCHEMES:
        raise UsageError(f"unknown scheme {name!r}; there are {', '.join(SCHEMES)}")
    return SCHEMES[name]


def decide(
    model: Model,
    scheme: str = "w8a8",
    exclude: Mapping[str, str] | None = None,
    target: Target | None = None,
    keep_float: Mapping[str, str] | None = None,
    small_products: bool = False,
) -> Plan:
    """Decide for every node of a folded model.

    Args:
        model: folded, with types inferred; not changed.
        scheme: a name of ``SCHEMES``.
        exclude: node -> the rule that keeps it float (``exclude.resolve``).
        target: what limits the choice; None is no limit.
        keep_float: further nodes to keep float -> reason (from measurements).
        small_products: small products between float operators work on integers, too: they were trained for it.

    Raises:
        PolicyError: nothing is left to quantize.
    """
    found = scheme_named(scheme)
    if target is not None:
        if scheme not in target.schemes:
            raise PolicyError(f"target {target.name} cannot run scheme {scheme!r}; it has {', '.join(target.schemes)}")
        if found.activations is INT8:
            found = replace(found, activations=target.activations)
        if found.weights is INT8_NARROW:
            found = replace(found, weights=target.weights)
    if found.halves:
        return _halves_plan(model, scheme, dict(exclude or {}), dict(keep_float or {}))
    return _Planner(model, scheme, found, dict(exclude or {}), target, dict(keep_float or {}), small_products).run()


def _halves_plan(model: Model, scheme: str, exclude: dict[str, str], keep_float: dict[str, str]) -> Plan:
    halves, reasons = half_nodes(model, exclude, keep_float)
    decisions = tuple(
        Decision(node.name, node.op_type, node.name in halves, reasons.get(node.name, "computes in float16"))
        for _, node in model.nodes()
    )
    seen = observed(model, halves)
    return Plan(scheme, {}, seen, (), (), frozenset(), {}, decisions, tuple(model.notes), halves)


def mixed_ranges(model: Model, planned: Plan, ranges: Mapping[str, Range]) -> dict[str, str]:
    """Concats whose inputs have ranges so different that one scale would ruin the smaller: node -> reason."""
    found: dict[str, str] = {}
    quantized = {d.node for d in planned.decisions if d.quantized}
    for _, node in model.nodes():
        if node.op_type != "Concat" or node.name not in quantized:
            continue
        sizes = [_magnitude(ranges[v]) for v in node.inputs if v in ranges]
        sizes = [s for s in sizes if s > 0]
        if len(sizes) > 1 and max(sizes) > MIXED_RANGES * min(sizes):
            found[node.name] = (
                f"its inputs' ranges differ {max(sizes) / min(sizes):.0f} times: one scale would ruin the smaller"
            )
    return found


def _magnitude(r: Range) -> float:
    return max(-r.lo, r.hi)


@dataclass(eq=False)
class _Planner:
    model: Model
    name: str
    scheme: Scheme
    exclude: dict[str, str]
    target: Target | None
    keep_float: dict[str, str]
    small_products: bool
    lines: dict[str, Operator] = field(default_factory=dict)
    float_reason: dict[str, str] = field(default_factory=dict)
    weight_only: set[str] = field(default_factory=set)
    fused: dict[str, str] = field(default_factory=dict)  # node absorbed by a product -> that node
    regions: Regions = field(default_factory=Regions)
    quantized: set[str] = field(default_factory=set)
    wanted: dict[str, bool] = field(default_factory=dict)
    native: dict[str, bool] = field(default_factory=dict)

    def run(self) -> Plan:
        self._classify()
        self._fuse()
        self.regions = find_regions(self.model, lambda n: n.name in self.float_reason or n.name in self.fused)
        self._settle()
        while not self.small_products and self._drop_small_islands():
            self._settle()
        return self._write()

    # -- what each node is ---------------------------------------------------------------------------------

    def _classify(self) -> None:
        """The line of the table for each node, and why those stay float that do."""
        scheme = self.scheme
        for graph, node in self.model.nodes():
            line = operator(self.model, node)
            self.lines[node.name] = line
            reason = self._reason_to_stay_float(node, line)
            if graph is not self.model.main and scheme.activations is not None:
                reason = self._inside_subgraph(node, line, reason)
            if reason is None and scheme.activations is None and line.kind not in (Kind.PRODUCT, Kind.EMBEDDING):
                reason = "only weights are quantized"
            if reason is not None:
                self.float_reason[node.name] = reason

    def _reason_to_stay_float(self, node: Node, line: Operator) -> str | None:
        if node.name in self.exclude:
            return f"excluded by {self.exclude[node.name]!r}"
        if node.name in self.keep_float:
            return self.keep_float[node.name]
        if line.kind is Kind.FLOAT:
            return line.why
        activations = [v for i, v in enumerate(node.inputs) if v and line.role(i) is not Role.IGNORED]
        values = (
            [*activations, *filter(None, node.outputs)]
            if line.kind is not Kind.MOVES
            else [node.inputs[0], *filter(None, node.outputs[:1])]
        )
        if not all(self.model.is_float(v) for v in values):
            return "not float32: integers are never quantized"
        if not (line.kind is Kind.BINARY and self._is_pointwise(node)) and line.condition:
            reason = line.condition(self.model, node)
            if reason is not None:
                return reason
        return self._reason_of_target(node, values)

    def _reason_of_target(self, node: Node, values: Iterable[str]) -> str | None:
        """Why the device cannot have this node on integers; a product of float activations is none of its integers."""
        if self.target is None:
            return None
        if self.scheme.activations is None:
            return self.target.reason_against_float(node.op_type)
        width = self.scheme.activations.dtype.itemsize
        attributes = {name: node.attribute(name) for name in node.attributes}
        if node.op_type in ("Conv", "ConvTranspose") and (weight := self.model.shape(node.inputs[1])) is not None:
            attributes.setdefault("kernel_shape", [d or 1 for d in weight[2:]])
        return self.target.reason_against(
            node.op_type, attributes, [(value, self.model.shape(value), width) for value in dict.fromkeys(values)]
        )

    def _inside_subgraph(self, node: Node, line: Operator, reason: str | None) -> str | None:
        """Tensors of subgraphs are not measured: there only constant weights become integers."""
        index = {Kind.PRODUCT: 1, Kind.EMBEDDING: 0}.get(line.kind)
        if index is None or node.name in self.exclude or node.name in self.keep_float:
            return reason or "inside a subgraph, whose tensors have no measured range"
        weight = self.model.array(node.input(index))
        if weight is None or weight.ndim < 2 or not self.model.is_float(node.inputs[index]):
            return "inside a subgraph, without a constant float32 weight"
        self.weight_only.add(node.name)
        return None

    def _is_pointwise(self, node: Node) -> bool:
        sizes = [a.size for a in map(self.model.array, node.inputs) if a is not None]
        return (
            len(sizes) == 1
            and sizes[0] == 1
            and (node.op_type != "Div" or self.model.array(node.inputs[1]) is not None)
        )

    def _fuse(self) -> None:
        """A bias Add behind a MatMul, and Relu or Clip behind an integer sum, need no Q between.

        Not behind a sum that is a function of one tensor, ``x + x``: that and what follows are one table.
        """
        runs = find_regions(self.model, lambda n: n.name in self.float_reason)
        for _, node in self.model.nodes():
            line = self.lines[node.name]
            if node.name in self.float_reason or line.kind not in (Kind.PRODUCT, Kind.BINARY):
                continue
            if node.name in self.weight_only:
                continue
            if line.kind is Kind.BINARY and (self._is_pointwise(node) or node.outputs[0] in runs.source):
                continue
            last = node
            bias = self._bias_add(node) if node.op_type == "MatMul" else None
            if bias is not None:
                self.fused[bias.name] = node.name
                last = bias
            if node.name in self.fused:
                continue
            activation = self.model.only_reader(last.outputs[0])
            if activation is not None and self._is_bound(activation, last.outputs[0]):
                self.fused[activation.name] = node.name

    def _is_bound(self, node: Node, value: str) -> bool:
        if node.op_type not in ("Relu", "Clip") or not node.standard or node.inputs[0] != value:
            return False
        return node.name not in self.float_reason

    def _bias_add(self, node: Node) -> Node | None:
        """The Add of one constant a column directly behind a MatMul with a constant weight."""
        weight = self.model.shape(node.inputs[1])
        if self.model.array(node.inputs[1]) is None or weight is None or len(weight) != 2:
            return None
        add = self.model.only_reader(node.outputs[0])
        if add is None or add.op_type != "Add" or not add.standard or add.name in self.float_reason:
            return None
        other = [v for v in add.inputs if v != node.outputs[0]]
        array = self.model.array(other[0]) if len(other) == 1 else None
        if array is None or array.size != weight[1] or array.shape[-1] != weight[1]:
            return None
        return add

    # -- which nodes work on integers ------------------------------------------------------------------------

    def _settle(self) -> None:
        """Begin with every candidate on integers; drop those that integers do not reach or nobody wants."""
        self.quantized = {n.name for _, n in self.model.nodes() if n.name not in self.float_reason}
        while True:
            self._want()
            self._reach()
            drop = [n.name for _, n in self.model.nodes() if n.name in self.quantized and not self._stays(n)]
            if not drop:
                return
            self.quantized.difference_update(drop)

    def _stays(self, node: Node) -> bool:
        kind = self.lines[node.name].kind
        if kind is Kind.EMBEDDING:
            return True
        if node.name in self.fused:
            return self.fused[node.name] in self.quantized
        if kind is Kind.PRODUCT:
            return True
        wanted = any(self.wanted.get(o, False) for o in node.outputs if o)
        return wanted and self._inputs_ready(node)

    def _inputs_ready(self, node: Node) -> bool:
        if node.outputs[0] in self.regions.source:
            return self.native.get(self.regions.source[node.outputs[0]], False)
        line = self.lines[node.name]
        if line.kind is Kind.POINTWISE:
            return False  # it joined no run
        variables = [
            v
            for i, v in enumerate(node.inputs)
            if v and line.role(i) is Role.ACTIVATION and self.model.array(v) is None
        ]
        if line.kind is Kind.MOVES:
            return True  # Q moves up to before it
        if not variables:
            return False
        native = [self.native.get(v, False) for v in variables]
        return any(native) and all(n or self._is_gate(v) for v, n in zip(variables, native, strict=True))

    def _is_gate(self, value: str) -> bool:
        """A bounded factor a channel, such as squeeze-and-excitation makes: quantizing it costs nothing."""
        producer = self.model.producers.get(value)
        if producer is None or producer.op_type not in ("Sigmoid", "HardSigmoid", "Tanh"):
            return False
        shape = self.model.shape(value)
        return shape is not None and len(shape) == 4 and shape[2:] == (1, 1)

    def _want(self) -> None:
        """Which values some integer node, however far behind movers and elementwise ones, will read."""
        self.wanted = {}
        for graph in reversed(self.model.graphs):
            for node in reversed(graph.nodes):
                if node.name not in self.quantized or node.name in self.weight_only:
                    continue
                line = self.lines[node.name]
                behind = any(self.wanted.get(o, False) for o in node.outputs if o)
                for i, value in enumerate(node.inputs):
                    if not value or line.role(i) is Role.IGNORED or self.model.array(value) is not None:
                        continue
                    if node.name in self.fused or line.kind is not Kind.PRODUCT:
                        self.wanted[value] = self.wanted.get(value, False) or behind
                    elif line.role(i) in (Role.ACTIVATION, Role.WEIGHT):
                        self.wanted[value] = True

    def _reach(self) -> None:
        """Which values exist, or will exist for another reader, as integers."""
        direct = {v for _, n in self.model.nodes() if self._is_integer_product(n) for v in n.inputs[:2]}
        self.native = {}
        for graph in self.model.graphs:
            for info in graph.inputs:
                self.native[info.name] = info.name in direct
        for _, node in self.model.nodes():
            made = node.name in self.quantized and (
                self.lines[node.name].kind is Kind.PRODUCT or node.name in self.fused or self._inputs_ready(node)
            )
            if self.lines[node.name].kind is Kind.EMBEDDING or node.name in self.weight_only:
                made = False
            for value in filter(None, node.outputs):
                self.native[value] = made or value in direct

    def _is_integer_product(self, node: Node) -> bool:
        return (
            node.name in self.quantized
            and self.lines[node.name].kind is Kind.PRODUCT
            and node.name not in self.fused
            and node.name not in self.weight_only
        )

    def _drop_small_islands(self) -> bool:
        """Small products between float operators: quantizing their input costs more than it saves."""
        dropped = False
        for _, node in self.model.nodes():
            if not self._is_integer_product(node):
                continue
            weight = self.model.shape(node.inputs[1]) if self.model.array(node.inputs[1]) is not None else None
            if weight is None or int(np.prod([d or 1 for d in weight])) > SMALL_PRODUCT:
                continue
            producer = self.model.producers.get(node.inputs[0])
            before = producer is not None and producer.name not in self.quantized
            if before and not self.wanted.get(self._end(node), False):
                self.float_reason[node.name] = "a small product between float operators"
                for name in [n for n, p in self.fused.items() if p == node.name]:
                    del self.fused[name]
                    self.float_reason[name] = "belongs to a float product"
                dropped = True
        return dropped

    def _end(self, node: Node) -> str:
        """The value that a product hands on, behind its bias and its bound."""
        value = node.outputs[0]
        while (reader := self.model.only_reader(value)) is not None and self.fused.get(reader.name) == node.name:
            value = reader.outputs[0]
        return value

    # -- the plan ----------------------------------------------------------------------------------------------

    def _write(self) -> Plan:
        scheme = self.scheme
        readers: dict[str, set[str]] = {}
        made: set[str] = set()
        groups = _Groups()
        weights: list[WeightPlan] = []
        biases: list[BiasPlan] = []
        derived: set[str] = set()
        for _, node in self.model.nodes():
            if node.name not in self.quantized:
                continue
            line = self.lines[node.name]
            if line.kind is Kind.PRODUCT and node.name not in self.fused:
                self._product(node, weights, biases, readers, made)
            elif node.name in self.fused:
                self._fused(node, biases, readers)
            elif line.kind is Kind.EMBEDDING:
                self._embedding(node, weights)
            elif node.outputs[0] in self.regions.source:
                self._region_node(node, readers, made)
            else:
                self._elementwise(node, line, readers, made, groups, derived)
        if scheme.activations is None:
            readers, made = {}, set()
        activations = {
            value: ActivationPlan(scheme.activations, groups.root(value))
            for value in self._in_order({*readers, *made})
            if scheme.activations is not None
        }
        if not weights and not activations:
            raise PolicyError(_nothing(self.model, self.float_reason))
        observe = [v for v in activations if v not in derived and self.model.array(v) is None]
        notes = (*self.model.notes, *self._notes_of_target())
        return Plan(
            self.name, activations, tuple(observe), tuple(weights), tuple(biases), frozenset(made & set(activations)),
            {v: frozenset(r) for v, r in readers.items() if v in activations}, tuple(self._decisions()), notes,
        )  # fmt: skip

    def _notes_of_target(self) -> Iterable[str]:
        """What the device will not take whatever is done here."""
        if self.target is None:
            return
        for info in self.model.main.inputs:
            shape = self.model.shape(info.name)
            reason = None if shape is None else self.target.reason_against_input(info.name, shape)
            if reason is not None:
                yield f"{reason}: fix the shape of the float model's inputs"
        left = [n.op_type for _, n in self.model.nodes() if n.name not in self.quantized]
        if left and not self.target.runs_float:
            kinds = ", ".join(sorted(set(left)))
            yield f"target {self.target.name} has no float operators; {len(left)} nodes stay float ({kinds})"

    def _product(
        self,
        node: Node,
        weights: list[WeightPlan],
        biases: list[BiasPlan],
        readers: dict[str, set[str]],
        made: set[str],
    ) -> None:
        line, qtype = self.lines[node.name], self.scheme.weights
        assert qtype is not None
        for i, value in enumerate(node.inputs[:2]):
            array = self.model.array(value)
            if i == 1 and array is not None and array.ndim >= 2 and line.weight_axis is not None:
                if self.scheme.block and array.ndim == 2 and node.op_type in ("Gemm", "MatMul"):
                    weights.append(self._blocked(value, node.name, i, 1 - line.weight_axis(node, 2)))
                    continue
                by_channel = self.target is None or self.target.per_channel
                axis = line.weight_axis(node, array.ndim) if by_channel and _one_matrix(node, array.ndim) else None
                weights.append(WeightPlan(value, node.name, i, axis, qtype))
            elif node.name not in self.weight_only:
                readers.setdefault(value, set()).add(node.name)
        if node.name in self.weight_only:
            return
        if node.input(2) and self._int32_bias:
            biases.append(BiasPlan(node.inputs[2], node.name, 2, node.name))
        end = self._end(node)
        if self.wanted.get(end, False):
            made.add(end)

    def _blocked(self, tensor: str, node: str, index: int, axis: int) -> WeightPlan:
        assert self.scheme.matrices is not None
        return WeightPlan(tensor, node, index, axis, self.scheme.matrices, self.scheme.block)

    @property
    def _int32_bias(self) -> bool:
        """Sums of 16-bit activations do not fit int32: their bias stays float."""
        activations = self.scheme.activations
        return activations is not None and activations.dtype.itemsize == 1

    def _fused(self, node: Node, biases: list[BiasPlan], readers: dict[str, set[str]]) -> None:
        if node.op_type == "Add" and self.lines[node.name].kind is Kind.BINARY and self._int32_bias:
            product = self.fused[node.name]
            for i, value in enumerate(node.inputs):
                if self.model.array(value) is not None:
                    biases.append(BiasPlan(value, node.name, i, product))

    def _embedding(self, node: Node, weights: list[WeightPlan]) -> None:
        qtype, array = self.scheme.weights, self.model.array(node.inputs[0])
        if qtype is None or array is None or array.size < SMALL_EMBEDDING:
            return
        if self.scheme.block:
            weights.append(self._blocked(node.inputs[0], node.name, 0, 1))
        else:
            weights.append(WeightPlan(node.inputs[0], node.name, 0, 0, qtype))

    def _region_node(self, node: Node, readers: dict[str, set[str]], made: set[str]) -> None:
        result = node.outputs[0]
        start = self.regions.source[result]
        for value in node.inputs:
            if value == start:
                readers.setdefault(value, set()).add(node.name)
        if result not in self.regions.inside:
            made.add(result)

    def _elementwise(
        self,
        node: Node,
        line: Operator,
        readers: dict[str, set[str]],
        made: set[str],
        groups: _Groups,
        derived: set[str],
    ) -> None:
        operands = [v for i, v in enumerate(node.inputs) if v and line.role(i) is Role.ACTIVATION]
        for value in operands:
            readers.setdefault(value, set()).add(node.name)
        end = self._end(node) if line.kind is Kind.BINARY else None
        results = [end] if end is not None else [o for o in node.outputs if o]
        made.update(results)
        if line.kind in (Kind.MOVES, Kind.CONCAT):
            for value in (*operands[1:], *results):
                groups.join(operands[0], value)
            derived.update(results)

    def _in_order(self, values: Iterable[str]) -> list[str]:
        order: dict[str, int] = {}
        for graph in self.model.graphs:
            for info in graph.inputs:
                order.setdefault(info.name, len(order))
        for _, node in self.model.nodes():
            for value in (*node.inputs, *node.outputs):
                order.setdefault(value, len(order))
        return sorted(values, key=order.__getitem__)

    def _decisions(self) -> Iterable[Decision]:
        for _, node in self.model.nodes():
            quantized = node.name in self.quantized
            yield Decision(node.name, node.op_type, quantized, self._why(node, quantized))

    def _why(self, node: Node, quantized: bool) -> str:
        line = self.lines[node.name]
        if node.name in self.float_reason:
            return self.float_reason[node.name]
        if node.name in self.fused and quantized:
            what = "its int32 bias" if line.kind is Kind.BINARY else "a bound on its integers"
            return f"part of {self.fused[node.name]!r}: {what}"
        if not quantized:
            if not any(self.wanted.get(o, False) for o in node.outputs if o):
                return "no integer operator reads its result"
            return "its input is float and would have to be quantized for it alone"
        if node.name in self.weight_only:
            return "inside a subgraph: its weight is int8, its activations have no measured range and stay float"
        if line.kind is Kind.PRODUCT and not self.wanted.get(self._end(node), False):
            return line.why + "; its result stays float, as no integer operator reads it"
        if node.outputs[0] in self.regions.source:
            return f"part of a function of {self.regions.source[node.outputs[0]]!r}: one table of levels"
        return line.why


def _one_matrix(node: Node, rank: int) -> bool:
    """False for a stack of matrices, whose columns differ from matrix to matrix."""
    return node.op_type != "MatMul" or rank == 2


class _Groups:
    """Tensors that share one range: a union-find."""

    def __init__(self) -> None:
        self._parent: dict[str, str] = {}

    def root(self, value: str) -> str:
        while (parent := self._parent.get(value, value)) != value:
            value = parent
        return value

    def join(self, a: str, b: str) -> None:
        self._parent[self.root(b)] = self.root(a)


def _nothing(model: Model, reasons: Mapping[str, str]) -> str:
    counts: dict[str, int] = {}
    for _, node in model.nodes():
        reason = reasons.get(node.name, "no integer operator reads its result")
        counts[reason] = counts.get(reason, 0) + 1
    worst = max(counts, key=lambda r: counts[r]) if counts else "the graph has no nodes"
    return f"nothing to quantize: no node can work on integers (most often: {worst})"
