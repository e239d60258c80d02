# SPDX-License-Identifier: Apache-2.0
"""The wia qconfigs.

Scheme (WIA-AI-011 phase 4): activations int8 per-tensor affine by moving-average min-max, weights int8 per-channel
symmetric narrow range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

from torch import nn
from torch.ao.quantization import QConfig, QConfigMapping

from wia_quant.affine import INT4_NARROW, INT8, INT8_NARROW, INT16_SYMMETRIC, QType
from wia_quant.calibrators import CALIBRATORS
from wia_quant.errors import UsageError
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.half import HalfQuantize, HalfWeight
from wia_quant.torch.lsq import LearnedFakeQuantize
from wia_quant.torch.observers import (
    AbsMaxObserver,
    CalibratorObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    Observer,
)

#: torch's name of our backend.
BACKEND: Final = "wia"
#: Scheme -> the grids of weights and activations; None: the activations stay float.
SCHEMES: Final[Mapping[str, tuple[QType, QType | None]]] = MappingProxyType(
    {
        "w8a8": (INT8_NARROW, INT8),
        "w8a16": (INT8_NARROW, INT16_SYMMETRIC),
        "w4a8": (INT4_NARROW, INT8),
        "w8": (INT8_NARROW, None),
        "w4": (INT4_NARROW, None),
    }
)

#: The scheme of float16: rounding instead of grids.
HALF: Final = "fp16"

#: How the range of an activation is chosen: those of post-training quantization, and torch's word for one of them.
OBSERVERS: Final[Mapping[str, Callable[[], Observer]]] = MappingProxyType(
    {
        "moving_average": MovingAverageMinMaxObserver,
        "minmax": MinMaxObserver,
        "histogram": partial(CalibratorObserver, "mse"),  # torch.ao's HistogramObserver searches the least square error
        **{name: partial(CalibratorObserver, name) for name in CALIBRATORS if name not in ("moving_average", "minmax")},
    }
)


def get_qconfig(
    scheme: str = "w8a8", *, observer: str = "moving_average", per_channel: bool = True, learned: bool = False
) -> QConfig:
    """A qconfig by its parts.

    Args:
        scheme: a name of ``SCHEMES``: bits of weights and of activations, weights of 4 bits being levels -7..7, one
            scale a channel; or "fp16", which has no ranges, so that nothing else is to be chosen.
        observer: a name of ``OBSERVERS``.
        per_channel: one scale for each output channel of a weight; else one for all.
        learned: scales are parameters after ``start_learning(model)`` (LSQ).

    Raises:
        UsageError: an unknown name.
    """
    if scheme == HALF:
        if learned:
            raise UsageError("scheme 'fp16' has no scales to learn; leave out learned=True")
        return QConfig(activation=HalfQuantize.with_args(), weight=HalfWeight.with_args())
    if scheme not in SCHEMES:
        raise UsageError(f"unknown scheme {scheme!r}; there are {', '.join((*SCHEMES, HALF))}")
    if observer not in OBSERVERS:
        raise UsageError(f"unknown observer {observer!r}; there are {', '.join(OBSERVERS)}")
    weight, activation = SCHEMES[scheme]
    kind = LearnedFakeQuantize if learned else FakeQuantize
    return QConfig(
        activation=nn.Identity
        if activation is None
        else kind.with_args(observer=OBSERVERS[observer], qtype=activation),
        weight=kind.with_args(observer=AbsMaxObserver, qtype=weight, axis=0 if per_channel else None),
    )


def get_default_qat_qconfig(backend: str = BACKEND, version: int = 1) -> QConfig:
    """The qconfig for quantization-aware training; ``version`` is accepted for torch's signature."""
    _require_wia(backend)
    return get_qconfig()


def get_default_qconfig(backend: str = BACKEND, version: int = 1) -> QConfig:
    """The qconfig for post-training quantization: the same grids, ranges by min-max of the samples."""
    _require_wia(backend)
    return get_qconfig(observer="minmax")


def get_default_qat_qconfig_mapping(backend: str = BACKEND, version: int = 1) -> QConfigMapping:
    """The mapping for torch.ao's FX functions, every operator by ``get_default_qat_qconfig``."""
    return QConfigMapping().set_global(get_default_qat_qconfig(backend, version))


def get_default_qconfig_mapping(backend: str = BACKEND, version: int = 1) -> QConfigMapping:
    """As ``get_default_qat_qconfig_mapping``, post-training."""
    return QConfigMapping().set_global(get_default_qconfig(backend, version))


def get_lsq_qconfig() -> QConfig:
    """As ``get_default_qat_qconfig``, with scales that are learned after ``start_learning(model)``."""
    return get_qconfig(learned=True)


def _require_wia(backend: str) -> None:
    if backend != BACKEND:
        raise UsageError(f"backend '{backend}' is not ours; use '{BACKEND}', or torch.ao's function for its backends")
