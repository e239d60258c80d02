# SPDX-License-Identifier: Apache-2.0
"""``wia-quant regress``: did a model get worse? A gate for CI."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Final

import typer

from wia_quant.cli import options, output
from wia_quant.errors import UsageError
from wia_quant.files import check_writable, replacing
from wia_quant.gate import LAYER_SAMPLES, MAX_DROP
from wia_quant.gate import regress as hold
from wia_quant.regression import Regression
from wia_quant.reports.junit import render_junit
from wia_quant.reports.regression_markdown import render_regression

#: Exit code of a gate that failed.
GATE_FAILED: Final = 3


def regress(
    baseline: Annotated[
        Path,
        typer.Option(
            "--baseline", metavar="BASE.json|MODEL", help="The evaluation, or model, to hold on to.", show_default=False
        ),
    ],
    current: Annotated[
        Path,
        typer.Option("--current", metavar="NEW.json|MODEL", help="The one under test.", show_default=False),
    ],
    max_drop: Annotated[
        list[str] | None,
        typer.Option(
            "--max-drop",
            metavar="POINTS|METRIC=POINTS",
            help=f"Points a metric may lose (percent and dB as they are, others times 100); default {MAX_DROP}.",
            show_default=False,
        ),
    ] = None,
    data: options.Data = None,
    reference: options.Reference = None,
    labels: options.Labels = None,
    task: options.Task = None,
    executor: options.Executor = "wia",
    layers: options.Layers = LAYER_SAMPLES,
    preprocess: options.Preprocess = None,
    samples: Annotated[
        int | None,
        typer.Option("--samples", metavar="N", min=1, help="Samples to use; by default the baseline's, or all."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Of their choice; by default the baseline's, or 0.")
    ] = None,
    batch: options.Batch = 1,
    workers: options.Workers = 1,
    threads: options.Threads = 1,
    strict: options.Strict = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE.xml", help="Write JUnit XML there.", show_default=False)
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="FILE.md", help="Write Markdown there.", show_default=False)
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Compare two evaluations metric by metric and layer by layer; exit 3 when one fell too far.

    Each side is a file that `wia-quant baseline` or `evaluate` wrote, or a model, which is measured on --data first.
    """
    general, own = _limits(max_drop or [])
    check_writable([p for p in (junit, markdown) if p is not None], force=force)
    with output.progress() as progress:
        found = hold(
            baseline,
            current,
            data,
            max_drop=general,
            max_drop_of=own,
            reference=reference,
            labels=labels,
            task=task,
            executor=executor,
            layers=layers,
            preprocess=preprocess,
            samples=samples,
            seed=seed,
            batch=batch,
            workers=workers,
            threads=threads,
            strict=strict,
            progress=progress,
        )
    for path, text in ((junit, render_junit(found)), (markdown, render_regression(found))):
        if path is not None:
            with replacing(path, force=force) as temporary:
                temporary.write_text(text, encoding="utf-8")
    if json:
        output.show_json(found.to_dict())
    else:
        _show(found)
    if not found.ok:
        raise typer.Exit(GATE_FAILED)


def _limits(given: list[str]) -> tuple[float, dict[str, float]]:
    general, own = MAX_DROP, {}
    for text in given:
        name, _, points = text.rpartition("=")
        try:
            value = float(points)
        except ValueError as error:
            raise UsageError(f"--max-drop {text}: a number or METRIC=number is needed") from error
        if not (math.isfinite(value) and value >= 0):
            raise UsageError(f"--max-drop {text}: a finite number of at least 0 is needed")
        if name:
            own[name] = value
        else:
            general = value
    return general, own


def _show(found: Regression) -> None:
    rows = [
        (
            m.name,
            f"{m.baseline:.4g}{m.unit}",
            f"{m.current:.4g}{m.unit}",
            f"{m.drop:+.3g}",
            f"{m.allowed:g}",
            _verdict(m.ok),
        )
        for m in found.metrics
    ]
    output.show_table("", ("metric", "baseline", "current", "drop", "allowed", ""), rows)
    suspects = [(s.node, s.op_type, s.baseline_db, s.current_db) for s in found.suspects[:10]]
    output.show_table("Layers most likely responsible", ("layer", "op", "own dB before", "now"), suspects)
    if found.flipped:
        output.show_line(f"{len(found.flipped)} samples changed their answer, first {found.flipped[0][0]}")
    for warning in found.warnings:
        output.say(f"note: {warning}")
    output.show_line("passed" if found.ok else "FAILED: accuracy fell too far")


def _verdict(ok: bool) -> str:
    return "ok" if ok else "too much"
