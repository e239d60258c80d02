# SPDX-License-Identifier: Apache-2.0
"""One file per way to choose a range, and the table of them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from wia_quant.calibrators.base import Calibrator, Observer
from wia_quant.calibrators.channels import ChannelExtremes
from wia_quant.calibrators.entropy import Entropy
from wia_quant.calibrators.minmax import MinMax
from wia_quant.calibrators.moving_average import MovingAverage
from wia_quant.calibrators.mse import Mse
from wia_quant.calibrators.percentile import Percentile

#: Name -> constructor; every parameter of a constructor has a default.
CALIBRATORS: Final[Mapping[str, type[Calibrator]]] = MappingProxyType(
    {
        "minmax": MinMax,
        "moving_average": MovingAverage,
        "percentile": Percentile,
        "entropy": Entropy,
        "mse": Mse,
    }
)

__all__ = ["CALIBRATORS", "Calibrator", "ChannelExtremes", "Observer"]
