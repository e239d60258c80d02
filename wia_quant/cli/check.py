# SPDX-License-Identifier: Apache-2.0
"""``wia-quant check``: is a QDQ model of the wia format, and fit for a device?"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Final

import typer

from wia_quant import conformance
from wia_quant.cli import options, output
from wia_quant.files import check_writable, replacing
from wia_quant.graph import read_proto, save
from wia_quant.rules import RULES, TARGET_RULES, Finding, fix_model
from wia_quant.targets.target import load_target

#: Exit code of a model that does not conform.
NOT_CONFORMING: Final = 4


def check(
    model: options.Model,
    fix: Annotated[
        Path | None,
        typer.Option(
            "--fix", metavar="OUT.onnx", help="Mend what can be mended safely, into this file.", show_default=False
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="NAME|FILE.json", help="Also check that this device takes it.", show_default=False
        ),
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Check any QDQ model, ours or another tool's, against the format; exit 4 when it does not conform."""
    device = None if target is None else load_target(target)
    if fix is not None:
        check_writable([fix], force=force)
    proto = read_proto(model)
    mended: dict[str, int] = {}
    if fix is not None:
        mended = fix_model(proto)
        with replacing(fix, force=force) as temporary:
            save(proto, temporary)
    found = conformance.check(proto, device)
    if json:
        output.show_json({"model": str(model), **found.to_dict(), "mended": mended})
    else:
        rows = [(f.severity.value, f.rule, _where(f), f.message, f.remedy) for f in found.findings]
        output.show_table("", ("", "rule", "where", "what", "remedy"), rows)
        for rule, n in mended.items():
            output.show_line(f"mended {n} x {rule}: {RULES[rule].summary}")
        counts = Counter(f.severity.value for f in found.findings)
        verdict = "conforms" if found.ok else "does not conform"
        n_rules, of = len(RULES), ""
        if device is not None:
            n_rules, of = n_rules + len(TARGET_RULES), f" to target {device.name}"
        output.show_line(f"{model} {verdict}{of}: {counts['error']} errors, {counts['note']} notes by {n_rules} rules")
    if not found.ok:
        raise typer.Exit(NOT_CONFORMING)


def _where(finding: Finding) -> str:
    """Node and tensor, whichever there are."""
    return " ".join(part for part in (finding.node, finding.tensor and f"at '{finding.tensor}'") if part)
