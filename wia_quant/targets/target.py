# SPDX-License-Identifier: Apache-2.0
"""A target: what a device accepts, read from a JSON file (targets/schema.json)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from wia_quant.affine import INT8, INT8_NARROW, INT8_SYMMETRIC, UINT8, QType
from wia_quant.errors import PolicyError, UsageError

#: Weights for devices that add two products in int16: twice 63 * 255 fits.
INT7_NARROW: Final = QType("int7_narrow", INT8_NARROW.dtype, -63, 63, symmetric=True)

_ACTIVATIONS: Final = MappingProxyType({"int8": INT8, "uint8": UINT8, "int8_symmetric": INT8_SYMMETRIC})
_WEIGHTS: Final = MappingProxyType({"int8_narrow": INT8_NARROW, "int7_narrow": INT7_NARROW})
_SCHEMES: Final = ("w8a8", "w8a16", "w8", "w4")
_SCHEMA_VERSION: Final = 1


@dataclass(frozen=True)
class Target:
    """What a device accepts.

    Attributes:
        name: recorded in the model.
        schemes: what it can run.
        activations: the grid of 8-bit activations.
        weights: the grid of 8-bit weights.
        per_channel: whether weights may have one scale a channel.
        float_operators: op_types to keep float.
    """

    name: str
    schemes: tuple[str, ...] = _SCHEMES
    activations: QType = INT8
    weights: QType = INT8_NARROW
    per_channel: bool = True
    float_operators: frozenset[str] = frozenset()

    def reason_against(self, op_type: str) -> str | None:
        """Why this target wants ``op_type`` float; None when it does not."""
        return f"target {self.name} wants it float" if op_type in self.float_operators else None


#: The target when none is named.
DEFAULT: Final = "wia-cpu"


def load_target(name_or_path: str | Path | Target) -> Target:
    """A built-in target by name, or one from a JSON file.

    Raises:
        PolicyError: no such target, or the file is not a target; says which key.
    """
    if isinstance(name_or_path, Target):
        return name_or_path
    folder = Path(__file__).parent
    built_in = sorted(p.stem for p in folder.glob("*.json") if p.stem != "schema")
    path = folder / f"{name_or_path}.json" if str(name_or_path) in built_in else Path(name_or_path)
    if not path.is_file():
        raise UsageError(f"no target {str(name_or_path)!r}; built in: {', '.join(built_in)}; or give a .json file")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyError(f"target {path}: cannot be read as JSON ({error})") from None
    return _parse(content, path)


def _parse(content: Any, path: Path) -> Target:  # Any: JSON, checked key by key
    if not isinstance(content, Mapping):
        raise PolicyError(f"target {path}: not a JSON object")
    known = {"schema", "name", "summary", "schemes", "activations", "weights", "per_channel", "float_operators"}
    unknown = sorted(set(content) - known)
    if unknown:
        raise PolicyError(f"target {path}: unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}")
    if content.get("schema") != _SCHEMA_VERSION:
        raise PolicyError(f'target {path}: "schema" must be {_SCHEMA_VERSION}, not {content.get("schema")!r}')
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise PolicyError(f'target {path}: "name" must be a text')
    per_channel = content.get("per_channel", True)
    if not isinstance(per_channel, bool):
        raise PolicyError(f'target {path}: "per_channel" must be true or false')
    return Target(
        name,
        tuple(_texts(content, "schemes", path, _SCHEMES)),
        _ACTIVATIONS[_one_of(content, "activations", path, list(_ACTIVATIONS))],
        _WEIGHTS[_one_of(content, "weights", path, list(_WEIGHTS))],
        per_channel,
        frozenset(_texts(content, "float_operators", path, None)),
    )


def _one_of(content: Mapping[str, Any], key: str, path: Path, choices: list[str]) -> str:
    value = content.get(key, choices[0])
    if value not in choices:
        raise PolicyError(f"target {path}: {key!r} is {value!r}; it may be {', '.join(choices)}")
    return str(value)


def _texts(content: Mapping[str, Any], key: str, path: Path, choices: tuple[str, ...] | None) -> list[str]:
    values = content.get(key, list(choices or ()))
    if not isinstance(values, list) or not all(isinstance(v, str) for v in values):
        raise PolicyError(f"target {path}: {key!r} must be a list of texts")
    wrong = [v for v in values if choices is not None and v not in choices]
    if wrong:
        raise PolicyError(f"target {path}: {key!r} has {wrong[0]!r}; it may have {', '.join(choices or ())}")
    return list(values)
