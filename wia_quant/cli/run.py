# SPDX-License-Identifier: Apache-2.0
"""``wia-quant run``: a model on data, in libwia."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from wia_quant.cli import options, output
from wia_quant.errors import UsageError
from wia_quant.inference import Answer, run_model

#: Rows of a table that a person reads; --json and --out have them all.
ROWS: Final = 20


def run(
    model: options.Model,
    data: options.Data = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE.npz", help="Write every output there.", show_default=False),
    ] = None,
    preprocess: options.Preprocess = None,
    samples: options.Samples = 300,
    seed: options.Seed = 0,
    threads: options.Threads = 1,
    isa: options.Isa = None,
    strict: options.Strict = False,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Run a model on data: its answers, and how long they take."""
    if data is None:
        raise UsageError("no data; give --data PATH")
    with output.progress() as progress:
        result = run_model(
            model,
            data,
            out=out,
            force=force,
            preprocess=preprocess,
            samples=samples,
            seed=seed,
            threads=threads,
            isa=isa,
            strict=strict,
            progress=progress,
        )
    if json:
        output.show_json(result.to_dict())
        return
    output.say_data(result.data)
    rows = [(a.sample, a.output, list(a.shape), _answer(a), a.latency_ms) for a in result.answers[:ROWS]]
    output.show_table("Answers", ("sample", "output", "shape", "answer", "ms"), rows)
    if len(result.answers) > ROWS:
        output.show_line(f"... and {len(result.answers) - ROWS} more; --json prints all, --out writes them")
    output.show_line(f"{result.median_ms:.3g} ms a run in the median, 90 % within {result.p90_ms:.3g} ms")


def _answer(answer: Answer) -> str:
    if answer.top:
        return ", ".join(f"{index} ({value:.3g})" for index, value in answer.top)
    return f"{answer.lo:.3g} .. {answer.hi:.3g}, mean {answer.mean:.3g}"
