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

from wia_quant.affine import INT8, INT16_SYMMETRIC, UINT8, QParams, QType
from wia_quant.errors import ExportError
from wia_quant.qdq import DEQUANTIZE, QUANTIZE, Dequantized, GraphView, view_model

_GRIDS: dict[int, QType] = {TensorProto.INT8: INT8, TensorProto.UINT8: UINT8, TensorProto.INT16: INT16_SYMMETRIC}


@dataclass(frozen=True)
class TrainedWeight:
    """A weight and its grid.

    Attributes:
        values: float32, as before rounding.
        qparams: where its levels lie.
    """

    values: npt.NDArray[np.float32]
    qparams: QParams

    @property
    def axis(self) -> int | None:
        """Of the scales; None per tensor."""
        return self.qparams.axis

    @property
    def scale(self) -> npt.NDArray[np.float32]:
        """[] or [n]."""
        return self.qparams.scale


@dataclass(frozen=True)
class Encodings:
    """What training decided.

    Attributes:
        model: the float model: no QuantizeLinear or DequantizeLinear left.
        activations: tensor -> its grid.
        weights: weight -> its values and scales.
        readers: activation -> names of the nodes that read its rounded values.
        also_raw: the activations whose unrounded values are read, too.
    """

    model: onnx.ModelProto
    activations: Mapping[str, QParams]
    weights: Mapping[str, TrainedWeight]
    readers: Mapping[str, frozenset[str]]
    also_raw: frozenset[str]


def take_apart(proto: onnx.ModelProto) -> Encodings:
    """Reads off the grids of ``proto`` and removes its Q and DQ; ``proto`` itself is not changed.

    Raises:
        ExportError: a DequantizeLinear without its QuantizeLinear, or a grid that is not constant; names the node.
    """
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    activations: dict[str, QParams] = {}
    weights: dict[str, TrainedWeight] = {}
    readers: dict[str, frozenset[str]] = {}
    also_raw: set[str] = set()
    for view in view_model(model).graphs:
        real: dict[str, str] = {}
        for tensor in view.dequantized.values():
            if tensor.quantize_node is None or tensor.scale is None or tensor.zero_point is None:
                raise ExportError(f"{view.where(tensor.node)} has no QuantizeLinear with constant parameters before it")
            source = _resolve(real, tensor.source)
            real[tensor.name] = source
            values = view.constant(tensor.source)
            if values is not None:
                weights[source] = TrainedWeight(values.astype(np.float32), _grid(view, tensor))
            else:
                activations.setdefault(source, _grid(view, tensor))
                readers[source] = readers.get(source, frozenset()) | _readers(view, tensor.name)
                if _readers(view, source) or source in view.output_names:
                    also_raw.add(source)
        _bypass(view, real)
        for old, new in _name_outputs(view, real).items():
            if old in activations:
                activations[new], readers[new] = activations.pop(old), readers.pop(old)
    return Encodings(model, activations, weights, readers, frozenset(also_raw))


def _readers(view: GraphView, name: str) -> frozenset[str]:
    return frozenset(node.name for node in view.consumers.get(name, ()) if node.op_type != QUANTIZE)


def _grid(view: GraphView, tensor: Dequantized) -> QParams:
    assert tensor.scale is not None
    assert tensor.zero_point is not None
    if tensor.elem_type not in _GRIDS:
        raise ExportError(f"{view.where(tensor.node)}: '{tensor.source}' is none of int8, uint8 and int16")
    grid = _GRIDS[tensor.elem_type]
    axis = tensor.axis if tensor.scale.ndim else None
    if axis is not None and view.constant(tensor.source) is None:
        raise ExportError(f"{view.where(tensor.node)}: activation '{tensor.source}' has {tensor.scale.size} scales")
    return QParams(grid, tensor.scale.astype(np.float32), tensor.zero_point.astype(grid.dtype), axis)


def _bypass(view: GraphView, real: Mapping[str, str]) -> None:
    kept = []
    for node in view.graph.node:
        if node.op_type in (QUANTIZE, DEQUANTIZE):
            continue
        for i, name in enumerate(node.input):
            node.input[i] = _resolve(real, name)
        kept.append(node)
    del view.graph.node[:]
    view.graph.node.extend(kept)


def _name_outputs(view: GraphView, real: Mapping[str, str]) -> dict[str, str]:
    """An output of the graph keeps its name: the tensor that is now returned takes it. Old name -> new name."""
    inputs = {info.name for info in view.graph.input} | {t.name for t in view.graph.initializer}
    kept = {output.name for output in view.graph.output}
    renamed: dict[str, str] = {}
    for output in view.graph.output:
        if output.name not in real:
            continue
        source = _resolve(real, output.name)
        if source in inputs or source in kept or source in renamed:
            view.graph.node.append(onnx.helper.make_node("Identity", [renamed.get(source, source)], [output.name]))
        else:
            renamed[source] = output.name
    for node in view.graph.node:
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = renamed.get(name, name)
    return renamed


def _resolve(real: Mapping[str, str], name: str) -> str:
    while name in real:
        name = real[name]
    return name
