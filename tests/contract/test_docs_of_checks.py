# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/check.md and docs/doctor.md are made from the rules, the schema and the checks themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.conftest import GoldenCheck
from wia_quant.doctor import CHECKS
from wia_quant.doctor.changes import CHANGES
from wia_quant.rules import RULES, TARGET_RULES
from wia_quant.targets.schema import target_schema

DOCS = Path(__file__).parents[2] / "docs"


def first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    columns = head.split(" | ")
    lines = [head, " | ".join("---" for _ in columns), *(" | ".join(row) for row in rows)]
    return "".join(f"| {line} |\n" for line in lines)


def filled(path: Path, tables: Mapping[str, str]) -> str:
    text = path.read_text(encoding="utf-8")
    for name, content in tables.items():
        block = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        assert re.search(block, text, re.S), f"{path.name} has no block {name}"
        text = re.sub(block, lambda m, c=content: f"{m[1]}{c}{m[2]}", text, flags=re.S)  # type: ignore[misc]
    return text


def test_the_tables_of_check(golden: GoldenCheck) -> None:
    rules = [
        (f"`{name}`", r.summary, r.severity.value, first_line(r.find), first_line(r.fix) if r.fix else "-")
        for name, r in RULES.items()
    ]
    target_rules = [(f"`{name}`", r.summary, first_line(r.find)) for name, r in TARGET_RULES.items()]
    fields = [
        (f"`{name}`", entry["description"], f"`{entry['default']!r}`" if "default" in entry else "-")
        for name, entry in target_schema()["properties"].items()
    ]
    tables = {
        "rules": table("rule | the sentence | is an | finds | `--fix`", rules),
        "target rules": table("rule | the sentence | finds", target_rules),
        "fields": table("field | what it says | when absent", fields),
    }
    golden(DOCS / "check.md", filled(DOCS / "check.md", tables))


def test_the_tables_of_doctor(golden: GoldenCheck) -> None:
    checks = [(f"`{name}`", first_line(check)) for name, check in CHECKS.items()]
    changes = [(name, change.remedy) for name, change in CHANGES.items()]
    tables = {
        "checks": table("check | finds", checks),
        "changes": table("surer with | remedy", changes),
    }
    golden(DOCS / "doctor.md", filled(DOCS / "doctor.md", tables))
