# SPDX-License-Identifier: Apache-2.0
"""A regression as Markdown, for a pull request's comment or a CI summary."""

from __future__ import annotations

from wia_quant.regression import Regression

#: Suspects and flipped samples beyond these are counted, not listed.
MAX_ROWS = 10


def render_regression(regression: Regression) -> str:
    """A verdict, a table of metrics, the suspects, the samples that flipped."""
    lines = [f"**{'passed' if regression.ok else 'FAILED'}**: accuracy against the baseline", ""]
    lines += ["| metric | baseline | current | drop (points) | allowed | |", "|---|---|---|---|---|---|"]
    for m in regression.metrics:
        values = f"{m.baseline:.4g}{m.unit} | {m.current:.4g}{m.unit} | {m.drop:+.3g} | {m.allowed:g}"
        lines.append(f"| {_escape(m.name)} | {values} | {'ok' if m.ok else '**too much**'} |")
    if regression.suspects:
        lines += ["", "Layers most likely responsible:", "", "| layer | own SQNR before | now |", "|---|---|---|"]
        for s in regression.suspects[:MAX_ROWS]:
            lines.append(f"| {s.op_type} `{_escape(s.node)}` | {s.baseline_db:.1f} dB | {s.current_db:.1f} dB |")
        lines += _rest(len(regression.suspects))
    if regression.flipped:
        lines += ["", f"{len(regression.flipped)} samples changed their answer:", ""]
        for name, before, after in regression.flipped[:MAX_ROWS]:
            lines.append(f"- `{_escape(name)}`: {_escape(before)} -> {_escape(after)}")
        lines += _rest(len(regression.flipped))
    lines += [f"\nNote: {warning}" for warning in regression.warnings]
    return "\n".join(lines) + "\n"


def _rest(n: int) -> list[str]:
    return [f"\nand {n - MAX_ROWS} more"] if n > MAX_ROWS else []


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
