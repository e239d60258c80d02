# SPDX-License-Identifier: Apache-2.0
"""Torch's own spelling: its functions understand the backend "wia", and mappings of wia qconfigs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, Final

from torch.ao.quantization import QConfigMapping

from wia_quant.torch import qconfig
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.prepare import prepare_fx, prepare_qat_fx

#: The modules of torch that hold a reference to a function below.
_HOLDERS: Final = (
    "torch.ao.quantization",
    "torch.ao.quantization.qconfig",
    "torch.ao.quantization.qconfig_mapping",
    "torch.ao.quantization.quantize_fx",
    "torch.quantization",
    "torch.quantization.qconfig",
    "torch.quantization.quantize_fx",
)

_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "get_default_qat_qconfig": qconfig.get_default_qat_qconfig,
        "get_default_qconfig": qconfig.get_default_qconfig,
        "get_default_qat_qconfig_mapping": qconfig.get_default_qat_qconfig_mapping,
        "get_default_qconfig_mapping": qconfig.get_default_qconfig_mapping,
        "prepare_fx": prepare_fx,
        "prepare_qat_fx": prepare_qat_fx,
    }
)


def register() -> None:
    """Makes ``torch.quantization.get_default_qat_qconfig("wia")`` and its kin work; once is enough.

    torch keeps its list of backends in a local variable, so its functions are wrapped where they are held. A name
    imported before keeps the old function.
    """
    importlib.import_module("torch.ao.quantization.quantize_fx")
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
        return (ours if any(map(_is_ours, (*args, *kwargs.values()))) else theirs)(*args, **kwargs)

    choose.__doc__ = theirs.__doc__
    choose.__name__ = theirs.__name__
    choose.wia_wraps = theirs  # type: ignore[attr-defined]
    return choose


def _is_ours(argument: Any) -> bool:
    """The name of our backend, or a mapping whose global qconfig is one of ours."""
    if isinstance(argument, QConfigMapping):
        chosen = argument.global_qconfig
        return chosen is not None and isinstance(chosen.weight(), FakeQuantize)
    return isinstance(argument, str) and argument == qconfig.BACKEND


def _holders() -> list[ModuleType]:
    return [sys.modules[name] for name in _HOLDERS if name in sys.modules]
