# SPDX-License-Identifier: Apache-2.0
"""One file per way to lose less accuracy, and the table of them, in the order they are applied."""

from __future__ import annotations

from types import MappingProxyType
from typing import Final

from wia_quant.algorithms.base import Algorithm, Draft
from wia_quant.algorithms.bias_correction import bias_correction
from wia_quant.algorithms.range_choice import range_choice
from wia_quant.algorithms.saturation import saturation
from wia_quant.algorithms.weight_rounding import weight_rounding

#: Name -> algorithm. All of these are on by default: each was measured to help, or not to hurt, on every model
#: of benchmarks/ (docs/adr).
ALGORITHMS: Final = MappingProxyType[str, Algorithm](
    {
        "range_choice": range_choice,
        "saturation": saturation,
        "weight_rounding": weight_rounding,
        "bias_correction": bias_correction,
    }
)

__all__ = ["ALGORITHMS", "Algorithm", "Draft"]
