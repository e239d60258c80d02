# SPDX-License-Identifier: Apache-2.0
"""Scheme fp16 in training: values are rounded to float16 where the file computes in float16 (format.md, 2.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from wia_quant.affine import INT8_NARROW
from wia_quant.halves import HEADROOM, LARGEST
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.observers import CurrentMinMaxObserver, MinMaxObserver, Observer


class HalfQuantize(FakeQuantize):
    """Rounds to float16; remembers the largest magnitude, for what comes near float16's end stays float32.

    ``qparams`` are of no grid: the range they span is what was seen.
    """

    def __init__(
        self,
        observer: Callable[[], Observer] = MinMaxObserver,
        factory_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(observer, INT8_NARROW, None, factory_kwargs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.observing and self._observes_now():
            self.observer.observe(x.detach())
            self._stale = True
        return self.round(x) if self.quantizing else x

    def round(self, x: torch.Tensor) -> torch.Tensor:
        """To float16, unless what was seen would not fit; the gradient passes."""
        return _StraightThroughHalf.apply(x) if self.fits() else x

    def fits(self) -> bool:
        """Whether float16 holds what was seen, with the reserve that other data may need."""
        return self.size() * (HEADROOM if self.observer.has_history else 1) <= LARGEST

    def size(self) -> float:
        """The largest magnitude that was seen."""
        self._refresh()
        return float(self.scale) * self.qtype.qmax

    def rounded_bias(self, bias: torch.Tensor, input_quantizer: FakeQuantize | None = None) -> torch.Tensor:
        """As the weights, whatever the input's range."""
        return self.round(bias) if self.quantizing else bias


class HalfWeight(HalfQuantize):
    """Of a weight: only what it is now counts."""

    def __init__(self, factory_kwargs: Mapping[str, Any] | None = None) -> None:
        super().__init__(CurrentMinMaxObserver, factory_kwargs)


class _StraightThroughHalf(torch.autograd.Function):
    """Not by autograd's own casts, which would round the gradient to float16, too."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.half().to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad
