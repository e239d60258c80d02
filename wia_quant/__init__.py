# SPDX-License-Identifier: Apache-2.0
"""Quantize ONNX models for WIA-AI-011 accelerators and run them in exact int8.

``import wia_quant`` loads no framework: each name below is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from wia_quant.conformance import check
    from wia_quant.data import open_data
    from wia_quant.errors import WiaError
    from wia_quant.evaluation import Evaluation
    from wia_quant.examination import examine
    from wia_quant.gate import baseline, regress
    from wia_quant.measurement import evaluate
    from wia_quant.quantizer import QuantizedModel, quantize
    from wia_quant.reports.gather import report
    from wia_quant.runtime import Session
    from wia_quant.table import CalibrationTable

__version__: Final = "0.1.0"

#: Public name -> the module that has it.
_PUBLIC: Final = MappingProxyType(
    {
        "CalibrationTable": "wia_quant.table",
        "Evaluation": "wia_quant.evaluation",
        "QuantizedModel": "wia_quant.quantizer",
        "Session": "wia_quant.runtime",
        "WiaError": "wia_quant.errors",
        "baseline": "wia_quant.gate",
        "check": "wia_quant.conformance",
        "evaluate": "wia_quant.measurement",
        "examine": "wia_quant.examination",
        "open_data": "wia_quant.data",
        "quantize": "wia_quant.quantizer",
        "regress": "wia_quant.gate",
        "report": "wia_quant.reports.gather",
    }
)

__all__ = [
    "CalibrationTable",
    "Evaluation",
    "QuantizedModel",
    "Session",
    "WiaError",
    "__version__",
    "baseline",
    "check",
    "evaluate",
    "examine",
    "open_data",
    "quantize",
    "regress",
    "report",
]


def __getattr__(name: str) -> Any:  # Any: what a module attribute is; PEP 562
    if name not in _PUBLIC:
        raise AttributeError(f"module 'wia_quant' has no attribute '{name}'")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
