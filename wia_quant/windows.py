# SPDX-License-Identifier: Apache-2.0
"""Convolutions and pools whose attributes no input can fit: said when a model is read, not by what trips over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import onnx

from wia_quant.errors import ModelError
from wia_quant.graph import Model, Node

#: Of any stride, dilation, pad or kernel size, as libwia's windows (docs/adr/0011).
LIMIT: Final = 2**30

_AUTO_PADS: Final = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER", "")


@dataclass(frozen=True)
class Window:
    """How an operator slides.

    Attributes:
        weight: the input that holds the weight; None for a pool, whose attribute says the kernel's size.
        transposed: the weight is [input channels, outputs of a group, ...] and a pad makes the output smaller.
        grows: pads are added to the input, so that the kernel must fit into both.
    """

    weight: int | None = None
    transposed: bool = False
    grows: bool = True


_POOL: Final = Window()
_CONV: Final = Window(1)
_TRANSPOSED: Final = Window(1, transposed=True, grows=False)

#: op_type -> its window. Those of com.microsoft are in it too: they have the same attributes.
WINDOWS: Final = MappingProxyType(
    {
        "Conv": _CONV,
        "ConvInteger": _CONV,
        "DeformConv": _CONV,
        "QLinearConv": Window(3),
        "ConvTranspose": _TRANSPOSED,
        "MaxPool": _POOL,
        "AveragePool": _POOL,
        "LpPool": _POOL,
        "QLinearAveragePool": _POOL,
        "MaxUnpool": Window(grows=False),
    }
)

#: Attribute -> the least value of each of its numbers.
_LEAST: Final = MappingProxyType(
    {"kernel_shape": 1, "strides": 1, "dilations": 1, "pads": 0, "output_padding": 0, "output_shape": 0}
)

#: Matrix products: none of their inputs may be an empty constant.
_PRODUCTS: Final = ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul")


def check_windows(model: Model) -> None:
    """Look at every convolution, pool and matrix product, those of subgraphs too.

    What is not known yet (the shape of an input, a weight computed by other nodes) is not looked at.

    Raises:
        ModelError: names the node, the attribute, and what it must be.
    """
    for _, node in model.nodes():
        window = WINDOWS.get(node.op_type)
        if window is not None:
            _check(model, node, window)
        elif node.op_type in _PRODUCTS:
            for name in node.inputs:
                _not_empty(model, node, name)


def _check(model: Model, node: Node, window: Window) -> None:
    lists = {name: node.integers(name) for name in _LEAST}
    for name, numbers in lists.items():
        if any(not _LEAST[name] <= n <= LIMIT for n in numbers or ()):
            _wrong(node, f"attribute {name!r} is {numbers}; each number must be {_LEAST[name]} to {LIMIT}")
    auto_pad = node.attribute("auto_pad", "NOTSET")
    if auto_pad not in _AUTO_PADS:
        _wrong(node, f"attribute 'auto_pad' is {auto_pad!r}; it must be one of {', '.join(filter(None, _AUTO_PADS))}")
    kernel, said = None, lists["kernel_shape"]
    x = _shape(model, node.input(0))
    if window.weight is None:
        if said is None:
            _wrong(node, "attribute 'kernel_shape' is missing")
        kernel = said
    elif (weight := _shape(model, node.input(window.weight))) is not None:
        _not_empty(model, node, node.input(window.weight))
        if len(weight) < 3:
            _wrong(node, f"weight {node.input(window.weight)!r} has the shape {list(weight)}; it needs 3 or more axes")
        kernel = list(weight[2:]) if None not in weight[2:] else None  # type: ignore[arg-type]
        if said is not None and kernel is not None and said != kernel:
            _wrong(node, f"attribute 'kernel_shape' is {said}, but the weight is {kernel}; they must be the same")
        _check_group(node, window, weight, x)
    else:
        kernel = said
    _check_group_number(node)
    if kernel is not None:
        _check_lengths(node, lists, kernel, x)
        _check_room(node, window, lists, kernel, x, str(auto_pad))


def _check_group_number(node: Node) -> None:
    group = node.integer("group", 1)
    if not 1 <= group <= LIMIT:
        _wrong(node, f"attribute 'group' is {group}; it must be 1 or more and divide the channels")


def _check_group(node: Node, window: Window, weight: Sequence[int | None], x: Sequence[int | None] | None) -> None:
    """The weight's channels, the input's and the groups belong together."""
    _check_group_number(node)
    group = node.integer("group", 1)
    if weight[0] is not None and weight[0] % group:
        _wrong(node, f"attribute 'group' is {group}, which does not divide the {weight[0]} channels of its weight")
    takes = weight[0] if window.transposed else None if weight[1] is None else weight[1] * group
    given = x[1] if x is not None and len(x) > 1 else None
    if takes is not None and given is not None and takes != given:
        _wrong(
            node,
            f"its weight {list(weight)} and attribute 'group' {group} take {takes} channels, "
            f"but the input {node.input(0)!r} has {given}",
        )


def _check_lengths(
    node: Node, lists: dict[str, list[int] | None], kernel: Sequence[int], x: Sequence[int | None] | None
) -> None:
    """One number for each axis that the kernel has, two of pads."""
    n = len(kernel)
    if x is not None and len(x) != n + 2:
        _wrong(node, f"its kernel has {n} axes, but the input {node.input(0)!r} has {len(x)}; it needs {n + 2}")
    for name, wanted in (("strides", (n,)), ("dilations", (n,)), ("pads", (2 * n,)), ("output_padding", (n,)),
                         ("output_shape", (n, n + 2))):  # fmt: skip
        numbers = lists[name]
        if numbers and len(numbers) not in wanted:
            _wrong(node, f"attribute {name!r} is {numbers}; a kernel of {n} axes needs {wanted[0]} numbers")


def _check_room(
    node: Node,
    window: Window,
    lists: dict[str, list[int] | None],
    kernel: Sequence[int],
    x: Sequence[int | None] | None,
    auto_pad: str,
) -> None:
    """Where the input's size is known, the kernel is not larger than it with its pads."""
    if x is None or not window.grows or auto_pad.startswith("SAME"):
        return
    n = len(kernel)
    pads = (lists["pads"] if auto_pad != "VALID" else None) or [0] * (2 * n)
    dilations = lists["dilations"] or [1] * n
    for axis, size in enumerate(x[2:]):
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        if size is not None and reach > size + pads[axis] + pads[n + axis]:
            _wrong(
                node,
                f"its kernel reaches over {reach} values of axis {axis + 2}, by 'dilations' {dilations[axis]}, but the "
                f"input {node.input(0)!r} has {size} there and 'pads' add {pads[axis] + pads[n + axis]}",
            )


def _not_empty(model: Model, node: Node, name: str) -> None:
    tensor = model.constants.get(name)
    if tensor is not None and 0 in tensor.dims:
        _wrong(node, f"weight {name!r} is empty: its shape is {list(tensor.dims)}")


def _shape(model: Model, name: str) -> Sequence[int | None] | None:
    """The shape as far as it is known, also of a Constant node that is not folded yet."""
    producer = model.producers.get(name)
    if producer is not None and producer.op_type == "Constant":
        value = producer.attribute("value")
        return tuple(value.dims) if isinstance(value, onnx.TensorProto) else None
    return model.shape(name)


def _wrong(node: Node, what: str) -> None:
    raise ModelError(f"{node.where}: {what}; correct the node, or export the model again")
