# SPDX-License-Identifier: Apache-2.0
"""Small QDQ models, node by node, for tests of libwia's passes and quantized operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx.shape_inference
from onnx import TensorProto, helper, numpy_helper

from tests.oracle import Grid


class Builder:
    """Nodes in order; every method returns the name of the value it makes."""

    def __init__(self, opset: int = 19, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.feeds: dict[str, npt.NDArray[Any]] = {}
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def _name(self, stem: str) -> str:
        self._count += 1
        return f"{stem}_{self._count}"

    def constant(self, value: npt.ArrayLike, dtype: Any = np.float32) -> str:
        """An initializer."""
        name = self._name("c")
        self._initializers.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def input(self, shape: tuple[int, ...], spread: float = 1.0, dims: tuple[Any, ...] | None = None) -> str:
        """A float32 input with a random feed; ``dims`` is the declared shape where it is not ``shape``."""
        name = self._name("x")
        self.feeds[name] = (self.rng.standard_normal(shape) * spread).astype(np.float32)
        self._inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(dims or shape)))
        return name

    def node(self, op: str, inputs: list[str], n_outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        """A node; its output's name, or a list of them when there are several."""
        outputs = [self._name(op) for _ in range(n_outputs)]
        self._nodes.append(
            helper.make_node(op, inputs, outputs, name=outputs[0] + "_node", domain=domain, **attributes)
        )
        return outputs[0] if n_outputs == 1 else outputs

    def quantize(self, x: str, grid: Grid) -> str:
        """QuantizeLinear."""
        zero_point = self.constant(grid.zero_point, grid.dtype)
        return str(self.node("QuantizeLinear", [x, self.constant(grid.scale), zero_point]))

    def dequantize(self, q: str, grid: Grid) -> str:
        """DequantizeLinear."""
        zero_point = self.constant(grid.zero_point, grid.dtype)
        return str(self.node("DequantizeLinear", [q, self.constant(grid.scale), zero_point]))

    def fake(self, x: str, grid: Grid) -> str:
        """Q then DQ."""
        return self.dequantize(self.quantize(x, grid), grid)

    def activation(self, shape: tuple[int, ...], grid: Grid, dims: tuple[Any, ...] | None = None) -> str:
        """An input that fills the grid and beyond, quantized and dequantized."""
        return self.fake(self.input(shape, 80 * grid.scale, dims), grid)

    def weights(
        self,
        levels: npt.NDArray[Any],
        scale: npt.ArrayLike,
        axis: int | None = None,
        zero_point: npt.ArrayLike | None = None,
    ) -> str:
        """A constant of levels behind DequantizeLinear; per channel when ``axis`` is given."""
        inputs = [self.constant(levels, levels.dtype), self.constant(scale)]
        if zero_point is not None:
            inputs.append(self.constant(zero_point, levels.dtype))
        return str(self.node("DequantizeLinear", inputs, **({} if axis is None else {"axis": axis})))

    def output(self, name: str, dtype: int = TensorProto.FLOAT) -> str:
        """Makes a value an output of the model."""
        self._outputs.append(helper.make_tensor_value_info(name, dtype, None))
        return name

    def model(self) -> onnx.ModelProto:
        """The model so far, checked."""
        domains = sorted({n.domain for n in self._nodes} - {""})
        graph = helper.make_graph(self._nodes, "case", self._inputs, self._outputs, self._initializers)
        opsets = [helper.make_opsetid("", self._opset), *(helper.make_opsetid(d, 1) for d in domains)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=9)
        model = onnx.shape_inference.infer_shapes(model)  # for the shapes of the outputs
        del model.graph.value_info[:]
        if not domains:
            onnx.checker.check_model(model)
        return model
