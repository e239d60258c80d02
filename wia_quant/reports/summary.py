# SPDX-License-Identifier: Apache-2.0
"""A report in a few lines: its table of metrics, its costs, and the Markdown for a pull request."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from wia_quant.evaluation import worst_first
from wia_quant.evaluators.metric import Metric
from wia_quant.reports.gather import Report

#: Layers named in the summary.
N_LAYERS: Final = 5


def metric_rows(report: Report) -> list[dict[str, str]]:
    """One row a metric, the task's first, then the agreement with the float model."""
    before = {} if report.reference is None else {m.name: m for m in report.reference.metrics}
    rows = [_row(m, before.get(m.name)) for m in report.quantized.metrics]
    if report.reference is not None:
        rows += [_row(m, None) for m in report.agreement.metrics]
    return rows


def costs(report: Report) -> list[tuple[str, str]]:
    """Latency, memory and size, as text."""
    runtime, small, large = report.runtime, report.quantized.model["bytes"], report.agreement.reference["bytes"]
    rows = [
        (
            "one sample in libwia, median",
            f"{report.agreement.latency_ms['median']:.3g} ms ({runtime['isa']}, {runtime['threads']} threads)",
        ),
        ("quantized file", f"{small / 1e6:.2f} MB, {small / max(1, large):.3f} of the float file"),
        ("memory for tensors", f"{runtime['arena_bytes'] / 1e6:.2f} MB"),
        ("memory for weights", f"{runtime['weight_bytes'] / 1e6:.2f} MB"),
    ]
    if report.reference is not None:
        ms = f"{report.reference.latency_ms['median']:.3g} ms"
        rows.insert(1, ("float model in onnxruntime, as it was measured (no optimizations)", ms))
    return rows


def render_markdown(report: Report) -> str:
    """The summary for a pull request."""
    name = Path(str(report.quantized.model["path"])).name
    lines = [f"### Quantization of `{name}`", "", "| metric | float | quantized | 95 % interval |", "|---|---|---|---|"]
    lines += [f"| {r['name']} | {r['before']} | {r['after']} | {r['interval']} |" for r in metric_rows(report)]
    worst = worst_first(report.quantized.layers)[:N_LAYERS]
    if worst:
        lines += ["", "| worst layers | own SQNR | rounding alone | with all before |", "|---|---|---|---|"]
        for x in worst:
            figures = (x.local_sqnr_db, x.expected_sqnr_db, x.total_sqnr_db)
            lines.append(f"| {x.op_type} `{x.node}` | {' | '.join(f'{v:.1f} dB' for v in figures)} |")
    lines += ["", f"{len(report.flips)} of {report.quantized.data['n_samples']} samples changed their answer.", ""]
    lines += [f"- {what}: {value}" for what, value in costs(report)]
    lines += [f"- data: {s.message}; {s.remedy}" for s in report.symptoms]
    lines += [f"- {f.severity.value}: {f.rule}: {f.node or f.tensor}: {f.message}" for f in report.findings[:N_LAYERS]]
    return "\n".join(lines) + "\n"


def _row(after: Metric, before: Metric | None) -> dict[str, str]:
    return {
        "name": after.name,
        "before": "" if before is None else _value(before),
        "after": _value(after),
        "interval": f"{after.lo:.4g} .. {after.hi:.4g}" if after.method != "none" else "",
        "n": str(after.n),
    }


def _value(m: Metric) -> str:
    return f"{m.value:.4g}" + (f" {m.unit}" if m.unit else "")
