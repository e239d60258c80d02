# SPDX-License-Identifier: Apache-2.0
"""Operators for onnx.reference: products that add up in float64, fast enough for whole models, and mended ones.

onnx.reference 1.23 has no DequantizeLinear below opset 19, takes a BatchNormalization below opset 14 that has a
momentum for one in training, and the largest of all channels for GlobalMaxPool's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_dequantize_linear

Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]


def window_sums(x: Float64, w: Float64, strides: Sequence[int], dilations: Sequence[int], groups: int) -> Float64:
    """Correlation of padded x [N, C, spatial...] with w [M, C / groups, kernel...]."""
    kernel = w.shape[2:]
    size = [(x.shape[2 + d] - (kernel[d] - 1) * dilations[d] - 1) // strides[d] + 1 for d in range(len(kernel))]
    n, m = x.shape[0], w.shape[0]
    xg = x.reshape(n, groups, -1, *x.shape[2:])
    wg = w.reshape(groups, m // groups, *w.shape[1:])
    y = np.zeros((n, groups, m // groups, int(np.prod(size))))
    for index in np.ndindex(*kernel):
        where = tuple(
            slice(k * d, k * d + (s - 1) * stride + 1, stride)
            for k, d, s, stride in zip(index, dilations, size, strides, strict=True)
        )
        part = xg[(slice(None), slice(None), slice(None), *where)].reshape(n, groups, xg.shape[2], -1)
        y += wg[(slice(None), slice(None), slice(None), *index)] @ part
    return y.reshape(n, m, *size)


class Conv(OpRun):
    """Conv."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]
        self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, pads=None, strides=None
    ) -> tuple[Float32]:
        rank = w.ndim - 2
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        pads = _pads(auto_pad, pads, x.shape[2:], w.shape[2:], strides, dilations)
        padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
        y = window_sums(padded, w.astype(np.float64), strides, dilations, group or 1)
        if b is not None:
            y += b.astype(np.float64).reshape(1, -1, *[1] * rank)
        return (y.astype(np.float32),)


class ConvTranspose(OpRun):
    """ConvTranspose: the input spread by the strides, correlated with the mirrored kernel."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]
        self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, output_padding=None,
        output_shape=None, pads=None, strides=None,
    ) -> tuple[Float32]:  # fmt: skip
        if output_shape is not None or (auto_pad or "NOTSET") != "NOTSET":
            raise NotImplementedError("ConvTranspose with output_shape or auto_pad")
        rank, group = w.ndim - 2, group or 1
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        pads, extra = pads or [0] * (2 * rank), output_padding or [0] * rank
        spread = np.zeros((*x.shape[:2], *[(s - 1) * t + 1 for s, t in zip(x.shape[2:], strides, strict=True)]))
        spread[(slice(None), slice(None), *[slice(None, None, t) for t in strides])] = x
        reach = [(k - 1) * d for k, d in zip(w.shape[2:], dilations, strict=True)]
        edges = [(reach[d] - pads[d], reach[d] - pads[rank + d] + extra[d]) for d in range(rank)]
        spread = np.pad(spread, [(0, 0), (0, 0), *[(max(a, 0), max(b_, 0)) for a, b_ in edges]])
        cut = [slice(max(-a, 0), s - max(-b_, 0)) for (a, b_), s in zip(edges, spread.shape[2:], strict=True)]
        mirrored = w.astype(np.float64)[(slice(None), slice(None), *[slice(None, None, -1)] * rank)]
        c, per = w.shape[0] // group, w.shape[1]
        kernel = mirrored.reshape(group, c, per, *w.shape[2:]).swapaxes(1, 2).reshape(group * per, c, *w.shape[2:])
        y = window_sums(spread[(slice(None), slice(None), *cut)], kernel, [1] * rank, dilations, group)
        if b is not None:
            y += b.astype(np.float64).reshape(1, -1, *[1] * rank)
        return (y.astype(np.float32),)


class MatMul(OpRun):
    """MatMul."""

    op_domain = ""

    def _run(self, a, b) -> tuple[npt.NDArray[Any]]:  # type: ignore[no-untyped-def]
        if a.dtype != np.float32:
            return (np.matmul(a, b),)
        return (np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.float32),)


class Gemm(OpRun):
    """Gemm."""

    op_domain = ""

    def _run(self, a, b, c=None, alpha=None, beta=None, transA=None, transB=None) -> tuple[Float32]:  # type: ignore[no-untyped-def]  # noqa: N803
        left = a.astype(np.float64).T if transA else a.astype(np.float64)
        right = b.astype(np.float64).T if transB else b.astype(np.float64)
        y = left @ right * (1.0 if alpha is None else alpha)
        if c is not None:
            y = y + c.astype(np.float64) * (1.0 if beta is None else beta)
        return (y.astype(np.float32),)


class DequantizeLinear(op_dequantize_linear.DequantizeLinear_25):
    """onnx.reference's own of the latest opset, for all of them."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]
        self, x, scale, zero_point=None, axis=None, block_size=None, output_dtype=None
    ) -> tuple[npt.NDArray[Any]]:
        axis, block_size = 1 if axis is None else axis, block_size or 0
        return super()._run(x, scale, zero_point, axis=axis, block_size=block_size, output_dtype=output_dtype)  # type: ignore[no-any-return]


class BatchNormalization(OpRun):
    """BatchNormalization of inference."""

    op_domain = ""

    def _run(  # type: ignore[no-untyped-def]
        self, x, scale, bias, mean, var, epsilon=None, momentum=None, spatial=None, training_mode=None
    ) -> tuple[Float32]:
        shape = (1, -1, *[1] * (x.ndim - 2))
        gain = scale.astype(np.float64) / np.sqrt(var.astype(np.float64) + (1e-5 if epsilon is None else epsilon))
        y = (x - mean.astype(np.float64).reshape(shape)) * gain.reshape(shape) + bias.reshape(shape)
        return (y.astype(np.float32),)


class GlobalMaxPool(OpRun):
    """GlobalMaxPool."""

    op_domain = ""

    def _run(self, x) -> tuple[npt.NDArray[Any]]:  # type: ignore[no-untyped-def]
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


#: What onnx.reference lacks or gets wrong.
MENDED: list[type[OpRun]] = [DequantizeLinear, BatchNormalization, GlobalMaxPool]

#: What stands for its slow float32 products.
PRODUCTS: list[type[OpRun]] = [Conv, ConvTranspose, MatMul, Gemm]


def _pads(
    auto_pad: str | None,
    pads: Sequence[int] | None,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> list[int]:
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        total = [
            max(0, (-(-s // t) - 1) * t + (k - 1) * d + 1 - s)
            for s, k, t, d in zip(sizes, kernel, strides, dilations, strict=True)
        ]
        small, large = [t // 2 for t in total], [t - t // 2 for t in total]
        return small + large if auto_pad == "SAME_UPPER" else large + small
    return list(pads) if pads else [0] * (2 * len(kernel))
