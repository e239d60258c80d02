# SPDX-License-Identifier: Apache-2.0
"""A trained model with everything that moves made constant: what torch's exporter can read.

BatchNorms are folded with their trained statistics, fake quantizers become
one operator with constant parameters that is translated exactly (marker.py).
"""

from __future__ import annotations

import copy
import inspect
import types

import numpy as np
import torch
from torch import fx, nn

from wia_quant.affine import QParams, QType
from wia_quant.torch.constants import is_constant, value_of
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.half import HalfQuantize
from wia_quant.torch.marker import quantize_dequantize, round_to_half
from wia_quant.torch.paths import put
from wia_quant.torch.product import QuantizedProduct, multiply, require_channels_at_1


class FrozenQuantizer(nn.Module):
    """Q then DQ with constant parameters, as one operator that the exporter translates."""

    def __init__(self, qp: QParams) -> None:
        super().__init__()
        self.register_buffer("scale", torch.from_numpy(np.array(qp.scale)))
        self.register_buffer("zero_point", torch.from_numpy(np.array(qp.zero_point)))
        self.axis = -1 if qp.axis is None else qp.axis
        self.qmin, self.qmax = qp.qtype.qmin, qp.qtype.qmax

    @staticmethod
    def of(scale: float, zero_point: int, dtype: torch.dtype, qmin: int, qmax: int) -> FrozenQuantizer:
        """One per tensor, from plain numbers."""
        integers = np.array(zero_point, dtype=str(dtype).removeprefix("torch."))
        grid = QType(f"{integers.dtype}_{qmin}_{qmax}", integers.dtype, qmin, qmax)
        return FrozenQuantizer(QParams(grid, np.array(scale, np.float32), integers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale, zero_point = self.get_buffer("scale"), self.get_buffer("zero_point")
        quantized: torch.Tensor = quantize_dequantize(x, scale, zero_point, self.axis, self.qmin, self.qmax)
        return quantized


class FrozenHalf(nn.Module):
    """To float16 and back, as the operator that carries how large the values were; the exporter takes it off."""

    def __init__(self, qp: QParams, fits: bool) -> None:
        super().__init__()
        self.register_buffer("scale", torch.from_numpy(np.array(qp.scale)))
        self.register_buffer("zero_point", torch.from_numpy(np.array(qp.zero_point)))
        self.fits = fits

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounded: torch.Tensor = round_to_half(x, self.get_buffer("scale"), self.get_buffer("zero_point"), self.fits)
        return rounded


def frozen(quantizer: FakeQuantize) -> nn.Module:
    """What ``quantizer`` does, with constant parameters.

    Raises:
        CalibrationError: it never saw data.
    """
    qp = quantizer.qparams()
    return FrozenHalf(qp, quantizer.fits()) if isinstance(quantizer, HalfQuantize) else FrozenQuantizer(qp)


class FrozenProduct(nn.Module):
    """A product whose folded weight passes a frozen quantizer."""

    def __init__(self, trained: QuantizedProduct) -> None:
        super().__init__()
        weight, bias = trained.folded()
        # What its levels stand for: a grid of fewer levels than the file's type keeps its ends.
        weight = trained.weight_fake_quantize(weight.detach())
        bias = trained.rounded(None if bias is None else bias.detach())
        self.product = trained.product
        self.weight = nn.Parameter(weight.detach().clone(), requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone(), requires_grad=False)
        self.quantizer = frozen(trained.weight_fake_quantize)
        self.bn_path = trained.bn_path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bn_path:
            require_channels_at_1(self.product, x, self.bn_path)
        return multiply(self.product, x, self.quantizer(self.weight), self.bias)


def freeze(model: nn.Module) -> nn.Module:
    """A frozen copy of a prepared model, in evaluation mode.

    Raises:
        CalibrationError: a fake quantizer never saw data.
    """
    found = copy.deepcopy(model).eval()
    _see_constants(found)
    for name, module in list(found.named_modules()):
        if isinstance(module, QuantizedProduct):
            put(found, name, FrozenProduct(module))
        elif isinstance(module, FakeQuantize) and not name.endswith("weight_fake_quantize"):
            put(found, name, frozen(module))
    if "forward" in found.__dict__:
        # torch.export wants a forward of the class: give the copy a class of its own.
        forward = inspect.unwrap(found.__dict__.pop("forward").__func__)
        found.__class__ = types.new_class(
            type(found).__name__, (type(found),), {}, lambda ns: ns.update(forward=forward)
        )
    return found


def _see_constants(model: nn.Module) -> None:
    """The ranges of parameters in the graph are those of the last step's begin; evaluation takes them as they are."""
    graph = getattr(model, "wia_graph", None) or getattr(model, "graph", None)
    for node in graph.nodes if isinstance(graph, fx.Graph) else ():
        if node.op != "call_module" or len(node.all_input_nodes) != 1 or not is_constant(node.all_input_nodes[0]):
            continue
        quantizer = model.get_submodule(str(node.target))
        if isinstance(quantizer, FakeQuantize) and not quantizer.observer.has_history:
            with torch.no_grad():
                quantizer(value_of(model, node.all_input_nodes[0]))
