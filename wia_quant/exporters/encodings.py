# SPDX-License-Identifier: Apache-2.0
"""A trained QDQ model taken apart: the float model, and the grids that training put on its tensors.

Whatever framework and whatever way of tracing a model came by, its file is then written by the one exporter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from wia_quant.affine import INT8, UINT8, QParams, QType
from wia_quant.errors import ExportError
from wia_quant.qdq import DEQUANTIZE, QUANTIZE, Dequantized, GraphView, view_model

_GRIDS: dict[int, QType] = {TensorProto.INT8: INT8, TensorProto.UINT8: UINT8}


@dataclass(frozen=True)
class TrainedWeight:
    """A weight and its grid.

    Attributes:
        values: float32.
        axis: of the scales; None per tensor.
        scale: float32, [] or [n].
    """

    values: npt.NDArray[np.float32]
    axis: int | None
    scale: npt.NDArray[np.float32]


@dataclass(frozen=True)
class Encodings:
    """What training decided.

    Attributes:
        model: the float model: no QuantizeLinear or DequantizeLinear left.
        activations: tensor -> its grid.
        weights: weight -> its values and scales.
    """

    model: onnx.ModelProto
    activations: Mapping[str, QParams]
    weights: Mapping[str, TrainedWeight]


def take_apart(proto: onnx.ModelProto) -> Encodings:
    """Reads off the grids of ``proto`` and removes its Q and DQ; ``proto`` itself is not changed.

    Raises:
        ExportError: a DequantizeLinear without its QuantizeLinear, or a grid that is not constant; names the node.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    activations: dict[str, QParams] = {}
    weights: dict[str, TrainedWeight] = {}
    for view in view_model(model).graphs:
        real: dict[str, str] = {}
        for tensor in view.dequantized.values():
            if tensor.quantize_node is None or tensor.scale is None or tensor.zero_point is None:
                raise ExportError(f"{view.where(tensor.node)} has no QuantizeLinear with constant parameters before it")
            source = _resolve(real, tensor.source)
            real[tensor.name] = source
            values = view.constant(tensor.source)
            if values is not None:
                axis = tensor.axis if tensor.scale.ndim else None
                weights[source] = TrainedWeight(values.astype(np.float32), axis, tensor.scale.astype(np.float32))
            else:
                activations.setdefault(source, _grid(view, tensor))
        _bypass(view, real)
    return Encodings(model, activations, weights)


def _grid(view: GraphView, tensor: Dequantized) -> QParams:
    assert tensor.scale is not None
    assert tensor.zero_point is not None
    if tensor.scale.size != 1:
        raise ExportError(f"{view.where(tensor.node)}: activation '{tensor.source}' has {tensor.scale.size} scales")
    if tensor.elem_type not in _GRIDS:
        raise ExportError(f"{view.where(tensor.node)}: '{tensor.source}' is neither int8 nor uint8")
    grid = _GRIDS[tensor.elem_type]
    zero_point = tensor.zero_point.reshape(()).astype(grid.dtype)
    return QParams(grid, tensor.scale.astype(np.float32).reshape(()), zero_point)


def _bypass(view: GraphView, real: Mapping[str, str]) -> None:
    kept = []
    for node in view.graph.node:
        if node.op_type in (QUANTIZE, DEQUANTIZE):
            continue
        for i, name in enumerate(node.input):
            node.input[i] = _resolve(real, name)
        kept.append(node)
    # An output of the graph keeps its name: the tensor that is now returned takes it.
    for output in view.graph.output:
        if output.name in real:
            kept.append(onnx.helper.make_node("Identity", [_resolve(real, output.name)], [output.name]))
    del view.graph.node[:]
    view.graph.node.extend(kept)


def _resolve(real: Mapping[str, str], name: str) -> str:
    while name in real:
        name = real[name]
    return name
