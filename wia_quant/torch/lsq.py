# SPDX-License-Identifier: Apache-2.0
"""Learned step size: the scale is a parameter, trained with the weights (Esser et al. 2020, LSQ).

The zero point is found once, from the first batches, and stays (as LSQ+ with a fixed offset, Bhalgat et al. 2020).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from wia_quant.affine import MIN_SCALE, QParams, QType
from wia_quant.errors import CalibrationError, UsageError
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.observers import Observer


class LearnedFakeQuantize(FakeQuantize):
    """A FakeQuantize that observes until ``start_learning`` is called, then learns its scale.

    Attributes:
        learned_scale: the parameter, the shape of ``scale``; absent while observing.
    """

    learned_scale: nn.Parameter | None

    def __init__(
        self,
        observer: Callable[[], Observer],
        qtype: QType,
        axis: int | None = None,
        factory_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(observer, qtype, axis, factory_kwargs)
        self.register_parameter("learned_scale", None)

    def start_learning(self) -> nn.Parameter:
        """Makes the scale in force a parameter, for an optimizer; the observer rests from now on.

        One that learns already, as a checkpoint's does after ``load_state_dict``, goes on with the parameter it has.
        """
        if self.learned_scale is not None:
            return self.learned_scale
        self.qparams()
        self.observing = False
        self.learned_scale = nn.Parameter(self.scale.detach().clone())
        return self.learned_scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.learned_scale is None:
            return super().forward(x)
        self.scale = self._positive()
        if not self.quantizing:
            return x
        shape = [1] * x.dim()
        if self.axis is not None:
            shape[self.axis] = -1
        zero_point = self.zero_point.reshape(shape if self.axis is not None else ())
        lo, hi = self.qtype.qmin - zero_point, self.qtype.qmax - zero_point
        n = x.numel() / max(1, self.learned_scale.numel())
        gradient_scale = 1.0 / math.sqrt(n * self.qtype.qmax)  # section 2.2
        scale = self.learned_scale.reshape(shape if self.axis is not None else ())
        return _LearnedStep.apply(x, scale, lo, hi, gradient_scale)

    def _refresh(self) -> None:
        if self.learned_scale is None:
            super()._refresh()
        else:
            self.scale = self._positive()

    def qparams(self) -> QParams:
        if self.learned_scale is None:
            return super().qparams()
        self.scale = self._positive()
        zero_point = self.zero_point.cpu().numpy().astype(self.qtype.dtype)
        return QParams(self.qtype, np.array(self.scale.cpu().numpy()), zero_point, self.axis)

    def _positive(self) -> torch.Tensor:
        """The learned scale as it is used: a step of the optimizer may not leave it at 0 or below."""
        assert self.learned_scale is not None
        return self.learned_scale.detach().abs().clamp_min(MIN_SCALE)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:  # Any: torch's own signature
        key = prefix + "learned_scale"
        if key in state_dict and self.learned_scale is None:
            self.learned_scale = nn.Parameter(torch.empty_like(state_dict[key], device=self.scale.device))
        super()._load_from_state_dict(state_dict, prefix, *args)


class _LearnedStep(torch.autograd.Function):
    """Forward: equations (1) and (2). Backward: LSQ equations (3) and (5)."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, scale: torch.Tensor, lo: torch.Tensor, hi: torch.Tensor, gradient_scale: float
    ) -> torch.Tensor:
        used = scale.abs().clamp_min(MIN_SCALE)
        t = x / used
        q = torch.clamp(t.round(), lo, hi)
        ctx.save_for_backward(t, q, lo, hi, scale)
        ctx.gradient_scale = gradient_scale
        return q * used

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None, None]:
        t, q, lo, hi, scale = ctx.saved_tensors
        level = t.round()
        inside = (level >= lo) & (level <= hi)
        by_step = grad * torch.where(inside, q - t, q)
        keep = [i for i, n in enumerate(scale.shape) if n == 1]
        by_step = by_step.sum(dim=keep, keepdim=True) if scale.dim() else by_step.sum()
        return grad * inside, by_step.reshape(scale.shape) * scale.sign() * ctx.gradient_scale, None, None, None


def start_learning(model: nn.Module) -> list[nn.Parameter]:
    """Every LearnedFakeQuantize starts; returns their parameters, for an optimizer's parameter group.

    To resume, call ``load_state_dict`` first: the checkpoint's scales learn on.

    Raises:
        CalibrationError: one that saw no data; names it.
        UsageError: the model has none.
    """
    found = {name: m for name, m in model.named_modules() if isinstance(m, LearnedFakeQuantize)}
    if not found:
        raise UsageError(f"{type(model).__name__} has no scales to learn; prepare it with qconfig=get_lsq_qconfig()")
    for name, module in found.items():
        if module.learned_scale is None and not module.observer.seen:
            raise CalibrationError(
                f"'{name}' saw no data, so that its scale has no value to learn from; run the model on a batch first,"
                " or call load_state_dict before start_learning to resume"
            )
    return [module.start_learning() for module in found.values()]
