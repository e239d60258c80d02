# SPDX-License-Identifier: Apache-2.0
"""What a model file is: its graph, its scales, and how libwia would run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from wia_quant.errors import RuntimeFault
from wia_quant.graph import metadata_of, read_proto
from wia_quant.runtime import Session


@dataclass(frozen=True)
class Scale:
    """One quantized tensor of a QDQ model.

    Attributes:
        tensor: the float value that is quantized, or the weight that is dequantized.
        dtype: of its levels: "int8", "uint8" ...
        scale: the smallest and the largest of its scales; the same where there is one.
        zero_point: the zero point; None where channels differ.
        axis: the axis that has its own scales; None per tensor.
        n_scales: how many scales.
        weight: True for a constant.
    """

    tensor: str
    dtype: str
    scale: tuple[float, float]
    zero_point: int | None
    axis: int | None
    n_scales: int
    weight: bool


@dataclass(frozen=True)
class Inspection:
    """A model file seen from outside.

    Attributes:
        path: the file.
        size: its bytes.
        opset: domain -> version.
        inputs, outputs: "name float32[1,3,224,224]".
        operators: op_type -> how many nodes.
        metadata: the file's metadata; wia.* is explained in docs/format.md.
        scales: its quantized tensors.
        runtime: what libwia says of it (nodes, kernels, memory); None where it cannot run it.
        problem: why libwia cannot run it.
    """

    path: str
    size: int
    opset: Mapping[str, int]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    operators: Mapping[str, int]
    metadata: Mapping[str, str]
    scales: tuple[Scale, ...]
    runtime: Mapping[str, Any] | None
    problem: str | None

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def inspect(model: Path, *, threads: int = 1, isa: str | None = None) -> Inspection:
    """Read ``model`` and ask libwia how it would run it.

    Raises:
        ModelError: the file is not there or is no ONNX model.
    """
    proto = read_proto(model)
    runtime, problem = None, None
    try:
        runtime = Session(str(model), threads=threads, isa=isa).describe()
    except RuntimeFault as error:
        problem = str(error)
    constants = {tensor.name for tensor in proto.graph.initializer}
    return Inspection(
        path=str(model),
        size=model.stat().st_size,
        opset={entry.domain or "ai.onnx": entry.version for entry in proto.opset_import},
        inputs=tuple(_signature(value) for value in proto.graph.input if value.name not in constants),
        outputs=tuple(_signature(value) for value in proto.graph.output),
        operators=dict(Counter(node.op_type for node in proto.graph.node).most_common()),
        metadata=metadata_of(proto),
        scales=_scales(proto.graph),
        runtime=runtime,
        problem=problem,
    )


def _scales(graph: onnx.GraphProto) -> tuple[Scale, ...]:
    constants = {tensor.name: tensor for tensor in graph.initializer}
    found: dict[str, Scale] = {}
    for node in graph.node:
        weight = node.op_type == "DequantizeLinear" and node.input[0] in constants
        if not weight and node.op_type != "QuantizeLinear":
            continue
        if node.input[1] not in constants:
            continue
        scale = numpy_helper.to_array(constants[node.input[1]]).astype(np.float32)
        levels = _zero_point(node, constants)
        stored = numpy_helper.to_array(constants[node.input[0]]).dtype if weight else levels.dtype
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)
        found.setdefault(
            node.input[0],
            Scale(
                tensor=node.input[0],
                dtype=str(stored),
                scale=(float(scale.min()), float(scale.max())) if scale.size else (0.0, 0.0),
                zero_point=int(levels.flat[0]) if np.unique(levels).size == 1 else None,
                axis=axis if scale.ndim else None,
                n_scales=int(scale.size),
                weight=weight,
            ),
        )
    return tuple(found.values())


def _zero_point(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> np.ndarray[Any, Any]:
    if len(node.input) > 2 and node.input[2] in constants:
        return numpy_helper.to_array(constants[node.input[2]])
    return np.zeros((), dtype=np.uint8)  # the standard's default


def _signature(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)) if kind.elem_type else "?"
    shape: Sequence[object] = [
        dim.dim_param or (dim.dim_value if dim.HasField("dim_value") else "?") for dim in kind.shape.dim
    ]
    return f"{value.name} {dtype}[{','.join(str(n) for n in shape)}]"
