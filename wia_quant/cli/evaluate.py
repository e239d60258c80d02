# SPDX-License-Identifier: Apache-2.0
"""``wia-quant evaluate``: how good a model is, by labels or against the float one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from wia_quant.cli import options, output
from wia_quant.errors import UsageError
from wia_quant.evaluation import Evaluation, worst_first
from wia_quant.evaluators.metric import Metric
from wia_quant.files import check_writable
from wia_quant.measurement import evaluate as measure

#: What an interrupted evaluation is kept in, beside its output.
PARTIAL: Final = ".partial"


def evaluate(
    model: options.Model,
    data: options.Data = None,
    reference: options.Reference = None,
    labels: options.Labels = None,
    task: options.Task = None,
    executor: options.Executor = "wia",
    layers: options.Layers = 0,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="RESULT.json", help="Write the result there.", show_default=False),
    ] = None,
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
    """Measure a model: task metrics with 95 % intervals, or its agreement with the float model.

    With -o, an interrupted run goes on where it was when the same command is given again.
    """
    if data is None:
        raise UsageError("no data; give --data PATH")
    with output.progress() as progress, journal_of(out, force=force) as journal:
        found = measure(
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
    if out is not None:
        found.save(out, force=force)
    if json:
        output.show_json(found.to_dict())
        return
    show(found)
    if out is not None:
        output.show_line(f"written to {out}")


@contextmanager
def journal_of(out: Path | None, *, force: bool) -> Iterator[Path | None]:
    """The file beside ``out`` that an interrupted run goes on from; says so when it is interrupted."""
    if out is None:
        yield None
        return
    check_writable([out], force=force)
    journal = out.with_name(out.name + PARTIAL)
    if force:
        journal.unlink(missing_ok=True)
    try:
        yield journal
    except KeyboardInterrupt as stop:
        kept = f"{journal} keeps what was measured; " if journal.exists() else ""
        raise KeyboardInterrupt(f"{kept}run the same command again to go on") from stop


def show(found: Evaluation) -> None:
    """The result for people."""
    n, skipped = found.data["n_samples"], found.data["skipped"]
    left_out = f", {skipped} skipped" if skipped else ""
    output.show_line(f"{found.task} of {found.model['path']} on {n} samples{left_out}, run by {found.executor['name']}")
    for note in found.data["notes"]:
        output.say(f"note: {note}")
    output.show_table("", ("metric", "value", "95 % interval", "samples"), [_row(m) for m in found.metrics])
    rows = [
        (x.node, x.op_type, x.local_sqnr_db, x.expected_sqnr_db, x.total_sqnr_db, f"{100 * x.clipped:.2g}%")
        for x in worst_first(found.layers)[:10]
    ]
    columns = ("layer", "op", "own dB", "rounding alone dB", "with all before dB", "clipped")
    output.show_table("The worst layers: errors that rounding does not explain first", columns, rows)
    if found.latency_ms:
        output.show_line(f"{found.latency_ms['median']:.3g} ms a sample in the median")


def _row(m: Metric) -> tuple[object, ...]:
    interval = f"{m.lo:.4g} .. {m.hi:.4g}" if m.method != "none" else ""
    return m.name, f"{m.value:.4g}{m.unit and ' ' + m.unit}", interval, m.n
