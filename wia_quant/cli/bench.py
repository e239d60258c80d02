# SPDX-License-Identifier: Apache-2.0
"""``wia-quant bench``: how long a model takes in libwia, and in onnxruntime in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wia_quant.benchmark import benchmark
from wia_quant.cli import options, output
from wia_quant.errors import UsageError


def bench(
    model: options.Model,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            metavar="MODEL",
            help="One more model for onnxruntime, such as the float one.",
            show_default=False,
        ),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="NAME=N,N,...",
            help="Shape of an input that the model leaves open. May be repeated.",
            show_default=False,
        ),
    ] = None,
    threads: Annotated[
        list[int] | None,
        typer.Option(
            "--threads", metavar="N", min=1, help="Threads; may be repeated.  [default: 1]", show_default=False
        ),
    ] = None,
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=1, help="Timed runs of each engine.")] = 50,
    isa: options.Isa = None,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Time a model in libwia and in onnxruntime.

    Shown are median, 90th percentile and CPU time of one run on random inputs.
    Both take turns in one process; compare their ratio, not single times.
    """
    with output.progress() as progress:
        result = benchmark(
            model,
            against=against,
            shapes=_shapes(shape or []),
            threads=threads or [1],
            runs=runs,
            isa=isa,
            seed=seed,
            progress=progress,
        )
    if json:
        output.show_json(result.to_dict())
        return
    output.show_table(
        f"One run on {', '.join(f'{name} {kind}' for name, kind in result.inputs.items())}",
        ("engine", "model", "threads", "median ms", "p90 ms", "CPU ms", "times libwia", "by CPU"),
        [(t.engine, t.model, t.threads, t.median_ms, t.p90_ms, t.cpu_ms, t.ratio, t.cpu_ratio) for t in result.timings],
    )
    for note in result.notes:
        output.show_line(note)


def _shapes(given: list[str]) -> dict[str, list[int]]:
    shapes = {}
    for text in given:
        name, _, numbers = text.rpartition("=")
        try:
            shapes[name] = [int(n) for n in numbers.split(",")]
        except ValueError:
            shapes[name] = []
        if not name or not shapes[name] or min(shapes[name]) < 1:
            raise UsageError(f"--shape '{text}' is not NAME=N,N,...; for example --shape input=1,3,224,224")
    return shapes
