# SPDX-License-Identifier: Apache-2.0
"""Does a JSON value fit schema.json? The words of JSON Schema that schema.json uses, and errors that name the field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

#: Every word that this file understands; schema.json may use no other.
WORDS: Final = frozenset(
    {
        "$schema", "title", "description", "default", "type", "const", "enum", "required", "properties",
        "additionalProperties", "items", "minItems", "minimum", "minLength",
    }
)  # fmt: skip

_TYPES: Final[Mapping[str, tuple[tuple[type, ...], str]]] = MappingProxyType(
    {
        "object": ((dict,), "an object"),
        "array": ((list,), "a list"),
        "string": ((str,), "a text"),
        "boolean": ((bool,), "true or false"),
        "integer": ((int,), "a whole number"),
        "number": ((int, float), "a number"),
    }
)


@cache
def target_schema() -> dict[str, Any]:  # Any: JSON
    """schema.json."""
    content: dict[str, Any] = json.loads(Path(__file__).with_name("schema.json").read_text(encoding="utf-8"))
    return content


def faults(value: Any, schema: Mapping[str, Any], field: str = "") -> Iterator[str]:  # Any: JSON
    """What is wrong with ``value``, the outermost first: ``"'operators.Conv' must be an object"``."""
    if "const" in schema and (value != schema["const"] or isinstance(value, bool)):
        yield f"{_quoted(field)} must be {_shown(schema['const'])}, not {_shown(value)}"
    if "enum" in schema and not any(type(value) is type(v) and value == v for v in schema["enum"]):
        yield f"{_quoted(field)} is {_shown(value)}; it may be {', '.join(map(str, schema['enum']))}"
    if "type" in schema and not _is_of(value, schema["type"]):
        yield f"{_quoted(field)} must be {_TYPES[schema['type']][1]}, not {_shown(value)}"
    elif isinstance(value, dict):
        yield from _faults_of_object(value, schema, field)
    elif isinstance(value, list):
        if len(value) < schema.get("minItems", 0):
            yield f"{_quoted(field)} is empty"
        for i, item in enumerate(value):
            yield from faults(item, schema.get("items", {}), f"{field}[{i}]")
    elif isinstance(value, str) and len(value) < schema.get("minLength", 0):
        yield f"{_quoted(field)} is empty"
    elif isinstance(value, int | float) and value < schema.get("minimum", value):
        yield f"{_quoted(field)} is {_shown(value)}; the least is {schema['minimum']}"


def _faults_of_object(value: dict[str, Any], schema: Mapping[str, Any], field: str) -> Iterator[str]:
    known = schema.get("properties", {})
    for key in schema.get("required", ()):
        if key not in value:
            yield f"{_quoted(_join(field, key))} is missing"
    other = schema.get("additionalProperties", True)
    for key, item in value.items():
        if key in known:
            yield from faults(item, known[key], _join(field, key))
        elif other is False:
            yield f"unknown field {_join(field, key)!r}; known are {', '.join(sorted(known))}"
        elif isinstance(other, dict):
            yield from faults(item, other, _join(field, key))


def _is_of(value: Any, name: str) -> bool:
    return isinstance(value, _TYPES[name][0]) and (name == "boolean" or not isinstance(value, bool))


def _join(field: str, key: str) -> str:
    return f"{field}.{key}" if field else key


def _quoted(field: str) -> str:
    return repr(field) if field else "the file"


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else text[:37] + "..."
