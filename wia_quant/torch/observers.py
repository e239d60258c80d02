# SPDX-License-Identifier: Apache-2.0
"""What a fake quantizer watches to choose its range."""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

import torch
from torch import distributed

from wia_quant.affine import MIN_SCALE, QParams, QType, Range, choose_qparams, place
from wia_quant.calibrators import CALIBRATORS, Calibrator
from wia_quant.errors import CalibrationError, UsageError

#: The weight of a new batch, from the hundredth on: torch.ao's default.
AVERAGING_CONSTANT: Final = 0.01


class Observer(Protocol):
    """Statistics of the tensors that pass, and the parameters they ask for."""

    seen: bool
    #: False when only the last tensor counts, as for weights.
    has_history: bool

    def observe(self, x: torch.Tensor) -> None:
        """Takes in one batch. Raises CalibrationError on NaN or infinity."""
        ...

    def qparams(self, qtype: QType, axis: int | None) -> QParams:
        """The parameters for what was observed."""
        ...

    def tensors(self, qtype: QType, axis: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """``qparams`` as a fake quantizer keeps them: scale in float32, zero point in int32."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ...

    def load_state(self, state: dict[str, Any]) -> None:
        """Takes back what ``state`` gave."""
        ...


class MinMaxObserver:
    """The smallest and the largest value ever seen."""

    has_history = True

    def __init__(self) -> None:
        self.lo, self.hi, self.seen = 0.0, 0.0, False

    def observe(self, x: torch.Tensor) -> None:
        lo, hi = _finite_ends(x)
        self._take(lo, hi)
        self.seen = True

    def _take(self, lo: float, hi: float) -> None:
        self.lo, self.hi = (min(self.lo, lo), max(self.hi, hi)) if self.seen else (lo, hi)

    def qparams(self, qtype: QType, axis: int | None) -> QParams:
        return choose_qparams(Range.around_zero(self.lo, self.hi), qtype)

    def tensors(self, qtype: QType, axis: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        scale, zero_point = place(Range.around_zero(self.lo, self.hi), qtype)
        return torch.tensor(scale, dtype=torch.float32), torch.tensor(zero_point, dtype=torch.int32)

    def ends(self) -> torch.Tensor:
        """[lo, hi] as float64, for processes to agree on."""
        return torch.tensor([self.lo, self.hi], dtype=torch.float64)

    def state(self) -> dict[str, Any]:
        return {"lo": self.lo, "hi": self.hi, "seen": self.seen}

    def load_state(self, state: dict[str, Any]) -> None:
        self.lo, self.hi, self.seen = float(state["lo"]), float(state["hi"]), bool(state["seen"])


class MovingAverageMinMaxObserver(MinMaxObserver):
    """The mean of the batches' ends, and after the first hundred ends that follow each batch's by a share.

    torch.ao's observer of this name gives the first batch the weight of a hundred.
    """

    def __init__(self, averaging_constant: float = AVERAGING_CONSTANT) -> None:
        super().__init__()
        self._c = averaging_constant
        self._n = 0

    def _take(self, lo: float, hi: float) -> None:
        self._n += 1
        c = max(self._c, 1 / self._n)
        self.lo, self.hi = self.lo + c * (lo - self.lo), self.hi + c * (hi - self.hi)

    def state(self) -> dict[str, Any]:
        return super().state() | {"n_batches": self._n}

    def load_state(self, state: dict[str, Any]) -> None:
        super().load_state(state)
        # A range that comes without its batches, as from a table, is that of many.
        self._n = int(state.get("n_batches", math.ceil(1 / self._c) if self.seen else 0))


class CurrentMinMaxObserver(MinMaxObserver):
    """The ends of the tensor as it is now: for parameters that are added or multiplied as activations are."""

    has_history = False

    def _take(self, lo: float, hi: float) -> None:
        self.lo, self.hi = lo, hi


class AbsMaxObserver:
    """The largest magnitude of the weight as it is now, of each output channel or (``axis`` None) of all."""

    has_history = False

    def __init__(self) -> None:
        self._w = torch.zeros(0)
        self.seen = False

    def observe(self, x: torch.Tensor) -> None:
        self._w, self.seen = x, True

    def qparams(self, qtype: QType, axis: int | None) -> QParams:
        scale, zero_point = self.tensors(qtype, axis)
        return QParams(qtype, scale.cpu().numpy(), zero_point.cpu().numpy().astype(qtype.dtype), axis)

    def tensors(self, qtype: QType, axis: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Equation (6); float32 all through, as a quotient of two float32 rounds alike in float64 and in float32."""
        others = [i for i in range(self._w.dim()) if i != axis]
        absmax = self._w.abs().amax(others) if others else self._w.abs()
        if not math.isfinite(float(absmax.sum())):
            raise CalibrationError("a weight contains NaN or infinity")
        # A channel of zeros gets scale 1: its integers are 0 whatever the scale.
        scale = torch.where(absmax > 0, (absmax / qtype.qmax).clamp_min_(MIN_SCALE), 1.0)
        return scale, torch.full_like(scale, qtype.middle, dtype=torch.int32)

    def state(self) -> dict[str, Any]:
        return {"seen": False}

    def load_state(self, state: dict[str, Any]) -> None:
        self.seen = False


class CalibratorObserver:
    """A calibrator of post-training quantization, fed with tensors: percentile, entropy, mse ..."""

    has_history = True

    def __init__(self, calibrator: str) -> None:
        if calibrator not in CALIBRATORS:
            raise UsageError(f"unknown calibrator {calibrator!r}; there are {', '.join(CALIBRATORS)}")
        self._calibrator: Calibrator = CALIBRATORS[calibrator]()
        self.seen = False

    def observe(self, x: torch.Tensor) -> None:
        self._calibrator.observe(x.cpu().numpy())
        self.seen = True

    def qparams(self, qtype: QType, axis: int | None) -> QParams:
        return choose_qparams(self._calibrator.range(), qtype)

    def tensors(self, qtype: QType, axis: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        scale, zero_point = place(self._calibrator.range(), qtype)
        return torch.tensor(scale, dtype=torch.float32), torch.tensor(zero_point, dtype=torch.int32)

    def state(self) -> dict[str, Any]:
        return {"calibrator": self._calibrator.state() if self.seen else None}

    def load_state(self, state: dict[str, Any]) -> None:
        self.seen = state["calibrator"] is not None
        if self.seen:
            self._calibrator = type(self._calibrator).from_state(state["calibrator"])


def _finite_ends(x: torch.Tensor) -> tuple[float, float]:
    """Of the batch, or of the batches of all processes together where torch.distributed runs."""
    if x.numel() == 0:
        raise CalibrationError("an empty tensor was observed")
    lo, hi = torch.aminmax(x)  # propagates NaN
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        # Every process takes part, whatever it saw: one that raised before would leave the others waiting.
        ends = torch.stack([-lo, hi]).nan_to_num(nan=math.inf, posinf=math.inf)
        distributed.all_reduce(ends, op=distributed.ReduceOp.MAX)
        lo, hi = -ends[0], ends[1]
    if not (math.isfinite(lo) and math.isfinite(hi)):
        raise CalibrationError("an activation contains NaN or infinity")
    return float(lo), float(hi)
