# SPDX-License-Identifier: Apache-2.0
"""The table of weights: where each layer keeps its own, and which of its axes are output channels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from wia_quant.affine import INT8_NARROW, QParams, choose_qparams_per_axis


@dataclass(frozen=True)
class Weight:
    """Of a layer.

    Attributes:
        attribute: its name in Keras 3.
        legacy: its name in tf_keras.
        channels: the axes that have a scale for each place, in the order of the output channels.
    """

    attribute: str
    legacy: str
    channels: tuple[int, ...]


_KERNEL: Final = Weight("kernel", "kernel", (-1,))
_TRANSPOSED: Final = Weight("kernel", "kernel", (-2,))
_DEPTHWISE: Final = Weight("kernel", "depthwise_kernel", (-2, -1))

WEIGHTS: Final[Mapping[str, Weight]] = MappingProxyType(
    {
        "Conv1D": _KERNEL,
        "Conv2D": _KERNEL,
        "Conv3D": _KERNEL,
        "Dense": _KERNEL,
        "DepthwiseConv1D": _DEPTHWISE,
        "DepthwiseConv2D": _DEPTHWISE,
        "Conv1DTranspose": _TRANSPOSED,
        "Conv2DTranspose": _TRANSPOSED,
        "Conv3DTranspose": _TRANSPOSED,
        "Embedding": Weight("embeddings", "embeddings", (0,)),
    }
)


def summed_axes(rank: int, channels: tuple[int, ...]) -> tuple[int, ...]:
    """The axes that share a scale."""
    kept = {axis % rank for axis in channels}
    return tuple(axis for axis in range(rank) if axis not in kept)


def grid_of(kernel: np.ndarray[Any, Any], channels: tuple[int, ...]) -> QParams:
    """One symmetric scale an output channel; equation (6). The scales are in the order of the channels."""
    absmax = np.abs(kernel).max(axis=summed_axes(kernel.ndim, channels)).reshape(-1)
    return choose_qparams_per_axis(absmax, INT8_NARROW, 0)
