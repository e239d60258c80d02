# SPDX-License-Identifier: Apache-2.0
"""Each product quantized by itself beside the float model: what its own rounding does, layer by layer, in one run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx

from wia_quant.affine import QParams
from wia_quant.algorithms.base import Draft, Feeds, Progress
from wia_quant.calibrators import Observer
from wia_quant.calibrators.base import State
from wia_quant.graph import Graph, Model, Node, make_node
from wia_quant.grids import Grids, WeightKey, rounded_weight
from wia_quant.observe import Observations, observe
from wia_quant.policy import WeightPlan


def products(draft: Draft) -> list[tuple[Node, WeightPlan]]:
    """The products with a constant weight that will work on integers, in the main graph."""
    uses = {(w.node, w.index): w for w in draft.plan.weights}
    quantized = {d.node for d in draft.plan.decisions if d.quantized}
    return [
        (node, uses[(node.name, 1)])
        for node in draft.model.main.nodes
        if node.name in quantized and (node.name, 1) in uses and node.op_type != "Gather"
    ]


def run_beside(
    draft: Draft,
    batches: Sequence[Feeds],
    values: Callable[[Twin, Node, WeightPlan], Collection[str]],
    make: Callable[[], Observer],
    progress: Progress | None,
) -> Observations:
    """Observe, for every product, what ``values`` adds to the instrumented copy of the float model."""
    twin = Twin(draft)
    wanted = [name for node, use in products(draft) for name in values(twin, node, use)]
    return observe(twin.finish(), wanted, batches, make, progress=progress, n_batches=len(batches))


class Twin:
    """A copy of the float model in which every product gets a rounded twin.

    Attributes:
        exact: the float result of the product added last, without the bias of a MatMul.
        rounded: the same with input and weight on their grids.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._grids: Grids = draft.grids()
        self.model = Model(draft.model.to_proto())
        self.graph: Graph = self.model.main
        self._rounded_inputs: dict[tuple[str, float, int], str] = {}
        self._weights: dict[WeightKey, str] = {}
        self.exact, self.rounded = "", ""
        self._channels = 0

    def add(self, node: Node, use: WeightPlan, grid: QParams | None = None) -> Twin:
        """The twin of ``node``, its input on ``grid`` instead of that of the draft."""
        draft, scale = self._draft, self._grids.weights[(use.tensor, use.axis)]
        w = draft.model.floats(use.tensor)
        key = (use.tensor, use.axis)
        if key not in self._weights:
            rounded = rounded_weight(w, scale, use)
            self._weights[key] = self.model.add_constant(self.graph, f"{use.tensor}/twin", rounded)
        weight = self._weights[key]
        twin = Node(
            node.op_type, [self._rounded(node.inputs[0], grid), weight, *node.inputs[2:]], [], f"{node.name}/twin"
        )
        twin.attributes = dict(node.attributes)
        self._channels = (
            int(w.shape[0 if node.integer("transB", 0) else -1]) if node.op_type in ("Gemm", "MatMul") else 0
        )
        self.exact, self.rounded = node.outputs[0], self._emit(twin, f"{node.name}/twin")
        return self

    def emit(self, op_type: str, inputs: list[str], base: str, **attributes: object) -> str:
        """Add a node; returns its result's name."""
        return self._emit(make_node(op_type, inputs, [], base, attributes), base)

    def by_channel(self, node: Node, value: str) -> str:
        """A result of ``node`` with its channels on axis 1."""
        if node.op_type not in ("Gemm", "MatMul"):
            return value
        shape = self.model.add_constant(self.graph, f"{value}/shape", np.array([-1, self._channels], dtype=np.int64))
        return self.emit("Reshape", [value, shape], f"{value}/flat")

    def finish(self) -> onnx.ModelProto:
        """The instrumented model."""
        self.model.index()
        self.model.sort()
        return self.model.to_proto()

    def _rounded(self, name: str, grid: QParams | None) -> str:
        """``name`` put on its grid; itself when it stays float."""
        if name not in self._draft.plan.activations:
            return name
        qparams = grid or self._grids.of(self._draft.plan, name)
        key = (name, float(qparams.scale), int(qparams.zero_point))
        if key not in self._rounded_inputs:
            scale = self.model.add_constant(self.graph, f"{name}/twin/scale", qparams.scale)
            zero_point = self.model.add_constant(self.graph, f"{name}/twin/zero_point", qparams.zero_point)
            levels = self.emit("QuantizeLinear", [name, scale, zero_point], f"{name}/twin/quantize")
            self._rounded_inputs[key] = self.emit(
                "DequantizeLinear", [levels, scale, zero_point], f"{name}/twin/dequantize"
            )
        return self._rounded_inputs[key]

    def _emit(self, node: Node, base: str) -> str:
        result = self.model.fresh(f"{base}/result")
        node.outputs = [result]
        self.graph.nodes.append(node)
        self.model.owners[result] = self.graph
        return result


class Power:
    """The mean square of everything observed."""

    def __init__(self) -> None:
        self.n_values = 0
        self._total = 0.0

    def observe(self, x: npt.NDArray[Any]) -> None:
        flat = x.reshape(-1).astype(np.float64)
        self.n_values += flat.size
        self._total += float(flat @ flat)

    def mean(self) -> float:
        """0 until a value was observed."""
        return self._total / max(1, self.n_values)

    def merge(self, other: Self) -> None:
        raise NotImplementedError("powers are measured in one process")

    def state(self) -> State:
        raise NotImplementedError("powers are not stored")

    @classmethod
    def from_state(cls, state: State) -> Self:
        raise NotImplementedError("powers are not stored")
