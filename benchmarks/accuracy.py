# SPDX-License-Identifier: Apache-2.0
"""Task metrics and sizes of int8 files, ours and onnxruntime's, each run by onnxruntime and by libwia.

python -m benchmarks.accuracy [MODEL ...] [--producers wia-quant onnxruntime] [--json FILE] [--markdown FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import onnx

from benchmarks.executors import EXECUTORS
from benchmarks.models import TRAINED, Feeds, Model, Outputs, cache
from benchmarks.producers import PRODUCERS

RUN_BY = ("onnxruntime plain", "libwia")


@dataclass
class Row:
    """One file under one executor."""

    model: str
    producer: str
    executor: str
    metrics: dict[str, float] = field(default_factory=dict)
    size_ratio: float | None = None
    seconds_to_make: float | None = None
    valid: bool | None = None
    error: str = ""


def measure(
    model: Model, producers: Sequence[str], executors: Sequence[str], keep: bool = False, limit: int | None = None
) -> list[Row]:
    """The float model's row by onnxruntime, then every producer under every executor, on ``limit`` samples."""
    assert model.evaluation is not None
    assert model.metrics is not None
    samples = model.evaluation()[:limit]
    reference = run_all("onnxruntime plain", model.path(), samples)
    rows = [Row(model.name, "float", "onnxruntime plain", model.metrics(reference, reference), 1.0, valid=True)]
    if "libwia" in executors:
        rows.append(_row(model, "float", "libwia", model.path(), samples, reference))
    for producer in producers:
        target = cache() / f"{model.name}.{producer.replace(' ', '-')}.onnx"
        began = time.perf_counter()
        try:
            if not (keep and target.exists()):
                PRODUCERS[producer](model, target)
        except Exception as problem:  # a producer that fails is a result
            rows.append(Row(model.name, producer, "", error=_line(problem)))
            continue
        seconds = time.perf_counter() - began
        for executor in executors:
            row = _row(model, producer, executor, target, samples, reference)
            row.seconds_to_make = seconds
            rows.append(row)
    return rows


def run_all(executor: str, path: Path, samples: Sequence[Feeds]) -> list[Outputs]:
    """Every sample's outputs, on two threads."""
    run = EXECUTORS[executor](path, 2)
    return [run(sample) for sample in samples]


def markdown(rows: Sequence[Row]) -> str:
    """One table per model."""
    parts = []
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        keys = list(dict.fromkeys(key for row in mine for key in row.metrics))
        head = ["file", "run by", *keys, "size", "checker", "made in"]
        lines = [f"### {name}", "", f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
        for row in mine:
            if row.error:
                lines.append(f"| {row.producer} | {row.executor} | error: {row.error} |" + " |" * (len(head) - 3))
                continue
            made = "" if row.seconds_to_make is None else f"{row.seconds_to_make:.0f} s"
            values = [f"{row.metrics[key]:.4g}" for key in keys]
            cells = [
                row.producer,
                row.executor,
                *values,
                f"{row.size_ratio:.3f}",
                "ok" if row.valid else "FAILS",
                made,
            ]
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(TRAINED)}; default all")
    parser.add_argument("--producers", nargs="+", default=list(PRODUCERS), choices=list(PRODUCERS))
    parser.add_argument("--executors", nargs="+", default=list(RUN_BY), choices=list(EXECUTORS))
    parser.add_argument("--keep", action="store_true", help="use int8 files that are in the cache already")
    parser.add_argument("--limit", type=int, help="evaluate on the first so many samples only")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for name in arguments.models or TRAINED:
        rows += measure(TRAINED[name], arguments.producers, arguments.executors, arguments.keep, arguments.limit)
        print(markdown([row for row in rows if row.model == name]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        if arguments.markdown:
            arguments.markdown.write_text(markdown(rows))


def _row(
    model: Model,
    producer: str,
    executor: str,
    path: Path,
    samples: Sequence[dict],
    reference: Sequence[Outputs],
) -> Row:  # type: ignore[type-arg]
    assert model.metrics
    row = Row(model.name, producer, executor, size_ratio=path.stat().st_size / model.path().stat().st_size)
    try:
        onnx.checker.check_model(path, full_check=True)
        row.valid = True
    except Exception as problem:  # an invalid file is a result
        row.valid = False
        print(f"{model.name} {producer}: checker: {_line(problem)}", file=sys.stderr)
    try:
        row.metrics = model.metrics(reference, run_all(executor, path, samples))
    except Exception as problem:  # an executor that fails is a result
        row.error = _line(problem)
    return row


def _line(problem: Exception) -> str:
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}".replace("|", "/")


if __name__ == "__main__":
    main()
