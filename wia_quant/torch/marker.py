# SPDX-License-Identifier: Apache-2.0
"""One operator that stands for Q then DQ while torch exports a model, and its ONNX form.

torch's own fake-quantize operators cannot be traced with a dynamic batch (no meta kernel), and their translation
knows only whole integer types; this one has neither limit.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch

from wia_quant.torch.fake_quantize import fake_quantize


@torch.library.custom_op("wia::quantize_dequantize", mutates_args=())
def quantize_dequantize(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, qmin: int, qmax: int
) -> torch.Tensor:
    """Equations (1) and (2); ``axis`` is -1 per tensor, ``zero_point`` has the integers' own type."""
    return fake_quantize(x, scale, zero_point.to(torch.int32), qmin, qmax, None if axis < 0 else axis)


@quantize_dequantize.register_fake
def _(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, qmin: int, qmax: int) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("wia::round_to_half", mutates_args=())
def round_to_half(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, fits: bool) -> torch.Tensor:
    """``x`` rounded to float16 if it ``fits``; ``scale`` and ``zero_point`` only say which range was seen."""
    return x.half().to(x.dtype) if fits else x.clone()


@round_to_half.register_fake
def _(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, fits: bool) -> torch.Tensor:
    return torch.empty_like(x)


def translations(opset: int) -> dict[Callable[..., Any], Callable[..., Any]]:
    """The table that ``torch.onnx.export(custom_translation_table=...)`` takes; needs onnxscript."""
    op = getattr(importlib.import_module("onnxscript"), f"opset{opset}")

    def translate(x: Any, scale: Any, zero_point: Any, axis: int, qmin: int, qmax: int) -> Any:
        q = op.QuantizeLinear(x, scale, zero_point, axis=max(axis, 0))
        return op.DequantizeLinear(q, scale, zero_point, axis=max(axis, 0))

    def translate_half(x: Any, scale: Any, zero_point: Any, fits: bool) -> Any:
        # Only carries the range that was seen: trained.py takes it off and writes Casts where the format has them.
        return op.DequantizeLinear(op.QuantizeLinear(x, scale, zero_point), scale, zero_point)

    return {
        torch.ops.wia.quantize_dequantize.default: translate,
        torch.ops.wia.round_to_half.default: translate_half,
    }
