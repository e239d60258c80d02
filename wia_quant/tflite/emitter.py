# SPDX-License-Identifier: Apache-2.0
"""What writes an operator, and what it sees of the conversion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from wia_quant.builder import Array, Builder, Tensor
from wia_quant.tflite.reader import Op, TensorInfo


class Graph(Protocol):
    """What an emitter sees of the conversion."""

    b: Builder

    def x(self, op: Op, place: int) -> Tensor:
        """An input as reals."""
        ...

    def info(self, index: int) -> TensorInfo:
        """What the file says of a tensor."""
        ...

    def weight(self, op: Op, place: int, turn: Callable[[Array], Array], axis: int) -> str:
        """A constant int8 weight as reals, one scale along ``axis`` of its turned form."""
        ...

    def bias(self, op: Op, place: int) -> str | None:
        """A constant int32 bias as reals; None without one."""
        ...

    def constant(self, op: Op, place: int) -> Array:
        """The values of a constant input, as stored."""
        ...


def shape_of(g: Graph, op: Op) -> tuple[int | None, ...]:
    """What the file says of its first result."""
    return g.info(op.outputs[0]).shape


#: None of what only computes shapes; several for several outputs.
Emit = Callable[[Graph, Op], Tensor | list[Tensor] | None]
