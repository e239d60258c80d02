# SPDX-License-Identifier: Apache-2.0
"""Fake quantization in training: the forward pass is equations (1) and (2), the backward pass is straight through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch.ao.quantization.fake_quantize import FakeQuantizeBase

from wia_quant.affine import QParams, QType
from wia_quant.errors import CalibrationError
from wia_quant.torch.observers import AbsMaxObserver, Observer


class FakeQuantize(FakeQuantizeBase):
    """Observes what passes, then replaces it by what its integers stand for.

    A torch.ao ``FakeQuantizeBase``, so that torch.ao's own prepare functions and switches
    (``model.apply(torch.ao.quantization.disable_observer)``) know it.

    Attributes:
        qtype: the grid.
        axis: the axis of per-channel scales, >= 0; None per tensor.
        observer: chooses the range.
        scale: buffer, float32; shape [] or [n].
        zero_point: buffer, int32; the shape of ``scale``.
    """

    scale: torch.Tensor
    zero_point: torch.Tensor

    def __init__(
        self,
        observer: Callable[[], Observer],
        qtype: QType,
        axis: int | None = None,
        factory_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        # FakeQuantizeBase.__init__ would add tensor flags, whose branches torch.export cannot trace.
        torch.nn.Module.__init__(self)
        self.qtype = qtype
        self.axis = axis
        self.observer = observer()
        device = (factory_kwargs or {}).get("device")
        self.register_buffer("scale", torch.ones((), dtype=torch.float32, device=device))
        self.register_buffer("zero_point", torch.full((), qtype.middle, dtype=torch.int32, device=device))
        self.observing = True
        self.quantizing = True
        self._stale = False  # observed since the parameters were chosen
        #: Observe in evaluation mode too: post-training calibration.
        self.always_observe = False
        #: Where it is in the prepared model, for messages.
        self.path = ""

    # What torch.ao reads of a fake quantizer.
    is_per_channel = property(lambda self: self.axis is not None)
    ch_axis = property(lambda self: -1 if self.axis is None else self.axis)
    quant_min = property(lambda self: self.qtype.qmin)
    quant_max = property(lambda self: self.qtype.qmax)
    dtype = property(lambda self: {np.dtype(np.uint8): torch.quint8}.get(self.qtype.dtype, torch.qint8))

    @property
    def qscheme(self) -> torch.qscheme:
        """torch's name of the scheme."""
        if self.axis is not None:
            return torch.per_channel_symmetric
        return torch.per_tensor_symmetric if self.qtype.symmetric else torch.per_tensor_affine

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        observed = self._watch(x)
        if not self.quantizing:
            return x
        self._refresh()
        scale, zero_point = self._buffers["scale"], self._buffers["zero_point"]
        assert scale is not None
        assert zero_point is not None
        if observed and isinstance(self.observer, AbsMaxObserver):
            return _StraightThroughInside.apply(x, _along(scale, x, self.axis))
        lo, hi = self.qtype.qmin, self.qtype.qmax
        if observed and self.axis is None:
            zp = int(zero_point)
            return _StraightThroughPerTensor.apply(x, scale, lo - zp, hi - zp, True)
        return fake_quantize(x, scale, zero_point, lo, hi, self.axis)

    def levels(self, x: torch.Tensor) -> torch.Tensor:
        """The levels of ``x``, (1), from the zero point on and as float32; observes as a call does."""
        self._watch(x)
        scale, zero_point = (_along(v, x, self.axis) for v in self.calculate_qparams())
        q = torch.div(x, scale).round_()
        if self.axis is None:
            zp = int(zero_point)
            return q.clamp_(self.qtype.qmin - zp, self.qtype.qmax - zp).nan_to_num_(nan=0.0)
        return torch.clamp(q, self.qtype.qmin - zero_point, self.qtype.qmax - zero_point)

    def _watch(self, x: torch.Tensor) -> bool:
        """Observes ``x`` where it is to be; whether it was."""
        observed = self.observing and self._observes_now()
        if observed:
            self._observe(x.detach())
            self._stale = True
        return observed

    def _observe(self, x: torch.Tensor) -> None:
        try:
            self.observer.observe(x)
        except CalibrationError as error:
            raise CalibrationError(f"'{self.path}': {error}" if self.path else str(error)) from None

    def rounded_bias(self, bias: torch.Tensor, input_quantizer: FakeQuantize | None = None) -> torch.Tensor:
        """The bias of a product with this weight on the grid of the accumulator, (18); the gradient passes."""
        if input_quantizer is None or not (self.quantizing and input_quantizer.quantizing):
            return bias
        self._refresh()  # after samples without a step, the scales in force are older than what was seen
        input_quantizer._refresh()
        nearest = round_bias(bias.detach(), input_quantizer.scale, self.scale)
        return bias + (nearest - bias.detach()) if bias.requires_grad else nearest

    def _refresh(self) -> None:
        """Some calibrators take long to choose: they are asked when the parameters are needed, not at every batch."""
        if self._stale:
            self._put(*self.observer.tensors(self.qtype, self.axis))

    def _observes_now(self) -> bool:
        """Ranges of activations move in training; those of weights are the weights' own, whatever the mode."""
        return self.training or self.always_observe or not self.observer.seen or not self.observer.has_history

    def set_qparams(self, qp: QParams) -> None:
        """Puts ``qp`` in force."""
        self._put(torch.from_numpy(np.array(qp.scale)), torch.from_numpy(np.array(qp.zero_point, dtype=np.int32)))

    def _put(self, scale: torch.Tensor, zero_point: torch.Tensor) -> None:
        # Not by attribute: nn.Module's way costs more than the arithmetic of a small tensor.
        self._stale = False
        old = self._buffers["scale"]
        assert old is not None
        self._buffers["scale"], self._buffers["zero_point"] = scale.to(old.device), zero_point.to(old.device)

    def qparams(self) -> QParams:
        """The parameters in force.

        Raises:
            CalibrationError: nothing was observed or loaded yet.
        """
        if not self.observer.seen:
            which = f"fake quantizer '{self.path}'" if self.path else "a fake quantizer"
            raise CalibrationError(f"{which} saw no data; run the prepared model on samples before export")
        self._refresh()
        zero_point = self.zero_point.cpu().numpy().astype(self.qtype.dtype)
        return QParams(self.qtype, self.scale.cpu().numpy(), zero_point, self.axis)

    def calculate_qparams(self, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self._refresh()
        return self.scale, self.zero_point

    def enable_fake_quant(self, enabled: bool = True) -> None:
        self.quantizing = bool(enabled)

    def disable_fake_quant(self) -> None:
        self.quantizing = False

    def enable_observer(self, enabled: bool = True) -> None:
        self.observing = bool(enabled)

    def disable_observer(self) -> None:
        self.observing = False

    def extra_repr(self) -> str:
        shape = "per tensor" if self.axis is None else f"axis {self.axis}"
        scale = self.scale.reshape(-1)
        return f"{self.qtype.name}, {shape}, scale {float(scale[0]):.4g}{', ...' if scale.numel() > 1 else ''}"

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:  # Any: torch's own signature
        self._refresh()  # before torch takes the buffers
        super()._save_to_state_dict(*args, **kwargs)

    def get_extra_state(self) -> dict[str, Any]:
        return {
            "observing": self.observing,
            "quantizing": self.quantizing,
            "always_observe": self.always_observe,
            "observer": self.observer.state(),
        }

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.observing, self.quantizing = state["observing"], state["quantizing"]
        self.always_observe = state["always_observe"]
        self.observer.load_state(state["observer"])

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:  # Any: torch's own signature
        # A fresh module holds scalars; the checkpoint's shape decides.
        for name in ("scale", "zero_point"):
            if prefix + name in state_dict:
                loaded = state_dict[prefix + name]
                setattr(self, name, torch.empty_like(loaded, device=getattr(self, name).device))
        super()._load_from_state_dict(state_dict, prefix, *args)


def fake_quantize(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, qmin: int, qmax: int, axis: int | None = None
) -> torch.Tensor:
    """``dequantize(quantize(x))``, equations (1) and (2); the gradient passes where ``x`` did not saturate.

    Args:
        x: float32, any shape.
        scale: float32; [] or [n].
        zero_point: integers; the shape of ``scale``.
        qmin: smallest level.
        qmax: largest level.
        axis: the axis of per-channel parameters, None per tensor.
    """
    if axis is None:
        zp = int(zero_point)
        return _StraightThroughPerTensor.apply(x, scale, qmin - zp, qmax - zp, False)
    zp_t = _along(zero_point, x, axis)
    return _StraightThroughPerAxis.apply(x, _along(scale, x, axis), qmin - zp_t, qmax - zp_t)


def round_bias(bias: torch.Tensor, input_scale: torch.Tensor, weight_scale: torch.Tensor) -> torch.Tensor:
    """What the int32 levels of a bias stand for, equation (18)."""
    step = input_scale.double() * weight_scale.double()
    if step.numel() not in (1, bias.numel()):  # a grouped transposed convolution: the groups share their scales
        step = step.repeat(bias.numel() // step.numel())
    return (bias / step).round_().mul_(step).to(bias.dtype)


def _along(v: torch.Tensor, x: torch.Tensor, axis: int | None) -> torch.Tensor:
    """``v`` so that it broadcasts against ``x`` along ``axis``."""
    if axis is None:
        return v
    shape = [1] * x.dim()
    shape[axis] = -1
    return v.reshape(shape)


class _StraightThroughPerTensor(torch.autograd.Function):
    """Levels are counted from the zero point: saturation at [lo, hi] = [qmin - zp, qmax - zp], no shift needed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, lo: int, hi: int, finite: bool) -> torch.Tensor:
        ctx.save_for_backward(x)
        step = float(scale)
        ctx.bounds = ((lo - 0.5) * step, (hi + 0.5) * step)
        # In place: passes over one buffer, and none for a NaN that the observer would have refused.
        y = torch.div(x, scale).round_().clamp_(lo, hi)
        return (y if finite else y.nan_to_num_(nan=0.0)).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None, None]:
        (x,) = ctx.saved_tensors
        lo, hi = ctx.bounds
        return torch.ops.aten.hardtanh_backward(grad, x, lo, hi), None, None, None, None


class _StraightThroughInside(torch.autograd.Function):
    """A symmetric grid whose scale is the largest magnitude of ``x`` itself over qmax: nothing saturates."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return torch.div(x, scale).round_().mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


class _StraightThroughPerAxis(torch.autograd.Function):
    """As per tensor; scale, lo and hi broadcast against x. For weights: small, so the mask is simply kept."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scale: torch.Tensor, lo: torch.Tensor, hi: torch.Tensor) -> torch.Tensor:
        level = torch.div(x, scale).round_()
        ctx.save_for_backward((level >= lo) & (level <= hi))
        return torch.clamp(level, lo, hi).mul_(scale)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        return grad * inside, None, None, None
