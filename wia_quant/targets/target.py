# SPDX-License-Identifier: Apache-2.0
"""A target: what a device accepts, read from a JSON file (targets/schema.json)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import mul
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx
import onnx.defs

from wia_quant.affine import INT8, INT8_NARROW, INT8_SYMMETRIC, UINT8, QType
from wia_quant.errors import PolicyError, UsageError
from wia_quant.targets.schema import faults, target_schema

#: Weights for devices that add two products in int16: twice 63 * 255 fits.
INT7_NARROW: Final = QType("int7_narrow", INT8_NARROW.dtype, -63, 63, symmetric=True)
#: Weights of other tools: int8 with -128, and uint8 around 128.
_INT8_WIDE: Final = QType("int8", np.dtype(np.int8), -128, 127, symmetric=True)
_UINT8_WEIGHTS: Final = QType("uint8", np.dtype(np.uint8), 0, 255, symmetric=True)

_ACTIVATIONS: Final = MappingProxyType({t.name: t for t in (INT8, UINT8, INT8_SYMMETRIC)})
_WEIGHTS: Final = MappingProxyType({t.name: t for t in (INT8_NARROW, INT7_NARROW, _INT8_WIDE, _UINT8_WEIGHTS)})
_SCHEMES: Final = ("w8a8", "w8a16", "w8", "w4", "fp16")

Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Limit:
    """What an attribute may be; of a list, each of its numbers.

    Attributes:
        least: inclusive; None is no limit.
        most: inclusive; None is no limit.
        one_of: the values there are; None is any.
    """

    least: float | None = None
    most: float | None = None
    one_of: tuple[Any, ...] | None = None  # Any: JSON

    def against(self, name: str, value: object) -> str | None:
        """Why ``value`` is not taken; None when it is."""
        for v in value if isinstance(value, list | tuple) else [value]:
            if self.one_of is not None and v not in self.one_of:
                return f"{name} {v}, but only {', '.join(map(str, self.one_of))}"
            if isinstance(v, int | float) and self.most is not None and v > self.most:
                return f"{name} {v}, at most {self.most:g}"
            if isinstance(v, int | float) and self.least is not None and v < self.least:
                return f"{name} {v}, at least {self.least:g}"
        return None


@dataclass(frozen=True)
class OperatorLimits:
    """One operator that a device has on integers.

    Attributes:
        max_tensor_dims: of what it reads and writes; None is no limit.
        attributes: attribute -> what it may be; an absent attribute is taken.
    """

    max_tensor_dims: int | None = None
    attributes: Mapping[str, Limit] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """What a device accepts.

    Attributes:
        name: recorded in the model.
        schemes: what it can run.
        activations: the grid of 8-bit activations that is written for it.
        other_activations: further ones that it takes.
        weights: the grid of 8-bit weights that is written for it.
        other_weights: further ones that it takes.
        per_channel: whether weights may have one scale a channel.
        runs_float: whether it, or its host, also has float operators.
        float_operators: op_types to keep float.
        operators: those it has on integers; None is all.
        max_tensor_dims: of any integer tensor; None is no limit.
        max_tensor_size: bytes of any integer tensor; None is no limit.
        max_batch_size: first dimension of the model's inputs; None is no limit.
        dynamic_shapes: whether inputs may have unknown dimensions.
    """

    name: str
    schemes: tuple[str, ...] = _SCHEMES
    activations: QType = INT8
    weights: QType = INT8_NARROW
    per_channel: bool = True
    float_operators: frozenset[str] = frozenset()
    other_activations: tuple[QType, ...] = ()
    other_weights: tuple[QType, ...] = ()
    runs_float: bool = True
    operators: Mapping[str, OperatorLimits] | None = None
    max_tensor_dims: int | None = None
    max_tensor_size: int | None = None
    max_batch_size: int | None = None
    dynamic_shapes: bool = True

    def reason_against(
        self, op_type: str, attributes: Mapping[str, object], tensors: Iterable[tuple[str, Shape | None, int]]
    ) -> str | None:
        """Why ``op_type`` cannot work on integers here; None when it can.

        Args:
            op_type: of ai.onnx.
            attributes: of the node, as Python values; absent ones are taken.
            tensors: name, shape and bytes an element of each tensor that it reads or writes as integers.
        """
        if (reason := self.reason_against_float(op_type)) is not None:
            return reason
        if self.operators is not None and op_type not in self.operators:
            return f"target {self.name} has no integer {op_type}"
        limits = OperatorLimits() if self.operators is None else self.operators[op_type]
        for name, limit in limits.attributes.items():
            if name in attributes and (reason := limit.against(name, attributes[name])) is not None:
                return f"target {self.name} does not take {reason}"
        for name, shape, width in tensors:
            if shape is not None and (reason := self._against_shape(name, shape, width, limits)) is not None:
                return reason
        return None

    def reason_against_float(self, op_type: str) -> str | None:
        """Why the weights of ``op_type`` stay float where activations are float; None when they need not."""
        return f"target {self.name} wants it float" if op_type in self.float_operators else None

    def reason_against_tensor(self, name: str, shape: Shape, width: int) -> str | None:
        """Why an integer tensor of this shape, ``width`` bytes an element, cannot be; None when it can."""
        return self._against_shape(name, shape, width, OperatorLimits())

    def reason_against_input(self, name: str, shape: Shape) -> str | None:
        """Why a model cannot have this input; None when it can."""
        if not self.dynamic_shapes and any(d is None for d in shape):
            return f"target {self.name} has no dynamic shapes; input {name!r} is {_shape_text(shape)}"
        if self.max_batch_size is not None and shape and (shape[0] or 0) > self.max_batch_size:
            return f"target {self.name} takes batches of at most {self.max_batch_size}; input {name!r} has {shape[0]}"
        return None

    def _against_shape(self, name: str, shape: Shape, width: int, limits: OperatorLimits) -> str | None:
        dims = min((d for d in (self.max_tensor_dims, limits.max_tensor_dims) if d is not None), default=None)
        if dims is not None and len(shape) > dims:
            return f"target {self.name} takes at most {dims} dimensions; {name!r} has {len(shape)}"
        size = reduce(mul, (d or 1 for d in shape), width)
        if self.max_tensor_size is not None and size > self.max_tensor_size:
            return f"target {self.name} takes tensors of at most {self.max_tensor_size} bytes; {name!r} has {size}"
        return None


#: The target when none is named.
DEFAULT: Final = "wia-cpu"


def built_in() -> list[str]:
    """The names of the targets that are shipped."""
    return sorted(p.stem for p in Path(__file__).parent.glob("*.json") if p.stem != "schema")


def load_target(name_or_path: str | Path | Target) -> Target:
    """A built-in target by name, or one from a JSON file.

    Raises:
        UsageError: no such target.
        PolicyError: the file is not a target; names the field that is wrong.
    """
    if isinstance(name_or_path, Target):
        return name_or_path
    known = built_in()
    path = Path(__file__).with_name(f"{name_or_path}.json") if str(name_or_path) in known else Path(name_or_path)
    if not path.is_file():
        raise UsageError(f"no target {str(name_or_path)!r}; built in: {', '.join(known)}; or give a .json file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise PolicyError(f"target {path}: cannot be read as JSON ({error})") from None
    fault = next(faults(content, target_schema()), None) or next(_unknown_names(content), None)
    if fault is not None:
        raise PolicyError(f"target {path}: {fault}")
    return _parse(content)


def _unknown_names(content: Mapping[str, Any]) -> Iterator[str]:  # Any: JSON, seen to fit the schema
    """Operators and attributes that ONNX does not have: a slip of the pen would lift a limit without a word."""
    for i, op_type in enumerate(content.get("float_operators", ())):
        if not onnx.defs.has(op_type):
            yield f"'float_operators[{i}]' is {op_type!r}, which is no ONNX operator"
    for op_type, entry in content.get("operators", {}).items():
        if not onnx.defs.has(op_type):
            yield f"'operators.{op_type}' is no ONNX operator"
            continue
        known = sorted(onnx.defs.get_schema(op_type).attributes)
        for name in entry.get("attributes", {}):
            if name not in known:
                field = f"operators.{op_type}.attributes.{name}"
                yield f"{field!r} is no attribute of {op_type}; it has {', '.join(known) or 'none'}"


def _parse(content: Mapping[str, Any]) -> Target:  # Any: JSON, seen to fit the schema
    operators = content.get("operators")
    return Target(
        name=content["name"],
        schemes=tuple(content.get("schemes", _SCHEMES)),
        activations=_ACTIVATIONS[content.get("activations", INT8.name)],
        weights=_WEIGHTS[content.get("weights", INT8_NARROW.name)],
        per_channel=content.get("per_channel", True),
        float_operators=frozenset(content.get("float_operators", ())),
        other_activations=tuple(_ACTIVATIONS[n] for n in content.get("other_activations", ())),
        other_weights=tuple(_WEIGHTS[n] for n in content.get("other_weights", ())),
        runs_float=content.get("float", True),
        operators=None if operators is None else {op: _limits(entry) for op, entry in operators.items()},
        max_tensor_dims=content.get("max_tensor_dims"),
        max_tensor_size=content.get("max_tensor_size"),
        max_batch_size=content.get("max_batch_size"),
        dynamic_shapes=content.get("dynamic_shapes", True),
    )


def _limits(entry: Mapping[str, Any]) -> OperatorLimits:  # Any: JSON
    return OperatorLimits(
        entry.get("max_tensor_dims"),
        {
            name: Limit(limit.get("min"), limit.get("max"), tuple(limit["one_of"]) if "one_of" in limit else None)
            for name, limit in entry.get("attributes", {}).items()
        },
    )


def _shape_text(shape: Shape) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"
