# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training of a small PyTorch net, and its export: python examples/torch_qat.py digits.wia.onnx."""

import sys

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import nn

from wia_quant.torch import export, freeze_batch_norm, get_default_qat_qconfig, observe, prepare_qat


def digits(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """n pictures of digits [n, 1, 20, 20], moved about and noisy, and what they show."""
    font = ImageFont.load_default(14)
    labels, pictures = torch.randint(0, 10, (n,)), torch.zeros(n, 1, 20, 20)
    for i, label in enumerate(labels):
        picture, at = Image.new("L", (20, 20)), torch.randint(1, 9, (2,)).tolist()
        ImageDraw.Draw(picture).text(at, str(int(label)), fill=255, font=font)
        pictures[i, 0] = torch.tensor(list(picture.tobytes())).reshape(20, 20) / 255
    return pictures + 0.1 * torch.randn_like(pictures), labels


def train(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor], epochs: int, rate: float) -> None:
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(epochs):
        for x, label in zip(data[0].split(64), data[1].split(64), strict=True):
            nn.functional.cross_entropy(model(x), label).backward()
            optimizer.step()
            optimizer.zero_grad()


def accuracy(model: nn.Module, data: tuple[torch.Tensor, torch.Tensor]) -> float:
    with torch.no_grad():
        return float((model.eval()(data[0]).argmax(1) == data[1]).float().mean())


def main(path: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip
    seen, unseen = digits(1024), digits(512)
    train(model, seen, epochs=8, rate=3e-3)
    print(f"float     {accuracy(model, unseen):.4f}")

    model.qconfig = get_default_qat_qconfig("wia")
    prepare_qat(model, inplace=True)
    observe(model, seen[0][:256].split(64))
    train(freeze_batch_norm(model), seen, epochs=2, rate=1e-3)
    print(f"quantized {accuracy(model, unseen):.4f}")
    for difference in export(model, unseen[0], path, verify=True).differences:
        print(f"in libwia {difference}")


if __name__ == "__main__":
    main(sys.argv[1])
