# SPDX-License-Identifier: Apache-2.0
"""The grid of every activation group and every weight of a plan, from ranges: what the exporter writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wia_quant.affine import IntArray, QParams, Range, choose_qparams
from wia_quant.errors import CalibrationError
from wia_quant.graph import Model, Node
from wia_quant.policy import Plan, WeightPlan
from wia_quant.weights import block_scales, least_scales, quantize_blocks, quantize_weight, weight_scales

#: A weight on one grid: the tensor and the axis with scales of its own.
WeightKey = tuple[str, int | None]
Scales = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Rounded:
    """A weight's levels, chosen for these scales; both of the shapes that are stored."""

    levels: IntArray
    scale: Scales


@dataclass
class Grids:
    """Where every planned tensor's levels lie.

    Attributes:
        activations: group -> grid.
        weights: (tensor, axis) -> float32 scales, [] or [channels].
        rounded: (tensor, axis) -> levels that an algorithm chose; the others take the nearest.
        notes: weight scales that had to be raised, one sentence each.
    """

    activations: dict[str, QParams]
    weights: dict[WeightKey, Scales]
    rounded: dict[WeightKey, Rounded] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def of(self, plan: Plan, tensor: str) -> QParams:
        """The grid of a planned activation."""
        return self.activations[plan.activations[tensor].group]

    def levels(self, w: npt.NDArray[np.float32], use: WeightPlan) -> IntArray:
        """The integers of a weight, shape of ``w``."""
        key = (use.tensor, use.axis)
        if key in self.rounded:
            return self.rounded[key].levels
        if use.block and use.axis is not None:
            return quantize_blocks(w, self.weights[key], use.axis, use.block, use.qtype)
        return quantize_weight(w, self.weights[key], use.axis, use.qtype).levels

    def spread_scale(self, shape: tuple[int, ...], use: WeightPlan) -> Scales:
        """The scale of every single weight, [shape]."""
        scale = self.weights[(use.tensor, use.axis)]
        if use.block and use.axis is not None:
            return np.take(np.repeat(scale, use.block, axis=use.axis), np.arange(shape[use.axis]), axis=use.axis)
        along = [1] * len(shape)
        if use.axis is not None:
            along[use.axis] = -1
        return np.broadcast_to(scale.reshape(along if use.axis is not None else ()), shape)

    def rounded_weight(self, w: npt.NDArray[np.float32], use: WeightPlan) -> npt.NDArray[np.float32]:
        """What the levels of a weight say, shape of ``w``."""
        levels = self.levels(w, use).astype(np.float32) - np.float32(use.qtype.middle)
        return levels * self.spread_scale(w.shape, use)


def choose_grids(
    model: Model,
    plan: Plan,
    ranges: Mapping[str, Range],
    weights: Mapping[WeightKey, Scales] | None = None,
    rounded: Mapping[WeightKey, Rounded] | None = None,
) -> Grids:
    """The grids for these ranges.

    Args:
        model: the folded float model.
        plan: made for it.
        ranges: of the tensors in ``plan.observe``.
        weights: scales that an algorithm chose instead of max |w| / 127.
        rounded: levels that an algorithm chose; left out where the scale is not the one they were chosen for.

    Raises:
        CalibrationError: a planned tensor has no range.
    """
    qtypes = {a.group: a.qtype for a in plan.activations.values()}
    activations = {g: choose_qparams(r, qtypes[g]) for g, r in group_ranges(model, plan, ranges).items()}
    grids = Grids(activations, {})
    nodes = {node.name: node for _, node in model.nodes()}
    for (tensor, axis), uses in uses_of_weights(plan).items():
        if uses[0].block:
            assert axis is not None
            grids.weights[(tensor, axis)] = block_scales(model.floats(tensor), axis, uses[0].block, uses[0].qtype)
            continue
        chosen = (weights or {}).get((tensor, axis))
        scale = weight_scales(model.floats(tensor), axis, uses[0].qtype) if chosen is None else chosen
        for use in uses:
            scale = _fit_bias(model, plan, grids, nodes[use.node], scale)
        grids.weights[(tensor, axis)] = scale
    for key, chosen_levels in (rounded or {}).items():
        if key in grids.weights and np.array_equal(grids.weights[key], chosen_levels.scale):
            grids.rounded[key] = chosen_levels
    return grids


def uses_of_weights(plan: Plan) -> dict[WeightKey, list[WeightPlan]]:
    """The uses of each weight that can share one grid."""
    uses: dict[WeightKey, list[WeightPlan]] = {}
    for use in plan.weights:
        uses.setdefault((use.tensor, use.axis), []).append(use)
    return uses


def group_ranges(model: Model, plan: Plan, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """The range of each group: the smallest that spans its members, constants included."""
    spans: dict[str, list[Range]] = {}
    observed = set(plan.observe)
    for name, activation in plan.activations.items():
        constant = model.array(name)
        if constant is not None:
            found = Range.around_zero(float(constant.min(initial=0)), float(constant.max(initial=0)))
        elif name in ranges and name in observed:
            found = ranges[name]
        else:
            continue
        spans.setdefault(activation.group, []).append(found)
    for name, activation in plan.activations.items():
        if activation.group not in spans:
            raise CalibrationError(f"tensor {name!r} has no range: no calibration sample gave it a value")
    return {g: Range(min(r.lo for r in rs), max(r.hi for r in rs)) for g, rs in spans.items()}


def channel_of_scale(product: Node, n_scales: int, n_channels: int) -> npt.NDArray[np.int64]:
    """For each output channel the index of the weight scale it has, [n_channels].

    A grouped ConvTranspose has one scale for the same column of every group: channel mod (C_out / groups).
    """
    if n_scales == n_channels:
        return np.arange(n_channels)
    if n_scales == 1:
        return np.zeros(n_channels, dtype=np.int64)
    assert n_channels % n_scales == 0, f"{product.where}: {n_scales} scales for {n_channels} channels"
    return np.arange(n_channels) % n_scales


def _fit_bias(model: Model, plan: Plan, grids: Grids, node: Node, scale: Scales) -> Scales:
    """Raise the scale of each channel whose int32 bias would overflow."""
    found = [b for b in plan.biases if b.product == node.name]
    if not found:
        return scale
    bias = model.floats(found[0].tensor).reshape(-1)
    least = least_scales(bias, float(grids.of(plan, node.inputs[0]).scale))
    needed = np.zeros(scale.size)
    np.maximum.at(needed, channel_of_scale(node, scale.size, least.size), least)
    raised = needed.reshape(scale.shape) > scale
    if not raised.any():
        return scale
    # Rounded up: half a unit in the last place below would overflow again.
    up = np.nextafter(needed.reshape(scale.shape).astype(np.float32), np.float32(np.inf))
    at = np.flatnonzero(raised.reshape(-1))
    which = ", ".join(map(str, at[:_SHOWN])) + (", ..." if len(at) > _SHOWN else "")
    grids.notes.append(f"{node.where}: weight scales of channels {which} raised so that their biases fit int32")
    return np.where(raised, up, scale)


_SHOWN = 5
