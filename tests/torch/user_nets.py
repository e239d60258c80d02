# SPDX-License-Identifier: Apache-2.0
"""Small nets as users of torch bring them, one an architecture or habit of writing, each with an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812  # as every torch user writes it
from torch import nn

Example = Any  # a tuple of arguments, or a dict by argument name


def picture(n: int = 4, size: int = 16) -> tuple[torch.Tensor, ...]:
    return (torch.randn(n, 3, size, size),)


def conv_bn(i: int, o: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(i, o, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(o),
        nn.ReLU(inplace=True),
    )


class ResNetBlock(nn.Module):
    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride != 1 or i != o:
            self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """torchvision's: BasicBlock with a strided shortcut, ModuleList loops, in-place sums and activations."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(3, 8, 3, 2), nn.MaxPool2d(3, stride=2, padding=1))
        self.blocks = nn.ModuleList([ResNetBlock(8, 8, 1), ResNetBlock(8, 16, 2)])
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int, gate: nn.Module) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.gate = gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = x.mean((2, 3), keepdim=True)
        return x * self.gate(self.fc2(F.relu(self.fc1(scale), inplace=True)))


class MobileNetV3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True))
        self.expand = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.Hardswish())
        self.depthwise = nn.Sequential(
            nn.Conv2d(16, 16, 5, padding=2, groups=16, bias=False), nn.BatchNorm2d(16), nn.Hardswish()
        )
        self.se = SqueezeExcite(16, nn.Hardsigmoid())
        self.project = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.classifier = nn.Sequential(nn.Linear(8, 16), nn.Hardswish(), nn.Dropout(0.2), nn.Linear(16, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = x + self.project(self.se(self.depthwise(self.expand(x))))
        return self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))


class DropPath(nn.Module):
    """timm's: a random part of the batch skips the branch in training."""

    def __init__(self, p: float = 0.2) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.p == 0.0 or not self.training:
            return x
        keep = 1 - self.p
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        mask = x.new_empty(shape).bernoulli_(keep)
        return x * mask.div_(keep)


class EfficientNet(nn.Module):
    """MBConv with SiLU, squeeze and excitation, and stochastic depth."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU(inplace=True))
        self.expand = nn.Sequential(nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU(inplace=True))
        self.depthwise = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), nn.BatchNorm2d(16), nn.SiLU(inplace=True)
        )
        self.se = SqueezeExcite(16, nn.Sigmoid())
        self.project = nn.Sequential(nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.drop_path = DropPath()
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = self.drop_path(self.project(self.se(self.depthwise(self.expand(x))))) + x
        return self.head(x.mean([2, 3]))


class UNet(nn.Module):
    """Skips by concat, once up by a transposed convolution and once by interpolation; pads to the skip's size."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = conv_bn(3, 8), conv_bn(8, 8), conv_bn(8, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge2, self.merge1 = conv_bn(16, 8), conv_bn(16, 8)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.bottom(F.max_pool2d(b, 2))
        up = self.up(c)
        dy, dx = b.size(2) - up.size(2), b.size(3) - up.size(3)
        up = F.pad(up, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        y = self.merge2(torch.cat([b, up], dim=1))
        y = F.interpolate(y, scale_factor=2, mode="nearest")
        return self.out(self.merge1(torch.cat((a, y), 1)))


class Bilinear(nn.Module):
    """A segmentation head: interpolation to the size of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = conv_bn(3, 8, 3, 2), nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        y = self.head(self.body(x))
        return {"out": F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)}


class DenseLayer(nn.Module):
    def __init__(self, i: int) -> None:
        super().__init__()
        self.norm, self.relu, self.conv = nn.BatchNorm2d(i), nn.ReLU(), nn.Conv2d(i, 4, 3, padding=1, bias=False)

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        return self.conv(self.relu(self.norm(torch.cat(features, 1))))


class DenseNet(nn.Module):
    """BatchNorm before the convolution, growing concats of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleDict({f"layer{n}": DenseLayer(8 + 4 * n) for n in range(2)})
        self.norm = nn.BatchNorm2d(16)
        self.transition, self.pool = nn.Conv2d(16, 8, 1), nn.AvgPool2d(2, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [self.stem(x)]
        for layer in self.layers.values():
            features.append(layer(features))
        y = self.pool(self.transition(F.relu(self.norm(torch.cat(features, 1)))))
        return self.head(F.adaptive_avg_pool2d(y, (1, 1)).flatten(1))


class ShuffleNet(nn.Module):
    """Channel split and shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 16)
        self.branch = nn.Sequential(
            *conv_bn(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), *conv_bn(8, 8, 1)
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x1, x2 = x.chunk(2, dim=1)
        x = torch.cat((x1, self.branch(x2)), dim=1)
        batch, channels, height, width = x.size()
        x = x.view(batch, 2, channels // 2, height, width)
        x = torch.transpose(x, 1, 2).contiguous().view(batch, channels, height, width)
        return self.head(x.mean([2, 3]))


class LayerNorm2d(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 2, 3, 1)
        x = F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(3, 16, 4, stride=4), LayerNorm2d(16)
        self.depthwise = nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm, self.fc1, self.act, self.fc2 = nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)
        self.gamma = nn.Parameter(torch.full((16,), 0.5))
        self.drop_path = DropPath(0.1)
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm0(self.stem(x))
        y = self.depthwise(x).permute(0, 2, 3, 1)
        y = self.gamma * self.fc2(self.act(self.fc1(self.norm(y))))
        x = x + self.drop_path(y.permute(0, 3, 1, 2))
        return self.head(x.mean([-2, -1]))


class ViT(nn.Module):
    """Class token, positions, one projection for q, k and v, scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 32))
        self.place = nn.Parameter(torch.randn(1, 17, 32) * 0.02)
        self.norm1, self.qkv, self.proj = nn.LayerNorm(32), nn.Linear(32, 96), nn.Linear(32, 32)
        self.norm2, self.mlp = nn.LayerNorm(32), nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.place
        n, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(n, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.proj(y.transpose(1, 2).reshape(n, length, width))
        x = x + self.mlp(self.norm2(x))
        return self.head(self.norm(x)[:, 0])


class SelfAttention(nn.Module):
    """nn.MultiheadAttention between quantized layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.attention, self.head = nn.Linear(16, 32), nn.MultiheadAttention(32, 4), nn.Linear(32, 5)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.inner(x))
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.head(x + y)


class Encoder(nn.Module):
    """nn.TransformerEncoder between quantized layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(torch.relu(self.inner(x))).mean(1))


class Recurrent(nn.Module):
    """An LSTM and a GRU between quantized layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 32)
        self.lstm = nn.LSTM(32, 24, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(48, 24, batch_first=True)
        self.head = nn.Linear(24, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.inner(x))
        x, _ = self.lstm(x)
        x, _ = self.gru(x)
        return self.head(x[:, -1])


class Norms(nn.Module):
    """InstanceNorm, GroupNorm, PReLU, a BatchNorm behind no product."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.BatchNorm2d(3)
        self.a, self.group = nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8)
        self.b, self.instance = nn.Conv2d(8, 8, 3, padding=1), nn.InstanceNorm2d(8, affine=True)
        self.prelu = nn.PReLU(8)
        self.pool, self.last = nn.MaxPool2d(2), nn.BatchNorm2d(8)
        self.head = nn.Conv2d(8, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.group(self.a(self.first(x))))
        x = self.prelu(self.instance(self.b(x)))
        return self.head(self.last(self.pool(x)))


class Einsum(nn.Module):
    """einsum for attention, torch.stack, slices, an outer product with a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.head = nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(16, 32), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bqd,bkd->bqk", self.q(x), self.k(x)) * 0.1768
        y = torch.einsum("bqk,bkd->bqd", scores.softmax(-1), self.v(x))
        y = torch.stack([y[:, ::2], y[:, 1::2]], dim=-1)
        return self.head(y.flatten(2)[..., :64])


class Shared(nn.Module):
    """One module for two inputs, tied weights, a tuple of inputs, a tuple of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Linear(16, 32), nn.Linear(32, 32)
        self.decode = nn.Linear(32, 32)
        self.decode.weight = self.mix.weight

    def forward(self, pair: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        left, right = torch.relu(self.embed(pair[0])), torch.relu(self.embed(pair[1]))
        return self.decode(torch.tanh(self.mix(left))), left - right


class ByName(nn.Module):
    """Named inputs only, one of them a dict; an absent optional one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.picture, self.head = nn.Embedding(200, 16), nn.Linear(8, 16), nn.Linear(32, 5)

    def forward(
        self, *, tokens: torch.Tensor, features: dict[str, torch.Tensor], mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        words = self.words(tokens).mean(1)
        if mask is not None:
            words = words * mask
        return self.head(torch.cat([words, self.picture(features["pixels"]).relu()], -1))


class Detector(nn.Module):
    """A feature pyramid: lateral sums, an upsampling by two, several outputs, one head for all levels."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2 = conv_bn(3, 8, 3, 2), conv_bn(8, 16, 3, 2)
        self.lateral1, self.lateral2 = nn.Conv2d(8, 8, 1), nn.Conv2d(16, 8, 1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.head = nn.Conv2d(8, 6, 3, padding=1)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        c1 = self.c1(x)
        c2 = self.c2(c1)
        p2 = self.lateral2(c2)
        p1 = self.lateral1(c1) + self.up(p2)
        return [self.head(p).permute(0, 2, 3, 1).reshape(x.shape[0], -1, 6) for p in (p1, p2)]


class Yolo(nn.Module):
    """CSP blocks and spatial pyramid pooling with SiLU, splits, a box decode behind the head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.SiLU())
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU())
        self.join = nn.Sequential(nn.Conv2d(24, 8, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU())
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.spp, self.head = nn.Conv2d(24, 8, 1), nn.Conv2d(8, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = list(self.stem(x).split((8, 8), 1))
        parts.append(self.inner(parts[-1]))
        y = [self.join(torch.cat(parts, 1))]
        y.extend(self.pool(y[-1]) for _ in range(2))
        out = self.head(self.spp(torch.cat(y, 1)))
        xy, wh = out[:, :2].sigmoid() * 2 - 0.5, (out[:, 2:4].sigmoid() * 2) ** 2
        return torch.cat((xy, wh, out[:, 4:]), 1)


class Audio(nn.Module):
    """One-dimensional: dilated convolutions with left padding, gated activations, weight normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 3, padding=1)
        self.filter, self.gate = nn.Conv1d(8, 8, 3, dilation=2), nn.Conv1d(8, 8, 3, dilation=2)
        self.norm, self.out = nn.BatchNorm1d(8), nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        padded = F.pad(x, (4, 0))
        y = torch.tanh(self.filter(padded)) * torch.sigmoid(self.gate(padded))
        return self.out(self.norm(x + y)).mean(dim=-1)


class Recommender(nn.Module):
    """Embedding tables of one id each, an EmbeddingBag, a product of vectors, MLPs with BatchNorm1d."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(200, 16), nn.Embedding(300, 16)
        self.mlp = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 16))
        self.out = nn.Linear(32, 1)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        u, i = self.user(user), self.item(item)
        y = torch.cat([self.mlp(torch.cat([u, i], -1)), u * i], -1)
        return torch.sigmoid(self.out(y)).squeeze(-1)


class Autoencoder(nn.Module):
    """Reshapes through a bottleneck, LeakyReLU, a transposed convolution with output padding, Tanh at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(512, 16))
        self.decode = nn.Sequential(nn.Linear(16, 512), nn.ELU(), nn.Unflatten(1, (8, 8, 8)))
        self.up = nn.ConvTranspose2d(8, 3, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.up(self.decode(self.encode(x))))


def sequence() -> Example:
    return (torch.randn(4, 6, 16),)


USER_NETS: Final[Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Example]]]] = MappingProxyType(
    {
        "resnet": (ResNet, picture),
        "mobilenet_v3": (MobileNetV3, picture),
        "efficientnet": (EfficientNet, picture),
        "unet": (UNet, picture),
        "bilinear": (Bilinear, picture),
        "densenet": (DenseNet, picture),
        "shufflenet": (ShuffleNet, picture),
        "convnext": (ConvNeXt, picture),
        "vit": (ViT, picture),
        "multihead": (SelfAttention, sequence),
        "encoder": (Encoder, sequence),
        "recurrent": (Recurrent, sequence),
        "norms": (Norms, picture),
        "einsum": (Einsum, lambda: (torch.randn(4, 8, 16),)),
        "shared": (Shared, lambda: ((torch.randn(4, 16), torch.randn(4, 16)),)),
        "by_name": (
            ByName,
            lambda: {"tokens": torch.randint(0, 200, (4, 6)), "features": {"pixels": torch.randn(4, 8)}},
        ),
        "detector": (Detector, picture),
        "yolo": (Yolo, picture),
        "audio": (Audio, lambda: (torch.randn(4, 1, 24),)),
        "recommender": (Recommender, lambda: (torch.randint(0, 200, (8,)), torch.randint(0, 300, (8,)))),
        "autoencoder": (Autoencoder, picture),
    }
)
