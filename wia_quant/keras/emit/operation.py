# SPDX-License-Identifier: Apache-2.0
"""One call of a function outside layers, read alike from either Keras.

Keras 3 keeps an object of an operation's class, with its parameters as attributes; tf_keras a TFOpLambda that names
the function, with its parameters as arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wia_quant.builder import Builder, Tensor
from wia_quant.errors import ExportError
from wia_quant.keras.steps import Step

#: The default of a parameter that must be given.
REQUIRED: Final = object()

#: The place of a parameter that nobody gives by its place.
BY_NAME: Final = 99


#: What keras.ops and TensorFlow call the first operand of a function.
_FIRST_OPERANDS: Final = (
    "x", "input", "inputs", "input_tensor", "features", "logits", "tensor", "a", "t", "value", "images", "image",
    "operand", "params",
)  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One call of a function: its operands and parameters, whichever framework made it."""

    step: Step
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def parameter(self, name: str, place: int, default: Any = REQUIRED, aka: tuple[str, ...] = ()) -> Any:
        """A parameter as an attribute of the object, by its name, or by its place among the positional arguments.

        Args:
            name: as keras.ops has it.
            place: among the arguments of the function.
            default: where it is not given; without one it must be.
            aka: TensorFlow's names of it.
        """
        found = self._given(name, place, aka)
        if found is not REQUIRED:
            return found
        if default is REQUIRED:
            raise ExportError(f"operation '{self.step.name}': no parameter '{name}'")
        return default

    def _given(self, name: str, place: int, aka: tuple[str, ...]) -> Any:
        layer = self.step.layer
        if not hasattr(layer, "symbol") and hasattr(layer, name):
            return getattr(layer, name)  # of keras.ops: its arguments are operands only
        for known in (name, *aka):
            if known in self.kwargs:
                return self.kwargs[known]
        return self.args[place] if place < len(self.args) else REQUIRED

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Of the result."""
        return self.step.outputs[0].shape

    @property
    def x(self) -> Tensor:
        """The first operand."""
        for name in _FIRST_OPERANDS:
            if name in self.kwargs:
                found: Tensor = self.kwargs[name]
                return found
        first: Tensor = self.args[0]
        return first

    def axes(self, name: str, place: int, rank: int) -> list[int] | None:
        """A parameter of one axis or several, counted from the first; None where it is not given."""
        axis = self.parameter(name, place, None)
        if axis is None:
            return None
        return [int(a) % rank for a in (axis if isinstance(axis, list | tuple) else [axis])]


#: What writes an operation: one tensor, or several for several results.
Emit = Callable[[Builder, Operation], Tensor | list[Tensor]]
