# SPDX-License-Identifier: Apache-2.0
"""Integers of a file -> the weights and biases of a prepared model: those whose grids give these integers.

A product of the file is known by its place in the graph and by the float weight that its levels were made of.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
import torch
from torch import nn
from torch.nn.utils import parametrize

from wia_quant.affine import INT8_NARROW
from wia_quant.integers import PRODUCTS, Floats, Integers, Levels, Scales, weight_of
from wia_quant.torch.product import CHANNEL_AXIS, QuantizedProduct, type_of

_log = logging.getLogger(__name__)

_T = TypeVar("_T", bound=np.generic)

#: The operators that lead to a tensor, and which of several such it is in the graph's order.
Place = tuple[str, int]

#: How near a folded weight is to that of the float graph, of the largest of its channel: float32 in another order.
_ALIKE: Final = 1e-4


def begin_weights(prepared: nn.Module, file: Mapping[str, Integers], nodes: Mapping[str, str]) -> None:
    """Gives every product the weight and bias that the file has for it; one that it has none for is said on the log.

    Args:
        prepared: what ``prepare_qat`` returned; changed.
        file: name of a node -> its integers.
        nodes: path of a product -> its node, where there is one of its weight alone.
    """
    without = []
    for name, product in _products(prepared).items():
        node = nodes.get(name)
        if node is None or node not in file or not _is_alike(product):
            without.append(name)
            continue
        _begin_weight(product, file[node], _as_in_torch(file[node].node, file[node].levels))
        bias = file[node].bias
        if bias is not None:
            _begin_bias(product, bias)
    if without:
        _log.warning("%s: %s", ", ".join(without), _UNKNOWN)


_UNKNOWN: Final = "the file has no product with its weights, which begin as they are"


def products_at(
    prepared: nn.Module,
    at: Mapping[str, tuple[str, int]],
    proto: onnx.ModelProto,
    places: Mapping[str, tuple[str, int]],
) -> dict[str, str]:
    """Path of a product -> the node of ``proto`` that has its weight and its place.

    Args:
        prepared: what ``prepare_qat`` returned.
        at: path of a product -> the place of its result.
        proto: the folded float model.
        places: tensor of it -> its place.
    """
    constants = {t.name: t for t in proto.graph.initializer}
    there: dict[str, list[tuple[int, onnx.NodeProto]]] = {}
    for node in proto.graph.node:
        if node.op_type in PRODUCTS and node.input[PRODUCTS[node.op_type]] in constants:
            path, n = places[node.output[0]]
            there.setdefault(path, []).append((n, node))
    found: dict[str, str] = {}
    for name, product in _products(prepared).items():
        path, n = at.get(name, ("", 0))
        same = [
            (node.name in found.values(), abs(m - n), node.name)
            for m, node in there.get(path, ())
            if _is_near(product, _as_in_torch(node, _weight(constants[node.input[PRODUCTS[node.op_type]]])))
        ]
        if same:  # one that is taken already only where equal layers became one node
            found[name] = min(same)[2]
    return found


def _products(prepared: nn.Module) -> dict[str, QuantizedProduct]:
    return {name: m for name, m in prepared.named_modules() if isinstance(m, QuantizedProduct)}


def _is_alike(product: QuantizedProduct) -> bool:
    """Whether it trains on the grid that the file has."""
    quantizer = product.weight_fake_quantize
    return (
        quantizer.qtype == INT8_NARROW
        and quantizer.axis is not None
        and not parametrize.is_parametrized(product.product)
    )


def _is_near(product: QuantizedProduct, weight: Scales) -> bool:
    """Whether ``weight`` is the product's, but for the order in which a BatchNorm was folded in."""
    ours = _folded(product)
    if ours.shape != weight.shape:
        return False
    axis = CHANNEL_AXIS[type_of(product.product)]
    others = tuple(i for i in range(ours.ndim) if i != axis)
    return bool((np.abs(ours - weight) <= _ALIKE * np.abs(ours).max(axis=others, keepdims=True)).all())


def _weight(tensor: onnx.TensorProto) -> Scales:
    return onnx.numpy_helper.to_array(tensor)


def _as_in_torch(node: onnx.NodeProto, weight: npt.NDArray[_T]) -> npt.NDArray[_T]:
    """``weight`` of a node in the order that torch keeps it."""
    turned = node.op_type == "MatMul" or (node.op_type == "Gemm" and not _is_transposed(node))
    return weight.T if turned else weight


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
