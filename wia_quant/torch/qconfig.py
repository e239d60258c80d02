# SPDX-License-Identifier: Apache-2.0
"""The wia qconfigs, and torch's own spelling of them.

Scheme (WIA-AI-011 phase 4): activations int8 per-tensor affine by moving-average min-max, weights int8 per-channel
symmetric narrow range.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from torch.ao.quantization import QConfig, QConfigMapping

from wia_quant.affine import INT8, INT8_NARROW
from wia_quant.errors import UsageError
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.lsq import LearnedFakeQuantize
from wia_quant.torch.observers import (
    AbsMaxObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
)

#: torch's name of our backend.
BACKEND: Final = "wia"
#: The modules of torch that hold a reference to each function of its qconfig API.
_HOLDERS: Final = (
    "torch.ao.quantization",
    "torch.ao.quantization.qconfig",
    "torch.ao.quantization.qconfig_mapping",
    "torch.quantization",
    "torch.quantization.qconfig",
)


def _qconfig(observer: Callable[[], object]) -> QConfig:
    return QConfig(
        activation=FakeQuantize.with_args(observer=observer, qtype=INT8),
        weight=FakeQuantize.with_args(observer=AbsMaxObserver, qtype=INT8_NARROW, axis=0),
    )


def get_default_qat_qconfig(backend: str = BACKEND, version: int = 1) -> QConfig:
    """The qconfig for quantization-aware training; ``version`` is accepted for torch's signature."""
    _require_wia(backend)
    return _qconfig(MovingAverageMinMaxObserver)


def get_default_qconfig(backend: str = BACKEND, version: int = 1) -> QConfig:
    """The qconfig for post-training quantization: the same grids, ranges by min-max of the samples."""
    _require_wia(backend)
    return _qconfig(MinMaxObserver)


def get_default_qat_qconfig_mapping(backend: str = BACKEND, version: int = 1) -> QConfigMapping:
    """The mapping for torch.ao's FX functions, every operator by ``get_default_qat_qconfig``."""
    return QConfigMapping().set_global(get_default_qat_qconfig(backend, version))


def get_default_qconfig_mapping(backend: str = BACKEND, version: int = 1) -> QConfigMapping:
    """As ``get_default_qat_qconfig_mapping``, post-training."""
    return QConfigMapping().set_global(get_default_qconfig(backend, version))


_FUNCTIONS: Final = {
    "get_default_qat_qconfig": get_default_qat_qconfig,
    "get_default_qconfig": get_default_qconfig,
    "get_default_qat_qconfig_mapping": get_default_qat_qconfig_mapping,
    "get_default_qconfig_mapping": get_default_qconfig_mapping,
}


def register() -> None:
    """Makes ``torch.quantization.get_default_qat_qconfig("wia")`` and its kin work; once is enough.

    torch keeps its list of backends in a local variable, so its functions are wrapped where they are held. A name
    imported before keeps the old function.
    """
    for module in _holders():
        for name, ours in _FUNCTIONS.items():
            theirs = getattr(module, name, None)
            if theirs is not None and not hasattr(theirs, "wia_wraps"):
                setattr(module, name, _dispatch(ours, theirs))


def unregister() -> None:
    """Puts torch's own functions back."""
    for module in _holders():
        for name in _FUNCTIONS:
            wrapped = getattr(getattr(module, name, None), "wia_wraps", None)
            if wrapped is not None:
                setattr(module, name, wrapped)


def _dispatch(ours: Callable[..., Any], theirs: Callable[..., Any]) -> Callable[..., Any]:
    def choose(*args: Any, **kwargs: Any) -> Any:  # Any: torch's own signature, passed on unchanged
        backend = args[0] if args else kwargs.get("backend")
        return (ours if backend == BACKEND else theirs)(*args, **kwargs)

    choose.__doc__ = theirs.__doc__
    choose.__name__ = theirs.__name__
    choose.wia_wraps = theirs  # type: ignore[attr-defined]
    return choose


def _holders() -> list[ModuleType]:
    return [sys.modules[name] for name in _HOLDERS if name in sys.modules]


def get_lsq_qconfig() -> QConfig:
    """As ``get_default_qat_qconfig``, with scales that are learned after ``start_learning(model)``."""
    return QConfig(
        activation=LearnedFakeQuantize.with_args(observer=MovingAverageMinMaxObserver, qtype=INT8),
        weight=LearnedFakeQuantize.with_args(observer=AbsMaxObserver, qtype=INT8_NARROW, axis=0),
    )


def _require_wia(backend: str) -> None:
    if backend != BACKEND:
        raise UsageError(f"backend '{backend}' is not ours; use '{BACKEND}', or torch.ao's function for its backends")
