# SPDX-License-Identifier: Apache-2.0
"""The report's pictures, drawn by Matplotlib as SVG text that stands in the page itself."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from wia_quant.errors import MissingExtraError
from wia_quant.evaluation import LayerError, worst_first
from wia_quant.reports.gather import Histogram
from wia_quant.sensitivity import Sensitivity

try:
    import matplotlib
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
except ImportError as error:
    raise MissingExtraError(
        "reports are drawn by Matplotlib; install it with: pip install 'wia-quant[report]'"
    ) from error

#: SQNR, in dB, at which a layer is drawn in the worst colour, and in the best.
_BAD_DB, _GOOD_DB = 10.0, 45.0
_INK, _MUTED, _ACCENT, _RANGE = "#1f2933", "#7b8794", "#2563eb", "#dc2626"
#: Widest picture of a network, in inches; longer ones are drawn denser.
_WIDTH: Final = 10.0


def network(layers: Sequence[LayerError], edges: Sequence[tuple[str, str]], n_named: int = 5) -> str:
    """The layers as dots from first to last, coloured by their own error where it is seen; the worst are named."""
    depth = _depths([x.node for x in layers], edges)
    place: dict[str, tuple[float, float]] = {}
    at_depth: dict[int, int] = {}
    for x in layers:
        d = depth[x.node]
        k = at_depth.get(d, 0)
        at_depth[d] = k + 1
        place[x.node] = (d, (k + 1) // 2 * (1 if k % 2 else -1))
    figure, axes = _figure(_WIDTH, 2.6)
    lines = [(place[a], place[b]) for a, b in edges if a in place and b in place]
    axes.add_collection(LineCollection(lines, colors="#cbd2d9", linewidths=0.8, zorder=1))
    xs, ys = (np.array([place[x.node][i] for x in layers]) for i in (0, 1))
    own = np.array([x.felt_sqnr_db for x in layers])
    dots = axes.scatter(
        xs, ys, c=own, cmap="RdYlGn", vmin=_BAD_DB, vmax=_GOOD_DB, s=46, edgecolors=_INK, linewidths=0.4, zorder=2
    )
    worst = worst_first(layers)[:n_named]
    lowest = float(ys.min()) if len(ys) else 0.0
    for rank, x in enumerate(sorted(worst, key=lambda x: place[x.node][0])):
        px, py = place[x.node]
        label = f"{_short(x.node)}  {x.felt_sqnr_db:.0f} dB"
        level = lowest - 0.9 - 0.75 * (rank % n_named)
        # A name stays inside the picture: left of its dot in the right half.
        right = px > (xs.max() + xs.min()) / 2
        axes.annotate(
            label, (px, py), xytext=(px, level), fontsize=8, color=_INK, ha="right" if right else "left",
            arrowprops={"arrowstyle": "-", "color": _MUTED, "linewidth": 0.7},
        )  # fmt: skip
    axes.set_ylim(lowest - 1.2 - 0.75 * n_named, (float(ys.max()) if len(ys) else 0.0) + 1)
    axes.axis("off")
    bar = figure.colorbar(dots, ax=axes, fraction=0.02, pad=0.01)
    bar.set_label("own SQNR, dB", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return _svg(figure)


def error_profile(layers: Sequence[LayerError]) -> str:
    """Own and accumulated SQNR along the network."""
    figure, axes = _figure(_WIDTH, 2.4)
    x = np.arange(len(layers))
    axes.stairs(
        [v.local_sqnr_db for v in layers], np.arange(len(layers) + 1) - 0.5, fill=True, color="#93c5fd",
        label="its own error",
    )  # fmt: skip
    axes.step(x, [v.expected_sqnr_db for v in layers], where="mid", color=_MUTED, linewidth=0.9, label="rounding alone")
    axes.plot(x, [v.total_sqnr_db for v in layers], color=_RANGE, linewidth=1.4, label="with all before it")
    axes.set_ylabel("SQNR, dB", fontsize=8)
    axes.set_xlabel("layers, first to last", fontsize=8)
    axes.set_ylim(0, max(60.0, *(v.local_sqnr_db for v in layers if v.local_sqnr_db < 100)) if layers else 60)
    axes.legend(fontsize=8, frameon=False)
    return _svg(figure)


def histogram(h: Histogram, unit: str) -> str:
    """Counts on a logarithmic scale, the grid's ends in red."""
    figure, axes = _figure(3.2, 1.5)
    edges = np.array(h.edges)
    # One outline, and the logarithm taken here: a patch a bin and a scale of its own are slow to draw.
    axes.stairs(np.log10(1 + np.array(h.counts)), edges, fill=True, color=_ACCENT)
    ends = [0, *range(1, 1 + int(np.log10(1 + max(h.counts, default=0))))]
    axes.set_yticks(ends, ["0", *(f"1e{e}" for e in ends[1:])])
    for end in (h.lo, h.hi):
        axes.axvline(end, color=_RANGE, linewidth=1)
    axes.set_xlabel(unit, fontsize=7)
    axes.tick_params(labelsize=6)
    return _svg(figure)


def sensitivity(found: Sequence[Sensitivity]) -> str:
    """Gain of the answer's SQNR with each layer float."""
    figure, axes = _figure(_WIDTH * 0.7, 0.26 * max(1, len(found)) + 0.6)
    names = [_short(s.node) for s in found][::-1]
    axes.barh(range(len(names)), [s.gain_db for s in found][::-1], color=_ACCENT)
    axes.set_yticks(range(len(names)), names)
    axes.axvline(0, color=_INK, linewidth=0.8)
    axes.set_xlabel("dB gained by the answer if this layer were float", fontsize=8)
    return _svg(figure)


def _depths(nodes: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """The longest path to each layer; the layers stand in an order that can be run."""
    before: dict[str, list[str]] = {}
    for a, b in edges:
        before.setdefault(b, []).append(a)
    depth: dict[str, int] = {}
    for node in nodes:
        depth[node] = 1 + max((depth.get(a, -1) for a in before.get(node, ())), default=-1)
    return depth


def _figure(width: float, height: float) -> tuple[Figure, Any]:  # Any: Matplotlib's axes
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(labelsize=7, colors=_INK)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _svg(figure: Figure) -> str:
    """SVG without a header, its size left to the page; the same figure gives the same text."""
    target = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "wia-quant", "svg.fonttype": "none"}):
        figure.savefig(target, format="svg", metadata={"Date": None})
    text = target.getvalue()
    return text[text.index("<svg") :]


def _short(name: str, length: int = 34) -> str:
    return name if len(name) <= length else "..." + name[3 - length :]
