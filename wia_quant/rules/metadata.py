# SPDX-License-Identifier: Apache-2.0
"""A file that says it is of the wia format carries the metadata that the format asks for."""

from __future__ import annotations

import json
from collections.abc import Iterator

from wia_quant.graph import metadata_of
from wia_quant.qdq import ModelView
from wia_quant.rules.base import Place, Rule, Severity

VERSION = "1"
_KEYS = ("wia.tool", "wia.recipe", "wia.source_sha256", "wia.calibration", "wia.target", "wia.tensors")
_JSON = ("wia.recipe", "wia.calibration")


def find(model: ModelView) -> Iterator[Place]:
    """Missing keys, another version, values that are not the JSON they should be. Other tools' files have none."""
    found = metadata_of(model.model)
    if "wia.format" not in found:
        return
    if found["wia.format"] != VERSION:
        yield Place(f"wia.format is {found['wia.format']!r}; this tool knows {VERSION!r}", "use a newer wia-quant")
        return
    for key in _KEYS:
        if key not in found:
            yield Place(f"metadata '{key}' is missing", "quantize again from the float model")
    for key in _JSON:
        try:
            json.loads(found.get(key, "{}"))
        except ValueError as error:
            yield Place(f"metadata '{key}' is not JSON: {error}", "quantize again from the float model")


RULE = Rule("the metadata of the format is complete", Severity.ERROR, find)
