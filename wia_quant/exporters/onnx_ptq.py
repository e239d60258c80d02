# SPDX-License-Identifier: Apache-2.0
"""Post-training: a folded float model, a plan and ranges -> a QDQ model."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx

from wia_quant.affine import IntArray, QParams, quantize
from wia_quant.graph import Graph, Model, Node, make_node
from wia_quant.grids import Grids, Scales, channel_of_scale, uses_of_weights
from wia_quant.policy import Plan, WeightPlan
from wia_quant.weights import quantize_bias


@dataclass
class Export:
    """A QDQ model and what had to be decided while writing it.

    Attributes:
        model: the message, without metadata.
        notes: weight scales raised, weights duplicated, one sentence each.
        made: activation -> the name of its float form before Q, where that has another name.
    """

    model: onnx.ModelProto
    notes: list[str]
    made: dict[str, str]


def export(model: Model, plan: Plan, grids: Grids) -> Export:
    """Write ``model`` in QDQ form. ``model`` is edited and must not be used afterwards.

    Args:
        model: the folded float model the plan was made for.
        plan: what becomes integers.
        grids: where their levels lie.
    """
    writer = _Writer(model, plan, grids, list(grids.notes))
    writer.weights()
    writer.constants()
    writer.activations()
    model.index()
    model.sort()
    model.drop_unused()
    return Export(model.to_proto(), writer.notes, writer.made)


@dataclass(eq=False)
class _Writer:
    model: Model
    plan: Plan
    grids: Grids
    notes: list[str]
    made: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.nodes = {node.name: node for _, node in self.model.nodes()}
        self.graph_of = {node.name: graph for graph, node in self.model.nodes()}
        self._parameters: dict[str, tuple[str, str]] = {}
        self._scale_of_weight: dict[tuple[str, int], Scales] = {}

    # -- weights and biases ------------------------------------------------------------------------------------

    def weights(self) -> None:
        """Each weight once a grid; every use reads its DequantizeLinear; then the biases."""
        uses = uses_of_weights(self.plan)
        by_tensor: dict[str, int] = {}
        for tensor, _ in uses:
            by_tensor[tensor] = by_tensor.get(tensor, 0) + 1
        for tensor, n in by_tensor.items():
            if n > 1:
                self.notes.append(f"weight {tensor!r} is stored {n} times: its uses need scales along different axes")
        for (tensor, axis), group in uses.items():
            self._weight(tensor, axis, group)
        for bias in self.plan.biases:
            self._bias(self.nodes[bias.node], bias.index, self.nodes[bias.product])

    def _weight(self, tensor: str, axis: int | None, uses: list[WeightPlan]) -> None:
        w = self.model.floats(tensor)
        qtype = uses[0].qtype
        scale = self.grids.weights[(tensor, axis)]
        graph = self.model.owners[tensor]
        if uses[0].block:
            assert axis is not None
            value = self._dequantized_blocks(graph, tensor, w, scale, axis, uses[0])
        else:
            zero_point = np.full(scale.shape, qtype.middle, dtype=qtype.dtype)
            value = self._dequantized(
                graph, tensor, self.grids.levels(w, uses[0]), QParams(qtype, scale, zero_point, axis)
            )
        for use in uses:
            node = self.nodes[use.node]
            node.inputs[use.index] = value
            self._scale_of_weight[(use.node, use.index)] = scale
        others = [r for r in self.model.consumers(tensor) if tensor in r.inputs]
        planned = {(u.node, u.tensor) for u in self.plan.weights}
        for reader in others:
            if (reader.name, tensor) not in planned:
                reader.inputs = [value if v == tensor else v for v in reader.inputs]
                self.notes.append(f"{reader.where} stays float but reads the weight {tensor!r} of integers it shares")

    def _bias(self, node: Node, index: int, product: Node) -> None:
        name = node.inputs[index]
        bias = self.model.floats(name)
        weight_scale = self._scale_of_weight.get((product.name, 1))
        if weight_scale is None:
            return  # the weight is an activation: the bias stays float
        flat = bias.reshape(-1)
        channel = channel_of_scale(product, weight_scale.size, flat.size)
        levels, scale = quantize_bias(flat, self._input_scale(product), weight_scale.reshape(-1)[channel])
        graph, base = self.graph_of[node.name], f"{product.name}/bias"
        stored = self.model.add_constant(graph, f"{base}/quantized", levels.reshape(bias.shape))
        scale_name = self.model.add_constant(graph, f"{base}/scale", scale)
        node.inputs[index] = self._dequantize(graph, base, stored, scale_name, "", bias.ndim - 1)

    def _input_scale(self, node: Node) -> np.float32:
        return np.float32(self.grids.of(self.plan, node.inputs[0]).scale)

    def _dequantized(self, graph: Graph, base: str, levels: IntArray, qparams: QParams) -> str:
        stored = self.model.add_constant(graph, f"{base}/quantized", levels)
        scale = self.model.add_constant(graph, f"{base}/scale", qparams.scale)
        zero_point = self.model.add_constant(graph, f"{base}/zero_point", qparams.zero_point)
        return self._dequantize(graph, base, stored, scale, zero_point, qparams.axis)

    def _dequantized_blocks(
        self, graph: Graph, base: str, w: npt.NDArray[np.float32], scale: Scales, axis: int, use: WeightPlan
    ) -> str:
        stored = self.model.add_tensor(graph, self.model.fresh(f"{base}/quantized"), _int4(self.grids.levels(w, use)))
        scale_name = self.model.add_constant(graph, f"{base}/scale", scale)
        result = self.model.fresh(f"{base}/dequantized")
        node = make_node(
            "DequantizeLinear",
            [stored, scale_name],
            [result],
            self._node_name(f"{base}/dequantize"),
            {"axis": axis, "block_size": use.block},
        )
        self._add(graph, node)
        return result

    def _dequantize(self, graph: Graph, base: str, stored: str, scale: str, zero_point: str, axis: int | None) -> str:
        result = self.model.fresh(f"{base}/dequantized")
        inputs = [stored, scale, zero_point] if zero_point else [stored, scale]
        node = make_node("DequantizeLinear", inputs, [result], self._node_name(f"{base}/dequantize"))
        if axis is not None:
            node.set("axis", axis)
        self._add(graph, node)
        return result

    # -- activations ---------------------------------------------------------------------------------------------

    def constants(self) -> None:
        """Constants in activation positions become integers on the grid of their group."""
        for name, activation in self.plan.activations.items():
            if self.model.array(name) is None:
                continue
            qparams = self.grids.activations[activation.group]
            graph = self.model.owners[name]
            stored = self.model.add_constant(graph, f"{name}/quantized", quantize(self.model.floats(name), qparams))
            value = self._dequantize(graph, name, stored, *self._grid(activation.group), None)
            self._rewire(name, value)

    def activations(self) -> None:
        """Q and DQ on every planned tensor that is made while running."""
        for name in self.plan.activations:
            if self.model.array(name) is not None:
                continue
            if name in self.plan.integer_made:
                self._after_integers(name)
            else:
                self._before_integers(name)

    def _after_integers(self, name: str) -> None:
        """Its float form lives only up to Q; everyone, the graph's outputs too, reads what the integers say."""
        producer, graph = self.model.producers[name], self.model.owners[name]
        raw = self.model.fresh(f"{name}/float")
        producer.outputs = [raw if o == name else o for o in producer.outputs]
        self.made[name] = raw
        self._quantize_dequantize(graph, name, raw, name)

    def _before_integers(self, name: str) -> None:
        """Integer operators read DQ; those that work on floats read the tensor itself."""
        value = self.model.fresh(f"{name}/dequantized")
        self._quantize_dequantize(self.model.owners[name], name, name, value)
        self._rewire(name, value)

    def _rewire(self, name: str, value: str) -> None:
        wanted = self.plan.integer_readers.get(name, frozenset())
        for reader in self.model.consumers(name):
            if reader.name in wanted:
                reader.inputs = [value if v == name else v for v in reader.inputs]

    def _quantize_dequantize(self, graph: Graph, name: str, source: str, result: str) -> None:
        scale, zero_point = self._grid(self.plan.activations[name].group)
        levels = self.model.fresh(f"{name}/quantized")
        self._add(
            graph,
            make_node("QuantizeLinear", [source, scale, zero_point], [levels], self._node_name(f"{name}/quantize")),
        )
        self._add(
            graph,
            make_node("DequantizeLinear", [levels, scale, zero_point], [result], self._node_name(f"{name}/dequantize")),
        )

    def _grid(self, group: str) -> tuple[str, str]:
        """The constants that hold a group's parameters, in the main graph, made once."""
        if group not in self._parameters:
            qparams, main = self.grids.activations[group], self.model.main
            scale = self.model.add_constant(main, f"{group}/scale", qparams.scale)
            zero_point = self.model.add_constant(main, f"{group}/zero_point", qparams.zero_point)
            self._parameters[group] = (scale, zero_point)
        return self._parameters[group]

    def _add(self, graph: Graph, node: Node) -> None:
        graph.nodes.append(node)
        self.nodes[node.name] = node
        for value in node.outputs:
            self.model.owners[value] = graph

    def _node_name(self, base: str) -> str:
        name, i = base, 0
        while name in self.nodes:
            i += 1
            name = f"{base}_{i}"
        return name


def _int4(levels: IntArray) -> onnx.TensorProto:
    """Two levels a byte, the first in the low half; an odd last one is followed by zero."""
    flat = levels.reshape(-1).astype(np.uint8) & 0x0F
    flat = np.append(flat, np.zeros(flat.size % 2, np.uint8))
    tensor = onnx.TensorProto(data_type=onnx.TensorProto.INT4, dims=levels.shape)
    tensor.raw_data = (flat[0::2] | (flat[1::2] << 4)).tobytes()
    return tensor
