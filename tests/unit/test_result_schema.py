# SPDX-License-Identifier: Apache-2.0
"""docs/evaluate.md names every key of result.json, and no other."""

import json
import re
from dataclasses import fields
from pathlib import Path

from tests.unit.test_regression import evaluation
from wia_quant.evaluation import SCHEMA, LayerError
from wia_quant.evaluators.metric import Metric

TEXT = (Path(__file__).parents[2] / "docs" / "evaluate.md").read_text(encoding="utf-8").partition("## result.json")[2]


def row(key: str) -> str:
    return re.findall(rf"^\| `{key}` \| (.*) \|$", TEXT, re.M)[0]


def test_its_keys_are_those_of_the_file_in_their_order() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.M) == list(json.loads(evaluation().to_json()))
    assert row("schema") == str(SCHEMA)


def test_metrics_and_layers_have_the_fields_that_it_names() -> None:
    for key, kind in (("metrics", Metric), ("layers", LayerError)):
        named = set(re.findall(r"`([a-z_]+)`", row(key)))
        assert {field.name for field in fields(kind)} <= named
