# SPDX-License-Identifier: Apache-2.0
"""The table of torch modules and functions: what quantization makes of each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional


class Role(Enum):
    """What a node does to the grids of its tensors."""

    PRODUCT = "multiplies by a weight: input quantized, output quantized"
    LOOKUP = "rows of an integer table: each row has its scale, so that the output has none"
    ARITHMETIC = "integers in, integers out, a scale of its own"
    CONCAT = "all inputs and the output share one scale"
    CLIP = "monotone: no quantizer between it and a product or a sum before it"
    TABLE = "a function of one value: quantizers on both sides"
    MOVER = "moves values: output on the grid of the input"
    FLOAT = "stays float"


MODULES: Final[Mapping[type[nn.Module], Role]] = MappingProxyType(
    {
        nn.Conv1d: Role.PRODUCT,
        nn.Conv2d: Role.PRODUCT,
        nn.Conv3d: Role.PRODUCT,
        nn.ConvTranspose1d: Role.PRODUCT,
        nn.ConvTranspose2d: Role.PRODUCT,
        nn.ConvTranspose3d: Role.PRODUCT,
        nn.Linear: Role.PRODUCT,
        nn.Embedding: Role.LOOKUP,
        nn.ReLU: Role.CLIP,
        nn.ReLU6: Role.CLIP,
        nn.Hardtanh: Role.CLIP,
        nn.LeakyReLU: Role.TABLE,
        nn.ELU: Role.TABLE,
        nn.Hardswish: Role.TABLE,
        nn.Hardsigmoid: Role.TABLE,
        nn.Sigmoid: Role.TABLE,
        nn.SiLU: Role.TABLE,
        nn.GELU: Role.TABLE,
        nn.Tanh: Role.TABLE,
        nn.Mish: Role.TABLE,
        nn.Softplus: Role.TABLE,
        nn.SELU: Role.TABLE,
        nn.CELU: Role.TABLE,
        nn.Softsign: Role.TABLE,
        nn.PReLU: Role.TABLE,
        nn.AvgPool1d: Role.ARITHMETIC,
        nn.AvgPool2d: Role.ARITHMETIC,
        nn.AdaptiveAvgPool1d: Role.ARITHMETIC,
        nn.AdaptiveAvgPool2d: Role.ARITHMETIC,
        nn.UpsamplingBilinear2d: Role.ARITHMETIC,
        nn.MaxPool1d: Role.MOVER,
        nn.MaxPool2d: Role.MOVER,
        nn.MaxPool3d: Role.MOVER,
        **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), Role.MOVER),
        nn.Identity: Role.MOVER,
        nn.Dropout: Role.MOVER,
        nn.Dropout1d: Role.MOVER,
        nn.Dropout2d: Role.MOVER,
        nn.Flatten: Role.MOVER,
        nn.Unflatten: Role.MOVER,
        nn.PixelShuffle: Role.MOVER,
        nn.PixelUnshuffle: Role.MOVER,
        nn.UpsamplingNearest2d: Role.MOVER,
        **dict.fromkeys((nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d), Role.MOVER),
        **dict.fromkeys((nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d), Role.MOVER),
        **dict.fromkeys((nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d), Role.MOVER),
    }
)

FUNCTIONS: Final[Mapping[Callable[..., Any], Role]] = MappingProxyType(
    {
        operator.add: Role.ARITHMETIC,
        operator.iadd: Role.ARITHMETIC,
        operator.sub: Role.ARITHMETIC,
        operator.mul: Role.ARITHMETIC,
        operator.imul: Role.ARITHMETIC,
        operator.matmul: Role.ARITHMETIC,
        torch.add: Role.ARITHMETIC,
        torch.sub: Role.ARITHMETIC,
        torch.mul: Role.ARITHMETIC,
        torch.matmul: Role.ARITHMETIC,
        torch.bmm: Role.ARITHMETIC,
        torch.mean: Role.ARITHMETIC,
        functional.avg_pool2d: Role.ARITHMETIC,
        functional.adaptive_avg_pool2d: Role.ARITHMETIC,
        torch.cat: Role.CONCAT,
        torch.concat: Role.CONCAT,
        torch.stack: Role.CONCAT,
        functional.relu: Role.CLIP,
        functional.relu6: Role.CLIP,
        functional.hardtanh: Role.CLIP,
        torch.relu: Role.CLIP,
        functional.leaky_relu: Role.TABLE,
        functional.elu: Role.TABLE,
        functional.selu: Role.TABLE,
        functional.celu: Role.TABLE,
        functional.softplus: Role.TABLE,
        functional.softsign: Role.TABLE,
        functional.prelu: Role.TABLE,
        functional.hardswish: Role.TABLE,
        functional.hardsigmoid: Role.TABLE,
        functional.silu: Role.TABLE,
        functional.gelu: Role.TABLE,
        functional.mish: Role.TABLE,
        torch.sigmoid: Role.TABLE,
        torch.tanh: Role.TABLE,
        functional.max_pool2d: Role.MOVER,
        torch.max_pool2d: Role.MOVER,
        functional.max_pool1d: Role.MOVER,
        functional.max_pool3d: Role.MOVER,
        functional.adaptive_max_pool1d: Role.MOVER,
        functional.adaptive_max_pool2d: Role.MOVER,
        functional.adaptive_max_pool3d: Role.MOVER,
        torch.amax: Role.MOVER,
        torch.amin: Role.MOVER,
        torch.max: Role.MOVER,  # of one tensor; prepare.py sees to two
        torch.min: Role.MOVER,
        functional.dropout: Role.MOVER,
        functional.dropout2d: Role.MOVER,
        functional.pixel_shuffle: Role.MOVER,
        functional.pad: Role.MOVER,  # with zeros or its own values; prepare.py sees to others
        torch.flatten: Role.MOVER,
        torch.reshape: Role.MOVER,
        torch.transpose: Role.MOVER,
        torch.permute: Role.MOVER,
        torch.squeeze: Role.MOVER,
        torch.unsqueeze: Role.MOVER,
        torch.chunk: Role.MOVER,
        torch.split: Role.MOVER,
        torch.unbind: Role.MOVER,
        torch.swapaxes: Role.MOVER,
        torch.movedim: Role.MOVER,
        torch.roll: Role.MOVER,
        operator.getitem: Role.MOVER,
    }
)

#: Products of two activations.
MATRIX_PRODUCTS: Final[frozenset[Callable[..., Any] | str]] = frozenset(
    {operator.matmul, torch.matmul, torch.bmm, "matmul", "bmm"}
)

#: The largest or smallest of one tensor, which is one of its values; of two tensors it is none of either.
EXTREMES: Final[frozenset[Callable[..., Any] | str]] = frozenset({torch.max, torch.min, "max", "min"})

#: Further functions that compute in float16 where float16 is the scheme; they have no integers of their own.
HALVES: Final[frozenset[Callable[..., Any] | str]] = frozenset(
    {operator.truediv, torch.div, "div", operator.neg, torch.neg, torch.abs, "abs", torch.einsum, "clamp", torch.clamp}
)

#: The operators of a program that torch.export captured, by their names in ``torch.ops.aten``; methods of tensors have
#: the same names.
OPERATORS: Final[Mapping[str, Role]] = MappingProxyType(
    {
        "conv1d": Role.PRODUCT,
        "conv2d": Role.PRODUCT,
        "conv3d": Role.PRODUCT,
        "conv_transpose1d": Role.PRODUCT,
        "conv_transpose2d": Role.PRODUCT,
        "conv_transpose3d": Role.PRODUCT,
        "linear": Role.PRODUCT,
        "embedding": Role.LOOKUP,
        "add": Role.ARITHMETIC,
        "add_": Role.ARITHMETIC,
        "sub": Role.ARITHMETIC,
        "mul": Role.ARITHMETIC,
        "mul_": Role.ARITHMETIC,
        "matmul": Role.ARITHMETIC,
        "bmm": Role.ARITHMETIC,
        "mean": Role.ARITHMETIC,
        "avg_pool2d": Role.ARITHMETIC,
        "adaptive_avg_pool1d": Role.ARITHMETIC,
        "adaptive_avg_pool2d": Role.ARITHMETIC,
        "upsample_bilinear2d": Role.ARITHMETIC,
        "sub_": Role.ARITHMETIC,
        "cat": Role.CONCAT,
        "stack": Role.CONCAT,
        "relu": Role.CLIP,
        "relu_": Role.CLIP,
        "relu6": Role.CLIP,
        "relu6_": Role.CLIP,
        "hardtanh": Role.CLIP,
        "hardtanh_": Role.CLIP,
        "leaky_relu": Role.TABLE,
        "leaky_relu_": Role.TABLE,
        "elu": Role.TABLE,
        "hardswish": Role.TABLE,
        "hardswish_": Role.TABLE,
        "hardsigmoid": Role.TABLE,
        "sigmoid": Role.TABLE,
        "silu": Role.TABLE,
        "silu_": Role.TABLE,
        "gelu": Role.TABLE,
        "tanh": Role.TABLE,
        "mish": Role.TABLE,
        "softplus": Role.TABLE,
        "selu": Role.TABLE,
        "celu": Role.TABLE,
        "prelu": Role.TABLE,
        "max_pool1d": Role.MOVER,
        "max_pool2d": Role.MOVER,
        "max_pool3d": Role.MOVER,
        "adaptive_max_pool1d": Role.MOVER,
        "adaptive_max_pool2d": Role.MOVER,
        "adaptive_max_pool3d": Role.MOVER,
        "amax": Role.MOVER,
        "amin": Role.MOVER,
        "max": Role.MOVER,
        "min": Role.MOVER,
        "dropout": Role.MOVER,
        "dropout_": Role.MOVER,
        "feature_dropout": Role.MOVER,
        "flatten": Role.MOVER,
        "unflatten": Role.MOVER,
        "view": Role.MOVER,
        "reshape": Role.MOVER,
        "transpose": Role.MOVER,
        "permute": Role.MOVER,
        "contiguous": Role.MOVER,
        "squeeze": Role.MOVER,
        "unsqueeze": Role.MOVER,
        "chunk": Role.MOVER,
        "split": Role.MOVER,
        "split_with_sizes": Role.MOVER,
        "pixel_shuffle": Role.MOVER,
        "pixel_unshuffle": Role.MOVER,
        "upsample_nearest2d": Role.MOVER,
        "pad": Role.MOVER,
        "constant_pad_nd": Role.MOVER,
        "reflection_pad2d": Role.MOVER,
        "replication_pad2d": Role.MOVER,
        "slice": Role.MOVER,
        "select": Role.MOVER,
        "unbind": Role.MOVER,
        "swapaxes": Role.MOVER,
        "movedim": Role.MOVER,
        "roll": Role.MOVER,
        "expand": Role.MOVER,
        "expand_as": Role.MOVER,
        "repeat": Role.MOVER,
    }
)
