# SPDX-License-Identifier: Apache-2.0
"""How far each layer of a quantized model is from its float self: by itself, and with all that came before.

A layer's own error is that of its weights and of its output grid, on float inputs. A wrong scale or axis shows there,
in the layer that has it and nowhere else; but so does a range that clips what the next layer would have clipped anyway.
So two errors are measured (copies.py), the layer's own and what its readers see of it, and each is compared with what
rounding explains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from wia_quant.copies import ALONE, EXPECTED, MOVED, SEEN, TYPICAL, WHOLE, Grid, combine, held_name, rounded_name
from wia_quant.evaluation import LayerError
from wia_quant.evaluators.agreement import SQNR_CEILING_DB
from wia_quant.executors import make_executor
from wia_quant.qdq import view_model
from wia_quant.stretches import Layer, cut

Feed = Mapping[str, npt.NDArray[Any]]
Progress = Callable[[int, int | None, str], None]

#: Bins of a layer's histogram; they span its grid and half of that again on both sides.
N_BINS: Final = 64
#: Values of a layer that are kept of each batch to find the best grid for them.
_KEPT: Final = 2048
#: Shares of the values' range that are tried as grids.
_SHARES: Final = tuple(0.95**i for i in range(32))
#: Share of a tensor's values that are its smallest, or largest, from which on that is a function's end.
_MANY: Final = 0.01
#: Error of float32 arithmetic, as a share of the signal's power: what no layer is blamed for.
_FLOAT_NOISE: Final = 1e-10
#: Part of a layer's typical error below which it does not matter whether its weights or its grid made more than theirs.
_BLIND: Final = 0.05
#: Readers see a layer's error among that of its weights and of their other inputs, so that a little of it is much: of
#: a grid that is too coarse more than of one that clips, as grids well chosen do.
_CLIPPED, _COARSE = 1.5, 5.0
#: Error that no reader of a layer minds, as a share of its signal's power: 45 dB, which 8 bits hardly ever reach.
_NEGLIGIBLE: Final = 10**-4.5
#: The most error that rounding explains, as a share of its signal's power: 10 dB, which 4 bits do better than. What is
#: expected of a broken layer comes from its broken weights, and may be more.
_EXPLAINABLE: Final = 0.1


@dataclass
class _Sums:
    """Running sums of one layer; a double an error, whatever the number of samples."""

    signal: float = 0.0
    alone: float = 0.0
    typical: float = 0.0
    weights: float = 0.0
    moved: float = 0.0
    grid: float = 0.0
    best_grid: float = 0.0
    whole: float = 0.0
    dot: float = 0.0
    whole_squared: float = 0.0
    seen: float = 0.0
    expected: float = 0.0
    waste_db: float = 0.0
    clipped: int = 0
    n: int = 0
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(N_BINS, np.int64))


@dataclass(frozen=True)
class LayerProbe:
    """What was measured of every layer.

    Attributes:
        layers: in the order of the graph.
    """

    layers: tuple[Layer, ...]
    _sums: Mapping[str, _Sums]

    def errors(self) -> tuple[LayerError, ...]:
        """The figures over everything observed."""
        readers: dict[str, list[Layer]] = {}
        for layer in self.layers:
            for result in layer.reads:
                readers.setdefault(result, []).append(layer)
        return tuple(
            _error(layer, self._sums[layer.result], [self._sums[r.result] for r in readers.get(layer.result, ())])
            for layer in self.layers
            if self._sums[layer.result].n
        )

    def histograms(self) -> dict[str, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """Node -> (counts [64], edges [65]) of the float values, the ends taking what lies beyond them."""
        return {
            layer.node: (self._sums[layer.result].counts, _edges(layer))
            for layer in self.layers
            if self._sums[layer.result].n and layer.is_rounded
        }


def probe_layers(
    quantized: ModelProto,
    reference: ModelProto,
    batches: Iterable[Feed],
    progress: Progress | None = None,
    threads: int = 1,
) -> LayerProbe:
    """Measures every layer of a QDQ model against its float model on a few batches, which are run twice.

    Raises:
        EvaluationError: the two share no tensor, inputs included.
    """
    kept = list(batches)
    layers = cut(view_model(quantized).graphs[0], reference).layers
    grids = _best_grids(reference, layers, kept, threads)
    layers, model = combine(quantized, reference, grids)
    run = make_executor("onnxruntime", model.SerializeToString(), threads)
    sums = {layer.result: _Sums(waste_db=_waste_db(layer, grids.get(layer.tensor))) for layer in layers}
    for done, batch in enumerate(kept, 1):
        found = run.run(batch)
        for layer in layers:
            if layer.tensor in grids:
                _add(sums[layer.result], layer, found)
        if progress:
            progress(done, len(kept), "measuring layers")
    return LayerProbe(layers, sums)


def _waste_db(layer: Layer, grid: Grid | None) -> float:
    """How much coarser the layer's grid is than one that just clips none of its values."""
    if grid is None or not layer.is_rounded or not grid.whole_step:
        return 0.0
    return 20 * math.log10((layer.hi - layer.lo) / layer.levels / grid.whole_step)


def _best_grids(
    reference: ModelProto, layers: Sequence[Layer], batches: Sequence[Feed], threads: int
) -> dict[str, Grid]:
    """For each floating tensor of a layer the grid of as many levels that costs its values least."""
    floats = ModelProto()
    floats.CopyFrom(reference)
    del floats.graph.output[:]
    for name in dict.fromkeys(layer.tensor for layer in layers):
        floats.graph.output.add().name = name
    run = make_executor("onnxruntime", floats.SerializeToString(), threads)
    kept: dict[str, list[npt.NDArray[Any]]] = {layer.tensor: [] for layer in layers}
    for i, batch in enumerate(batches):
        for name, x in run.run(batch).items():
            x = x.reshape(-1)
            if x.size > _KEPT:
                # The ends belong to it: the best grid is often the whole range.
                chosen = np.random.default_rng(i).integers(0, x.size, _KEPT)
                x = np.concatenate([x[chosen], [x.min(), x.max()]]).astype(x.dtype)
            kept[name].append(x)
    values = {name: np.concatenate(v) for name, v in kept.items() if v and np.issubdtype(v[0].dtype, np.floating)}
    grids: dict[str, Grid] = {}
    for group in _of_one_grid(layers):
        members = [values[layer.tensor] for layer in group if layer.tensor in values]
        if members:
            grid = _best_grid(group[0], np.concatenate(members))
            grids |= {layer.tensor: grid for layer in group if layer.tensor in values}
    return grids


def _of_one_grid(layers: Sequence[Layer]) -> list[list[Layer]]:
    """The layers in groups that share a grid because one only moves what the others give."""
    group_of = {layer.result: [layer] for layer in layers}
    by_result = {layer.result: layer for layer in layers}
    for layer in layers:
        for other in layer.reads if layer.moves and layer.is_rounded else ():
            mine, theirs = group_of[layer.result], group_of.get(other)
            same = theirs is not None and (by_result[other].lo, by_result[other].hi) == (layer.lo, layer.hi)
            if theirs is not None and same and mine is not theirs:
                mine += theirs
                group_of |= {member.result: mine for member in theirs}
    return list({id(group): group for group in group_of.values()}.values())


def _best_grid(layer: Layer, values: npt.NDArray[Any]) -> Grid:
    x = values.astype(np.float64)
    lo, hi = min(float(x.min(initial=0)), 0.0), max(float(x.max(initial=0)), 0.0)
    if layer.symmetric:
        lo, hi = -max(-lo, hi), max(-lo, hi)
    if lo == hi or not layer.levels or not math.isfinite(hi - lo):
        return Grid(0.0, 0.0, lo, hi, -math.inf, math.inf, values.dtype)
    best = min((_scaled(share, (lo, hi), layer.levels, x) for share in _SHARES), key=lambda g: _cost(g, x))
    return replace(best, dtype=values.dtype)


def _scaled(share: float, ends: tuple[float, float], levels: int, x: npt.NDArray[np.float64]) -> Grid:
    lo, hi = share * ends[0], share * ends[1]
    step, whole = (hi - lo) / (levels - 1), (hi - lo) / share / (levels - 1)
    first = round(lo / step)
    least, most = float(x.min()), float(x.max())
    floor = least if (x == least).mean() > _MANY else -math.inf
    ceiling = most if (x == most).mean() > _MANY else math.inf
    return Grid(step, whole, first * step, (first + levels - 1) * step, floor, ceiling, x.dtype)


def _cost(grid: Grid, x: npt.NDArray[np.float64]) -> float:
    return float(np.square(x - np.rint(np.clip(x, grid.lo, grid.hi) / grid.step) * grid.step).mean())


def _add(s: _Sums, layer: Layer, found: Feed) -> None:
    real, alone, whole = found[layer.tensor], found[ALONE + layer.result], found[WHOLE + layer.result]
    if real.shape != alone.shape:
        return
    x, a, w = (v.reshape(-1) for v in (real, alone, whole))
    s.signal += _dot(x, x)
    s.alone += _distance(x, a)
    s.typical += _distance(x, found[TYPICAL + layer.result].reshape(-1))
    s.whole += _distance(x, w)
    s.dot += _dot(x, w)
    s.whole_squared += _dot(w, w)
    s.n += x.size
    if layer.is_rounded:
        s.clipped += int(np.count_nonzero(x < layer.lo) + np.count_nonzero(x > layer.hi))
        half = (layer.hi - layer.lo) / 2
        place = np.clip((x - (layer.lo - half)) * (N_BINS / (4 * half)), 0, N_BINS - 1)
        s.counts += np.bincount(np.nan_to_num(place).astype(np.intp), minlength=N_BINS)
    computed = found.get(held_name(ALONE, layer))
    if computed is None:
        s.grid, s.best_grid = s.alone, s.typical  # an input
    else:
        c, moved = computed.reshape(-1), found[held_name(MOVED, layer)].reshape(-1)
        s.weights += _distance(x, c)
        s.moved += _distance(c, moved)
        s.seen += _distance(c, found[held_name(SEEN, layer)].reshape(-1))
        s.expected += _distance(c, found[held_name(EXPECTED, layer)].reshape(-1))
        if layer.is_rounded:
            s.grid += _distance(c, a)
            s.best_grid += _distance(moved, found[rounded_name(layer)].reshape(-1))


def _dot(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    return float(np.einsum("i,i", a, b, dtype=np.float64))


def _distance(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    d = a - b
    return _dot(d, d)


def _edges(layer: Layer) -> npt.NDArray[np.float64]:
    half = (layer.hi - layer.lo) / 2
    return np.linspace(layer.lo - half, layer.hi + half, N_BINS + 1)


def _error(layer: Layer, s: _Sums, readers: Sequence[_Sums]) -> LayerError:
    own = _sqnr(s.signal, s.alone)
    # Of several readers the one that the error surprises most.
    surprises = [
        (_more(r.seen, min(r.expected, r.signal * _EXPLAINABLE), r.signal * _NEGLIGIBLE), _sqnr(r.signal, r.seen))
        for r in readers
    ]
    most = s.signal * _EXPLAINABLE
    blind = min(s.typical, most) * _BLIND + s.signal * _FLOAT_NOISE
    part = max(_more(s.weights, min(s.moved, most), blind), _more(s.grid, min(s.best_grid, most), blind))
    surprise, seen = max(surprises, default=(part, own))
    length = math.sqrt(s.signal * s.whole_squared)
    return LayerError(
        node=layer.node,
        op_type=layer.op_type,
        tensor=layer.tensor,
        local_sqnr_db=own,
        expected_sqnr_db=_sqnr(s.signal, s.typical + s.signal * _FLOAT_NOISE),
        seen_sqnr_db=seen,
        excess_db=max(min(part, _CLIPPED * surprise), min(s.waste_db, _COARSE * surprise)),
        total_sqnr_db=_sqnr(s.signal, s.whole),
        cosine=s.dot / length if length else float(s.signal == s.whole_squared),
        clipped=s.clipped / s.n if s.n else 0.0,
    )


def _more(noise: float, expected: float, blind: float) -> float:
    """By how many dB ``noise`` exceeds what is expected, blind to what is smaller than ``blind``."""
    return _sqnr(noise + blind, expected + blind) if noise + blind > 0 else 0.0


def _sqnr(signal: float, noise: float) -> float:
    if noise == 0:
        return SQNR_CEILING_DB
    if not math.isfinite(noise) or signal == 0:
        return -SQNR_CEILING_DB
    return min(SQNR_CEILING_DB, 10 * math.log10(signal / noise))
