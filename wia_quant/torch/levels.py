# SPDX-License-Identifier: Apache-2.0
"""The equations of docs/quantization.md on tensors of levels: integers in float32, counted from the zero point.

A float32 holds every integer up to 2^24, so a sum of products is exact in any order while no part of it is larger.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.half import HalfQuantize
from wia_quant.torch.product import CHANNEL_AXIS, QuantizedProduct, multiply, require_channels_at_1, type_of
from wia_quant.weights import MAX_BIAS_LEVEL

#: Every integer up to it is a float32.
_EXACT: Final = 2**24
#: No accumulator of (7) is larger, (19); a bias is not beyond half of it (weights.py).
_INT32: Final = 2**31 - 1
_LARGEST_BIAS: Final = MAX_BIAS_LEVEL
#: The levels of a grid that libwia has integers for.
_LEVELS: Final = 256
#: The weights of more axes have no integer kernel: those of Conv3d.
_MOST_AXES: Final = 4


def has_levels(quantizer: FakeQuantize) -> bool:
    """Whether it puts a tensor on one grid that libwia has integers for."""
    few = quantizer.qtype.qmax - quantizer.qtype.qmin < _LEVELS
    return few and quantizer.axis is None and not isinstance(quantizer, HalfQuantize)


@dataclass(frozen=True, eq=False)
class Grid:
    """A grid of 8 bits, per tensor.

    Attributes:
        scale: float32, [], on the tensors' device: a division by it is one rounding there.
        step: the same as a number.
        lo: the smallest level, from the zero point.
        hi: the largest.
    """

    scale: torch.Tensor
    step: float
    lo: int
    hi: int

    @staticmethod
    def of(quantizer: FakeQuantize) -> Grid | None:
        """That of ``quantizer``; None where libwia has no integers for it."""
        if not has_levels(quantizer):
            return None
        qtype = quantizer.qtype
        scale, zero_point = quantizer.calculate_qparams()
        zero = int(zero_point)
        return Grid(scale, float(scale), qtype.qmin - zero, qtype.qmax - zero)

    def level(self, x: float) -> float:
        """Of one real, (1)."""
        return float(np.clip(np.rint(np.float32(x) / np.float32(self.step)), self.lo, self.hi))

    def same(self, other: Grid) -> bool:
        """Whether both have the same levels for the same reals."""
        return (self.step, self.lo, self.hi) == (other.step, other.lo, other.hi)


@dataclass(frozen=True, eq=False)
class Levels:
    """A tensor on a grid."""

    q: torch.Tensor
    grid: Grid

    def real(self) -> torch.Tensor:
        """(2); a tensor of its own, which its reader may overwrite."""
        return self.q * self.grid.scale


@dataclass(frozen=True, eq=False)
class Columns:
    """A matrix on a symmetric grid for each of its columns."""

    q: torch.Tensor
    scale: torch.Tensor

    def real(self) -> torch.Tensor:
        """(2)."""
        return self.q * self.scale


@dataclass(frozen=True, eq=False)
class Pending:
    """A result that is rounded once, to the grid behind it, or stays real.

    Attributes:
        levels: on a grid, not yet rounded: the argument of rhe; may be asked once.
        real: where no grid follows.
        lo: of the clips between it and the grid, (10).
        hi: likewise.
        takes_clips: whether libwia rounds it once with clips between, too.
    """

    levels: Callable[[Grid], torch.Tensor]
    real: Callable[[], torch.Tensor]
    lo: float = -math.inf
    hi: float = math.inf
    takes_clips: bool = True

    def clipped(self, lo: float, hi: float, real: Callable[[], torch.Tensor]) -> Pending:
        """With a clip to [lo, hi] behind it; ``real`` does the same to reals."""
        return Pending(self.levels, real, min(max(self.lo, lo), hi), min(max(self.hi, lo), hi))

    def on(self, grid: Grid) -> Levels:
        """Rounded to ``grid``."""
        return Levels(self.levels(grid).round_().clamp_(grid.level(self.lo), grid.level(self.hi)), grid)


#: What a node of the graph may be worth: a number, a tensor, one of the above, or a nest of them.
Value = Any


def real(value: Value) -> Any:
    """Its reals, where it has such."""
    return value.real() if isinstance(value, Levels | Columns | Pending) else value


def quantized(x: torch.Tensor, grid: Grid) -> Levels:
    """(1)."""
    return Levels(torch.div(x, grid.scale).round_().clamp_(grid.lo, grid.hi).nan_to_num_(nan=0.0), grid)


def added(a: Levels, b: Levels, sign: int) -> Pending:
    """(12), (13 of Sub): every product is rounded, then the sum."""

    def levels(grid: Grid) -> torch.Tensor:
        first = a.q * _single(a.grid.step / grid.step)
        return torch.add(first, b.q * _single(sign * b.grid.step / grid.step))

    return Pending(levels, lambda: a.real() + b.real() if sign > 0 else a.real() - b.real())


def multiplied(a: Levels, b: Levels) -> Pending:
    """(13)."""
    return Pending(
        lambda grid: (a.q * b.q).mul_(_single(_single(a.grid.step * b.grid.step) / grid.step)),
        lambda: a.real() * b.real(),
    )


def averaged(sums: torch.Tensor, n: int | torch.Tensor, x: Grid, in_float: Callable[[], torch.Tensor]) -> Pending:
    """(14).

    Args:
        sums: of levels; may be overwritten.
        n: how many each is of.
        x: the grid of those levels.
        in_float: the average of reals.
    """

    def levels(grid: Grid) -> torch.Tensor:
        if isinstance(n, torch.Tensor):
            return sums.mul_((x.step / (n.double() * grid.step)).float())
        return sums.mul_(_single(x.step / (n * grid.step)))

    return Pending(levels, in_float, takes_clips=False)


def matrix_product(a: Levels, b: Levels | Columns) -> Pending | None:
    """(7) to (9) of two activations, or of one and a matrix; None where the sum may not be exact."""
    scale = b.grid.step if isinstance(b, Levels) else b.scale.double()
    reach = _LEVELS * (max(-b.grid.lo, b.grid.hi) if isinstance(b, Levels) else _LEVELS // 2)
    k = a.q.shape[-1]
    if k * reach <= _EXACT:
        acc = torch.matmul(a.q, b.q)
    elif k <= _EXACT:
        parts = zip(a.q.split(_EXACT // reach, -1), b.q.split(_EXACT // reach, -2 if b.q.dim() > 1 else 0), strict=True)
        acc = _sum([torch.matmul(x, y) for x, y in parts], None)
    else:
        return None
    return _accumulated(acc, a.grid.step * scale)


def product(module: QuantizedProduct, x: Levels) -> Pending | None:
    """(7) to (9) with the weight and bias as the file has them; None where libwia has no integers for it."""
    quantizer = module.weight_fake_quantize
    weight, bias = module.folded()
    symmetric = quantizer.qtype.symmetric and quantizer.qtype.qmax < _LEVELS // 2
    if isinstance(quantizer, HalfQuantize) or not (symmetric and quantizer.quantizing) or weight.dim() > _MOST_AXES:
        return None
    if isinstance(module.product, nn.Embedding) or weight.dtype is not torch.float32:
        return None
    if module.bn is not None:
        require_channels_at_1(module.product, x.q, module.bn_path)
    levels, bias = quantizer.levels(weight), module.rounded(bias)
    own_scale, _ = quantizer.calculate_qparams()
    axis = CHANNEL_AXIS[type_of(module.product)]
    n = weight.shape[axis] * (module.product.groups if axis == 1 else 1)
    q_bias = None
    own_scale = own_scale.expand(weight.shape[axis])  # the file has one for each channel
    if bias is not None:
        own_scale, levels = _fitting(bias, x.grid.step, own_scale, levels, axis, quantizer.qtype.qmax)
    scale = x.grid.step * own_scale.double()
    # A grouped transposed convolution has one scale for the same column of every group.
    scale = scale.repeat(n // scale.numel()) if scale.numel() != n else scale
    if bias is not None:
        q_bias = (bias.double() / scale.float().double()).round_()
    acc = _multiply_levels(module.product, x, levels, q_bias)
    if acc is None:
        return None
    behind = 0 if isinstance(module.product, nn.Linear) else weight.dim() - 2
    return _accumulated(acc, scale.reshape([-1] + [1] * behind))


def _fitting(
    bias: torch.Tensor, input_scale: float, scale: torch.Tensor, levels: torch.Tensor, axis: int, qmax: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The weight's scale and levels as the file has them: a channel whose bias would not fit has a coarser one."""
    needed = bias.abs().double() / (input_scale * _LARGEST_BIAS)
    needed = needed.reshape(-1, scale.numel()).amax(0)
    raised = needed > scale
    if not raised.any():
        return scale, levels
    coarser = torch.where(raised, torch.nextafter(needed.float(), torch.full_like(scale, math.inf)), scale)
    shape = [-1 if i == axis else 1 for i in range(levels.dim())]
    real = levels * scale.reshape(shape)
    return coarser, torch.div(real, coarser.reshape(shape)).round_().clamp_(-qmax, qmax)


def _multiply_levels(
    product: nn.Module, x: Levels, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor | None:
    """float32 of the integers of (7), each rounded once; None where int32 would not hold them, (19)."""
    axis = CHANNEL_AXIS[type_of(product)]
    high = None
    of_bias = 0.0 if bias is None else float(bias.abs().max())
    if bias is not None and of_bias > _EXACT / 4:
        # What is added last has few digits: sum and addition are one rounding.
        high = (bias / (_EXACT / 2)).round_().mul_(_EXACT / 2)
        bias = bias - high
    # Whatever the weights are, no sum of few products is larger.
    few = (weight[0] if axis == 0 else weight[:, 0]).numel() * (_LEVELS // 2) * max(-x.grid.lo, x.grid.hi)
    if few > _EXACT * 3 // 4:
        most, few_or_more = _reach(x.grid, weight, axis)
        if most + of_bias > _INT32 - 1:
            return None
        if few_or_more > _EXACT * 3 // 4:
            return _multiply_in_parts(product, x, weight, bias if high is None or bias is None else bias + high)
    acc = multiply(product, x.q, weight, None if bias is None else bias.float())
    return acc if high is None else acc.add_(_along(product, weight, high).float())


def _multiply_in_parts(product: nn.Module, x: Levels, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """As ``_multiply_levels``, where a float32 may not hold every partial sum."""
    axis = CHANNEL_AXIS[type_of(product)]
    inputs, along = (1, 0)[axis], (-1 if isinstance(product, nn.Linear) else 1 - weight.dim())
    size = weight.shape[inputs]
    while size > 1 and any(_reach(x.grid, part, axis)[1] > _EXACT for part in weight.split(size, inputs)):
        size = (size + 1) // 2
    if size == 1 or getattr(product, "groups", 1) > 1:
        parts = [multiply(product, x.q.double(), weight.double(), None)]
    else:
        pairs = zip(x.q.split(size, along), weight.split(size, inputs), strict=True)
        parts = [multiply(product, a, b, None) for a, b in pairs]
    return _sum(parts, None if bias is None else _along(product, weight, bias))


def _along(product: nn.Module, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """``bias`` so that it broadcasts against the result."""
    return bias if isinstance(product, nn.Linear) else bias.reshape([-1] + [1] * (weight.dim() - 2))


def _reach(x: Grid, weight: torch.Tensor, axis: int) -> tuple[float, float]:
    """How large libwia takes a sum of products to be at most, and how large a part of one is at most."""
    others = [i for i in range(weight.dim()) if i != axis]
    both, difference = weight.abs().sum(others), weight.sum(others)
    up, down = (both + difference) / 2, (both - difference) / 2  # of the positive ones, of the negative ones
    reach = torch.maximum(up * x.hi - down * x.lo, down * x.hi - up * x.lo)
    return float(both.max()) * max(-x.lo, x.hi), float(reach.max())


def _sum(parts: list[torch.Tensor], bias: torch.Tensor | None) -> torch.Tensor:
    """float32 of the whole sum, rounded once."""
    total = parts[0].double().round_()
    for part in parts[1:]:
        total.add_(part.round_())
    return (total if bias is None else total.add_(bias)).float()


def _accumulated(acc: torch.Tensor, scale: torch.Tensor | float) -> Pending:
    """(8), (9); ``scale`` is that of the accumulator, in float64."""
    unit = scale.float() if isinstance(scale, torch.Tensor) else _single(scale)

    def multiplier(grid: Grid) -> torch.Tensor | float:
        if isinstance(unit, torch.Tensor):
            return (unit.double() / grid.step).float()
        return _single(unit / grid.step)

    return Pending(lambda grid: acc.mul_(multiplier(grid)), lambda: acc * unit)


def _single(m: float) -> float:
    """``m`` as a float32."""
    return float(np.float32(m))


def window_sums(x: torch.Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool) -> torch.Tensor:
    """Of [N, C, H, W]; what is outside counts 0."""
    return functional.avg_pool2d(x, kernel, stride, padding, ceil, True, 1)
