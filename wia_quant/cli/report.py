# SPDX-License-Identifier: Apache-2.0
"""``wia-quant report``: what quantization did to a model, as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wia_quant.cli import options, output
from wia_quant.errors import UsageError


def report(
    model: options.Model,
    reference: options.Reference = None,
    data: options.Data = None,
    labels: options.Labels = None,
    task: options.Task = None,
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for report.html, report.json, report.md.")
    ] = Path("wia-report"),
    preprocess: options.Preprocess = None,
    samples: options.Samples = 1_000_000,
    seed: options.Seed = 0,
    batch: options.Batch = 1,
    workers: options.Workers = 1,
    threads: options.Threads = 1,
    strict: options.Strict = False,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Compare a quantized model with its float one: accuracy, layers, ranges, flips, speed, as a page."""
    if reference is None or data is None:
        raise UsageError("a report compares with the float model on data; give --reference FLOAT.onnx and --data PATH")
    # Drawing needs the extra; without it the other commands work.
    from wia_quant.reports.gather import report as gather
    from wia_quant.reports.summary import metric_rows
    from wia_quant.reports.write import check_folder, write_report

    check_folder(out, force=force)
    with output.progress() as progress:
        found = gather(
            model,
            reference,
            data,
            labels=labels,
            task=task,
            preprocess=preprocess,
            samples=samples,
            seed=seed,
            batch=batch,
            workers=workers,
            threads=threads,
            strict=strict,
            progress=progress,
        )
    paths = write_report(found, out, force=force)
    if json:
        output.show_json(found.to_dict())
        return
    rows = [(r["name"], r["before"], r["after"], r["interval"]) for r in metric_rows(found)]
    output.show_table("", ("metric", "float", "quantized", "95 % interval"), rows)
    for path in paths:
        output.show_line(f"written to {path}")
