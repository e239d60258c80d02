# SPDX-License-Identifier: Apache-2.0
"""Integers of a file -> the weights and biases of a prepared model: those whose grids give these integers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn.utils import parametrize

from wia_quant.affine import INT8_NARROW
from wia_quant.errors import CalibrationError
from wia_quant.integers import Floats, Integers, Levels, Scales, integers_of, weight_of
from wia_quant.torch.product import CHANNEL_AXIS, QuantizedProduct, type_of

_log = logging.getLogger(__name__)

#: How near the scales of a file are to those of the weights that it was made of: float32 folds in another order.
_ALIKE: Final = 1e-4


def begin_weights(prepared: nn.Module, proto: onnx.ModelProto) -> None:
    """Gives every product the weight and bias that the file has for it; a file's product is known by its scales.

    Raises:
        CalibrationError: the file has the weights of none of the products.
    """
    file = integers_of(proto)
    said: dict[str, list[str]] = {}
    products = {name: m for name, m in prepared.named_modules() if isinstance(m, QuantizedProduct)}
    begun = 0
    for name, product in products.items():
        found = _found(product, file)
        if found is None:
            said.setdefault(_UNKNOWN, []).append(name)
            continue
        begun += 1
        _begin_weight(product, *found)
        if found[0].bias is not None:
            _begin_bias(product, found[0].bias)
    if not begun and products:
        raise CalibrationError("the quantized model has the weights of no product of this one; it was made of another")
    for what, names in said.items():
        _log.warning("%s: %s", ", ".join(names), what)


_UNKNOWN: Final = "the file has no product with its weights, which begin as they are"


def _found(product: QuantizedProduct, file: Mapping[str, Integers]) -> tuple[Integers, Levels] | None:
    """The first product of the file with the scales of this one, and its levels in torch's order."""
    module = product.product
    quantizer = product.weight_fake_quantize
    if quantizer.qtype != INT8_NARROW or quantizer.axis is None or parametrize.is_parametrized(module):
        return None
    weight = _folded(product)
    axis = CHANNEL_AXIS[type_of(module)]
    wanted = np.abs(np.moveaxis(weight, axis, 0).reshape(weight.shape[axis], -1)).max(axis=1) / INT8_NARROW.qmax
    for one in file.values():
        turned = one.node.op_type == "MatMul" or (one.node.op_type == "Gemm" and not _is_transposed(one.node))
        levels = one.levels.T if turned else one.levels
        scale = np.broadcast_to(one.scale.reshape(-1), wanted.shape) if one.scale.size in (1, wanted.size) else None
        if levels.shape != weight.shape or scale is None:
            continue
        # A scale may have been raised for a bias, or be another channel's where all is zero.
        if (np.abs(scale - wanted) <= _ALIKE * wanted)[wanted > 0].mean() > _MOST:
            return one, levels
    return None


#: The share of the channels whose scales must be those of the weights.
_MOST: Final = 0.5


def _is_transposed(node: onnx.NodeProto) -> bool:
    return any(a.name == "transB" and a.i for a in node.attribute)


def _folded(product: QuantizedProduct) -> Scales:
    with torch.no_grad():
        found: Scales = product.folded()[0].detach().cpu().numpy()
    return found


def _begin_weight(product: QuantizedProduct, file: Integers, levels: Levels) -> None:
    weight: torch.Tensor = product.product.weight
    axis = CHANNEL_AXIS[type_of(product.product)]
    along = [-1 if i == axis else 1 for i in range(weight.dim())]
    scale = np.broadcast_to(file.scale.reshape(-1), (weight.shape[axis],)).reshape(along)
    before: Scales = weight.detach().cpu().numpy()
    gain = np.ones(before.shape, np.float32)
    with torch.no_grad():
        if product.bn is not None:
            gain = np.broadcast_to(product._along_channels(product._fold()).cpu().numpy(), before.shape)
        others = tuple(i for i in range(weight.dim()) if i != axis)
        values, _ = weight_of(levels, np.broadcast_to(scale, before.shape), gain, before, others)
        weight.copy_(torch.from_numpy(values))


def _begin_bias(product: QuantizedProduct, bias: Floats) -> None:
    """In the BatchNorm's, else the module's own, else the running mean; a module that has neither gets a bias."""
    module, bn = product.product, product.bn
    if bn is None and module.bias is None:
        module.bias = nn.Parameter(torch.zeros(len(bias), device=module.weight.device))
    wanted = torch.from_numpy(bias)
    with torch.no_grad():
        for _ in range(_ROUNDS):
            folded = product.folded()[1]
            assert folded is not None
            missing = wanted - folded.double().cpu()
            if bn is None:
                _add(module.bias, missing)
            elif bn.bias is not None:
                _add(bn.bias, missing)
            else:
                fold = product._fold().double().cpu()
                change = torch.where(fold == 0, 0.0, missing / fold)
                _add(*((bn.running_mean, -change) if module.bias is None else (module.bias, change)))


def _add(parameter: torch.Tensor, change: torch.Tensor) -> None:
    parameter.copy_((parameter.double().cpu() + change).float())


#: The second makes good what float32 lost in the first.
_ROUNDS: Final = 2
