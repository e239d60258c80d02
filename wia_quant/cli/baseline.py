# SPDX-License-Identifier: Apache-2.0
"""``wia-quant baseline``: records how good a model is, for ``wia-quant regress`` to hold on to."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wia_quant.cli import options, output
from wia_quant.cli.evaluate import journal_of, show
from wia_quant.errors import UsageError
from wia_quant.gate import LAYER_SAMPLES
from wia_quant.gate import baseline as record


def baseline(
    model: options.Model,
    data: options.Data = None,
    reference: options.Reference = None,
    labels: options.Labels = None,
    task: options.Task = None,
    executor: options.Executor = "wia",
    layers: options.Layers = LAYER_SAMPLES,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="BASE.json", help="The record.")] = Path("baseline.json"),
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
    """Record how good a model is, layer by layer, for `wia-quant regress --baseline`.

    It is an evaluation as `wia-quant evaluate` writes it. Commit the file.
    """
    if data is None:
        raise UsageError("no data; give --data PATH")
    with output.progress() as progress, journal_of(out, force=force) as journal:
        found = record(
            model,
            data,
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
            journal=journal,
            progress=progress,
        )
        found.save(out, force=force)
    if json:
        output.show_json(found.to_dict())
        return
    show(found)
    if reference is None:
        output.say("note: without --reference no layer was measured, so none can be named when a model gets worse")
    output.show_line(f"written to {out}")
