# SPDX-License-Identifier: Apache-2.0
"""Integer arithmetic on shapes becomes constants, element by element, even where some dimensions are dynamic.

Exported models compute paddings and target shapes with chains such as Shape - Slice - Concat. Each small
integer tensor is followed as an array of integers and unknowns.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
from onnx import TensorProto

from wia_quant.graph import Graph, Model, Node

#: Elements are ``int``, ``str`` (a named dimension) or ``None`` (not known).
Partial = npt.NDArray[np.object_]

_MAX_ELEMENTS: Final = 64
_INTEGERS: Final[MappingProxyType[int, type[np.signedinteger]]] = MappingProxyType(
    {TensorProto.INT64: np.int64, TensorProto.INT32: np.int32}
)


def fold_shapes(model: Model, keep: frozenset[str]) -> int:
    """Replace what the known dimensions determine by constants; give Reshape a constant shape with one -1."""
    known: dict[str, Partial] = {}
    edits = 0
    for graph, node in list(model.nodes()):
        if not node.standard or node.name in keep:
            continue
        if node.op_type == "Reshape":
            edits += _constant_reshape(model, graph, node, known)
            continue
        rule = _RULES.get(node.op_type)
        value = rule(model, node, known) if rule else None
        if value is None or value.size > _MAX_ELEMENTS or len(node.outputs) != 1:
            continue
        name = node.outputs[0]
        known[name] = value
        dtype = _INTEGERS.get(model.types.get(name, 0))
        if dtype is not None and all(isinstance(v, int) for v in value.flat):
            graph.nodes.remove(node)
            array = np.asarray(value.astype(dtype) if value.size else np.zeros(value.shape, dtype)).reshape(value.shape)
            from_array = np.ascontiguousarray(array).reshape(value.shape)
            _define(model, graph, name, from_array)
            edits += 1
    if edits:
        model.index()
    return edits


def _define(model: Model, graph: Graph, name: str, array: npt.NDArray[np.integer]) -> None:
    from onnx import numpy_helper

    model.add_tensor(graph, name, numpy_helper.from_array(array, name))
    model.types[name] = graph.initializers[name].data_type
    model.shapes[name] = array.shape


def _look(model: Model, known: dict[str, Partial], name: str) -> Partial | None:
    if name in known:
        return known[name]
    tensor = model.constants.get(name)
    if tensor is None or tensor.data_type not in _INTEGERS or int(np.prod(tensor.dims)) > _MAX_ELEMENTS:
        return None
    array = model.array(name)
    if array is None:
        return None
    value = np.empty(array.shape, dtype=object)
    value[...] = array.astype(object)
    return value


def _ints(model: Model, node: Node, known: dict[str, Partial], index: int, attribute: str) -> list[int] | None:
    """An integer list given as an attribute (older opsets) or as a constant input."""
    if attribute in node.attributes:
        return node.integers(attribute)
    value = _look(model, known, node.input(index))
    if value is None or not all(isinstance(v, int) for v in value.flat):
        return None
    return [int(v) for v in value.flat]


def _shape(model: Model, node: Node, known: dict[str, Partial]) -> Partial | None:
    shape = model.symbols.get(node.inputs[0], model.shape(node.inputs[0]))
    if shape is None:
        return None
    end = node.attribute("end")
    part = shape[node.integer("start", 0) : None if end is None else int(end)]  # type: ignore[call-overload]
    value = np.empty(len(part), dtype=object)
    value[:] = part
    return value


def _gather(model: Model, node: Node, known: dict[str, Partial]) -> Partial | None:
    data, index = _look(model, known, node.inputs[0]), model.array(node.inputs[1])
    if data is None or index is None or data.ndim == 0:
        return None
    try:
        return np.asarray(np.take(data, index.astype(np.int64), axis=node.integer("axis", 0)), dtype=object)
    except IndexError:
        return None


def _slice(model: Model, node: Node, known: dict[str, Partial]) -> Partial | None:
    data = _look(model, known, node.inputs[0])
    starts = _ints(model, node, known, 1, "starts")
    ends = _ints(model, node, known, 2, "ends")
    if data is None or data.ndim != 1 or starts is None or ends is None or len(starts) != 1 or len(ends) != 1:
        return None
    steps = _ints(model, node, known, 4, "steps") if node.input(4) else [1]
    if steps is None:
        return None
    end: int | None = ends[0]
    if steps[0] < 0 and end is not None and end < -len(data):
        end = None
    return data[starts[0] : end : steps[0]]


def _concat(model: Model, node: Node, known: dict[str, Partial]) -> Partial | None:
    parts = [_look(model, known, name) for name in node.inputs]
    if any(p is None or p.ndim != 1 for p in parts):
        return None
    return np.concatenate([p for p in parts if p is not None])


def _reshape_like(model: Model, node: Node, known: dict[str, Partial]) -> Partial | None:
    """Squeeze and Unsqueeze between scalars and vectors."""
    data = _look(model, known, node.inputs[0])
    if data is None:
        return None
    if node.op_type == "Unsqueeze":
        return data.reshape(1) if data.ndim == 0 else None
    return data.reshape(()) if data.shape == (1,) else None


def _cast(model: Model, node: Node, known: dict[str, Partial]) -> Partial | None:
    return _look(model, known, node.inputs[0]) if node.attribute("to") in _INTEGERS else None


def _arithmetic(model: Model, node: Node, known: dict[str, Partial]) -> Partial | None:
    a, b = _look(model, known, node.inputs[0]), _look(model, known, node.inputs[1])
    if a is None or b is None:
        return None
    function = _ARITHMETIC[node.op_type]

    def apply(x: object, y: object) -> int | None:
        return function(x, y) if isinstance(x, int) and isinstance(y, int) else None

    both = np.broadcast(a, b)
    results = [apply(x, y) for x, y in both]
    flat = np.empty(len(results), dtype=np.object_)
    flat[:] = results
    return flat.reshape(both.shape)


def _truncating_division(x: int, y: int) -> int | None:
    if y == 0:
        return None
    q = abs(x) // abs(y)
    return q if (x < 0) == (y < 0) else -q


_ARITHMETIC: Final[MappingProxyType[str, Callable[[int, int], int | None]]] = MappingProxyType(
    {"Add": lambda x, y: x + y, "Sub": lambda x, y: x - y, "Mul": lambda x, y: x * y, "Div": _truncating_division}
)

_RULES: Final[MappingProxyType[str, Callable[[Model, Node, dict[str, Partial]], Partial | None]]] = MappingProxyType(
    {
        "Shape": _shape,
        "Gather": _gather,
        "Slice": _slice,
        "Concat": _concat,
        "Squeeze": _reshape_like,
        "Unsqueeze": _reshape_like,
        "Cast": _cast,
        **dict.fromkeys(_ARITHMETIC, _arithmetic),
    }
)


def _constant_reshape(model: Model, graph: Graph, node: Node, known: dict[str, Partial]) -> int:
    """With one dimension unknown, -1 says the same as computing it."""
    if node.input(1) not in known or model.array(node.input(1)) is not None or node.integer("allowzero", 0):
        return 0
    data = model.symbols.get(node.inputs[0], ())
    target: list[object] = list(known[node.inputs[1]])
    # A named dimension that stands at the same place in the data is what 0 means.
    same = [i for i, d in enumerate(target) if isinstance(d, str) and i < len(data) and data[i] == d]
    if any(isinstance(d, int) and d == 0 for d in target):
        return 0
    free = [i for i, d in enumerate(target) if not isinstance(d, int) and i not in same]
    if len(free) > 1 or (free and any(isinstance(d, int) and d < 0 for d in target)):
        return 0
    sizes = [0 if i in same else -1 if i in free else d for i, d in enumerate(target)]
    node.inputs[1] = model.add_constant(graph, f"{node.name}/shape", np.array(sizes, dtype=np.int64))
    return 1
