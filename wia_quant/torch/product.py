# SPDX-License-Identifier: Apache-2.0
"""Conv, transposed Conv, Linear and Embedding in training: the weight is fake-quantized as it will be exported.

A BatchNorm that follows is folded the same way in training, evaluation and export: the weight that is quantized is
``weight * gamma / sqrt(running_var + eps)`` (Krishnamoorthi 2018, section 3.2.2), the statistics are the trained ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrize

from wia_quant.errors import UsageError
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.half import HalfQuantize

BatchNorm = nn.modules.batchnorm._BatchNorm
_ConvNd = nn.modules.conv._ConvNd
_ConvTransposeNd = nn.modules.conv._ConvTransposeNd

#: A folded scale below this would divide 0 by 0 in training where gamma is 0, as zero-initialised residuals have it.
_SMALLEST_FOLD: Final = 1e-8

_CONV_TRANSPOSE: Final[Mapping[type[nn.Module], Callable[..., torch.Tensor]]] = MappingProxyType(
    {
        nn.ConvTranspose1d: functional.conv_transpose1d,
        nn.ConvTranspose2d: functional.conv_transpose2d,
        nn.ConvTranspose3d: functional.conv_transpose3d,
    }
)
#: The modules that a QuantizedProduct can hold, and the weight axis of their output channels.
CHANNEL_AXIS: Final[Mapping[type[nn.Module], int]] = MappingProxyType(
    {
        nn.Conv1d: 0,
        nn.Conv2d: 0,
        nn.Conv3d: 0,
        nn.ConvTranspose1d: 1,
        nn.ConvTranspose2d: 1,
        nn.ConvTranspose3d: 1,
        nn.Linear: 0,
        nn.Embedding: 0,
    }
)


#: A BatchNorm that no product took in -> the product of one weight a channel that takes it in.
POINTWISE: Final[Mapping[type[nn.Module], type[nn.Module]]] = MappingProxyType(
    {nn.BatchNorm2d: nn.Conv2d, nn.BatchNorm3d: nn.Conv3d}
)


def type_of(module: nn.Module) -> type[nn.Module]:
    """The class of a module, that it was made of where its weight is parametrized."""
    found: type[nn.Module] = parametrize.type_before_parametrizations(module)
    return found


def is_product(module: nn.Module) -> bool:
    """Whether ``CHANNEL_AXIS`` has its class."""
    return type_of(module) in CHANNEL_AXIS


def pointwise_of_ones(bn: nn.Module) -> nn.Module:
    """A convolution that changes nothing, to fold ``bn`` into, as ``folding/batchnorm.py`` does after training."""
    n: int = bn.num_features  # type: ignore[assignment]
    found = POINTWISE[type(bn)](n, n, 1, groups=n, bias=False).to(bn.get_buffer("running_var").device)
    nn.init.ones_(found.get_parameter("weight"))
    return found.requires_grad_(False).train(bn.training)


class QuantizedProduct(nn.Module):
    """A product, its BatchNorm if one follows, and the fake quantizer of its weight.

    Attributes of the product (``weight``, ``stride`` ...) are found here too.
    """

    product: Any  # Any: whichever module, with its own attributes
    bn: Any
    weight_fake_quantize: FakeQuantize

    def __init__(self, product: nn.Module, bn: nn.Module | None, weight_fake_quantize: FakeQuantize) -> None:
        super().__init__()
        self.product = product
        self.bn = bn
        self.weight_fake_quantize = weight_fake_quantize
        self.batch_norm_frozen = False
        #: Where the BatchNorm was.
        self.bn_path = ""
        #: The fake quantizer of the input, where there is one: the bias is stored in its steps. A tuple, so that torch
        #: does not take it for a submodule of this one, too.
        self.input_quantizer: tuple[FakeQuantize, ...] = ()
        self.train(product.training)

    def __getattr__(self, name: str) -> Any:  # Any: whatever the product has
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("__"):
                raise  # how Python treats an object is its own: a parametrized product has a __deepcopy__
            return getattr(super().__getattr__("product"), name)

    def get_extra_state(self) -> dict[str, Any]:
        return {"batch_norm_frozen": self.batch_norm_frozen}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.batch_norm_frozen = state["batch_norm_frozen"]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bn is None:
            weight = self.weight_fake_quantize(self.product.weight)
            return self._multiply(x, weight, self.rounded(getattr(self.product, "bias", None)))
        require_channels_at_1(self.product, x, self.bn_path)
        if self.training and not self.batch_norm_frozen:
            return self._forward_with_batch_statistics(x)
        weight, bias = self.folded()
        weight = self.weight_fake_quantize(weight)
        return self._multiply(x, weight, self.rounded(bias))

    def rounded(self, bias: torch.Tensor | None) -> torch.Tensor | None:
        """``bias`` as the file has it, by the scales in force; the gradient passes."""
        if bias is None:
            return None
        return self.weight_fake_quantize.rounded_bias(bias, *self.input_quantizer)

    def _forward_with_batch_statistics(self, x: torch.Tensor) -> torch.Tensor:
        # A constant of the step: multiplied in and divided out again, its gradients would cancel but for the rounding.
        fold = self._fold().detach()
        safe = torch.where(fold.abs() < _SMALLEST_FOLD, _SMALLEST_FOLD, fold)
        weight = self.weight_fake_quantize(self.product.weight * self._along_channels(safe))
        y = self._multiply(x, weight, None)
        shape = [1, -1] + [1] * (y.dim() - 2)
        y = y / safe.reshape(shape)
        if self.product.bias is not None:
            y = y + self.product.bias.reshape(shape)
        out: torch.Tensor = self.bn(y)
        return out

    def folded(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The float weight and bias with the BatchNorm folded in by its running statistics."""
        if self.bn is None:
            return self.product.weight, getattr(self.product, "bias", None)
        bn: Any = self.bn
        if isinstance(self.weight_fake_quantize, HalfQuantize):
            return self._folded_in_float64()
        # The order of torch's own fuse_conv_bn_weights: every flow folds to the same bits.
        spread = torch.rsqrt(bn.running_var + bn.eps)
        shift = -bn.running_mean if self.product.bias is None else self.product.bias - bn.running_mean
        shift = shift * spread
        if bn.weight is not None:
            shift = shift * bn.weight
        if bn.bias is not None:
            shift = shift + bn.bias
        return self.product.weight * self._along_channels(self._fold()), shift

    def _folded_in_float64(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The bits of ``folding/affine.py``: rounded to float16, they are those of post-training quantization."""
        bn: Any = self.bn
        gamma = torch.ones_like(bn.running_var) if bn.weight is None else bn.weight
        fold = gamma.double() / torch.sqrt(bn.running_var.double() + float(np.float32(bn.eps)))
        shift = -bn.running_mean.double() * fold
        if bn.bias is not None:
            shift = bn.bias.double() + shift
        if self.product.bias is not None:
            shift = self.product.bias.double() * fold + shift
        weight = self.product.weight
        return (weight.double() * self._along_channels(fold)).to(weight.dtype), shift.to(weight.dtype)

    def _fold(self) -> torch.Tensor:
        bn: Any = self.bn
        fold = torch.rsqrt(bn.running_var + bn.eps)
        return fold if bn.weight is None else bn.weight * fold

    def _along_channels(self, v: torch.Tensor) -> torch.Tensor:
        weight = self.product.weight
        axis = CHANNEL_AXIS[type_of(self.product)]
        if axis == 0:
            return v.reshape([-1] + [1] * (weight.dim() - 1))
        # ConvTranspose [in, out / groups, ...]: the output channel of (i, j) is group(i) * (out / groups) + j.
        groups = self.product.groups
        per_group = v.reshape(groups, 1, -1).expand(groups, weight.shape[0] // groups, -1)
        return per_group.reshape(weight.shape[0], weight.shape[1], *[1] * (weight.dim() - 2))

    def _multiply(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return multiply(self.product, x, weight, bias)


def require_channels_at_1(product: nn.Module, x: torch.Tensor, bn_path: str) -> None:
    """Nothing, where a BatchNorm, which is along axis 1, is along the output channels of the product before it.

    Raises:
        UsageError: it is not, as behind a Linear of [N, L, C].
    """
    weight: torch.Tensor = product.weight  # type: ignore[assignment]
    if x.dim() != weight.dim():
        raise UsageError(
            f"BatchNorm '{bn_path}' is along axis 1 of a result of {x.dim()} axes, which are not the output channels of"
            f" the {type(product).__name__} before it: keep it apart with exclude=['{bn_path}']"
        )


def multiply(product: nn.Module, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """What ``product`` computes, with another weight and bias."""
    p: Any = product
    if isinstance(product, _ConvTransposeNd):
        f = _CONV_TRANSPOSE[type_of(product)]
        return f(x, weight, bias, p.stride, p.padding, p.output_padding, p.groups, p.dilation)
    if isinstance(product, _ConvNd):
        return p._conv_forward(x, weight, bias)  # padding modes included
    if isinstance(product, nn.Embedding):
        return functional.embedding(x, weight, p.padding_idx)
    return functional.linear(x, weight, bias)


def freeze_batch_norm(model: nn.Module, frozen: bool = True) -> nn.Module:
    """From now on BatchNorms use, and keep, their running statistics, as they will after export.

    Usual schedule: for the last third of the training (Krishnamoorthi 2018, section 3.2.2).
    """
    for module in model.modules():
        if isinstance(module, QuantizedProduct):
            module.batch_norm_frozen = frozen
            if module.bn is not None:
                module.bn.train(module.training and not frozen)
    return model
