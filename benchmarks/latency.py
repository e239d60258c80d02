# SPDX-License-Identifier: Apache-2.0
"""Latency of libwia and its peers on the same model, all engines interleaved in one process.

    python -m benchmarks.latency [MODEL ...] [--threads 1 2] [--rounds N] [--json FILE] [--markdown FILE]

Medians of CPU time (of all threads) and of wall time. On a shared machine only the ratios of one run mean something.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.executors import EXECUTORS, Run
from benchmarks.models import Model, cache
from benchmarks.models.seeded import MODELS
from benchmarks.producers import PRODUCERS

OURS = "libwia, wia-quant file"

#: What runs: a name, an executor, and whose file; None is the float model.
ENGINES: tuple[tuple[str, str, str | None], ...] = (
    (OURS, "libwia", "wia-quant"),
    ("onnxruntime, float32", "onnxruntime", None),
    ("onnxruntime, wia-quant file", "onnxruntime", "wia-quant"),
    ("onnxruntime exact, wia-quant file", "onnxruntime precise", "wia-quant"),
    ("onnxruntime, own static file", "onnxruntime", "onnxruntime"),
    ("onnxruntime, own u8 7-bit file", "onnxruntime", "onnxruntime u8 7-bit"),
    ("onnxruntime, own dynamic file", "onnxruntime", "onnxruntime dynamic"),
    ("openvino, wia-quant file", "openvino", "wia-quant"),
    ("openvino, onnxruntime's file", "openvino", "onnxruntime"),
    ("libwia, float32", "libwia", None),
)


@dataclass
class Row:
    """One engine on one model."""

    model: str
    threads: int
    engine: str
    cpu_ms: float | None = None
    wall_ms: float | None = None
    rounds: int = 0
    error: str = ""


def measure(model: Model, threads: int, rounds: int, seconds: float, engines: Sequence[str]) -> list[Row]:
    """Every engine once per round, the order turned each round; at least ``rounds``, at most ``seconds`` beyond."""
    feeds = model.timing()
    runs: dict[str, Run] = {}
    rows = {name: Row(model.name, threads, name) for name in engines}
    for name, executor, producer in ENGINES:
        if name not in engines:
            continue
        try:
            run = EXECUTORS[executor](_file(model, producer), threads)
            for _ in range(3):
                run(feeds)
            runs[name] = run
        except Exception as problem:  # an engine that cannot is a result
            rows[name].error = f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}"
            print(f"{model.name}: {name}: {rows[name].error}", file=sys.stderr, flush=True)
    cpu: dict[str, list[float]] = {name: [] for name in runs}
    wall: dict[str, list[float]] = {name: [] for name in runs}
    order = list(runs)
    gc.disable()
    began = time.perf_counter()
    done = 0
    while order and done < rounds and (done < 7 or time.perf_counter() - began < seconds):
        for name in order:
            t0, c0 = time.perf_counter(), time.process_time()
            runs[name](feeds)
            c1, t1 = time.process_time(), time.perf_counter()
            cpu[name].append((c1 - c0) * 1e3)
            wall[name].append((t1 - t0) * 1e3)
        order = order[1:] + order[:1]
        done += 1
    gc.enable()
    for name in runs:
        row = rows[name]
        row.cpu_ms, row.wall_ms = statistics.median(cpu[name]), statistics.median(wall[name])
        row.rounds = done
    return list(rows.values())


def markdown(rows: Sequence[Row]) -> str:
    """One table per model and number of threads; the ratio is the engine's time over ours."""
    parts = [_settings()]
    for key in dict.fromkeys((row.model, row.threads) for row in rows):
        mine = [row for row in rows if (row.model, row.threads) == key]
        ours = next((row for row in mine if row.engine == OURS and row.cpu_ms), None)
        lines = [f"### {key[0]}, {key[1]} thread{'s' if key[1] > 1 else ''}", ""]
        lines += ["| engine | CPU ms | wall ms | CPU / ours | wall / ours |", "| --- | --- | --- | --- | --- |"]
        for row in mine:
            if row.cpu_ms is None or row.wall_ms is None:
                lines.append(f"| {row.engine} | {row.error.replace('|', '/')} | | | |")
                continue
            ratios = ["", ""]
            if ours and ours.cpu_ms and ours.wall_ms:
                ratios = [f"{row.cpu_ms / ours.cpu_ms:.2f}", f"{row.wall_ms / ours.wall_ms:.2f}"]
            lines.append(f"| {row.engine} | {row.cpu_ms:.2f} | {row.wall_ms:.2f} | {' | '.join(ratios)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def summary(rows: Sequence[Row]) -> str:
    """One line per model: ours, float32, the best int8 peer, the best exact int8 peer; ratios of CPU time."""
    lines = [
        "| model | threads | ours, CPU ms | onnxruntime float32 / ours | best int8 peer / ours | which |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for key in dict.fromkeys((row.model, row.threads) for row in rows):
        mine = {row.engine: row for row in rows if (row.model, row.threads) == key and row.cpu_ms}
        ours, base = mine.pop(OURS, None), mine.pop("onnxruntime, float32", None)
        mine.pop("libwia, float32", None)
        if not (ours and ours.cpu_ms and mine):
            continue
        best = min(mine.values(), key=lambda row: row.cpu_ms or 0.0)
        over = f"{base.cpu_ms / ours.cpu_ms:.2f}" if base and base.cpu_ms else ""
        assert best.cpu_ms is not None
        cells = [key[0], str(key[1]), f"{ours.cpu_ms:.2f}", over, f"{best.cpu_ms / ours.cpu_ms:.2f}", best.engine]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; default all")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seconds", type=float, default=20.0, help="stop after this long, if 7 rounds are done")
    parser.add_argument("--engines", nargs="+", default=[name for name, _, _ in ENGINES])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for name in arguments.models or MODELS:
        for threads in arguments.threads:
            new = measure(MODELS[name], threads, arguments.rounds, arguments.seconds, arguments.engines)
            rows += new
            print(markdown(new).split("\n\n", 1)[1], flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
            if arguments.markdown:
                arguments.markdown.write_text(markdown(rows) + "\n" + summary(rows))
    print(summary(rows))


def _file(model: Model, producer: str | None) -> Path:
    if producer is None:
        return model.path()
    path = cache() / f"{model.name}.{producer.replace(' ', '-')}.onnx"
    if not path.exists():
        PRODUCERS[producer](model, path)
    return path


def _settings() -> str:
    versions = []
    for package in ("onnxruntime", "openvino", "wia-quant"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"{package} (not installed as a package)")
    return f"{platform.machine()}, {platform.processor() or 'processor not named'}; {', '.join(versions)}."


if __name__ == "__main__":
    main()
