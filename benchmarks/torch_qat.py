# SPDX-License-Identifier: Apache-2.0
"""CPU time of a training step: float, ours, and torch.ao's own QAT, interleaved in one process, one thread.

python -m benchmarks.torch_qat [--steps 60] [--batch 32] [--net resnet18_small] [--evaluation]

With --evaluation: of ``model.eval()(x)``, by levels as the file computes, against fake quantization in float.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from benchmarks import torch_nets
from wia_quant.torch import prepare_qat


def theirs(model: nn.Module, x: torch.Tensor) -> nn.Module:
    """torch.ao's FX QAT with its default x86 qconfig: fused moving-average observers, weights by channel."""
    from torch.ao.quantization import get_default_qat_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    return prepare_qat_fx(model, get_default_qat_qconfig_mapping("x86"), (x,))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, labels: torch.Tensor) -> float:
    """One training step; its CPU milliseconds."""
    began = time.process_time()
    nn.functional.cross_entropy(model(x), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    return 1000 * (time.process_time() - began)


def measure(make: Callable[[], nn.Module], steps: int, batch: int) -> dict[str, list[float]]:
    """Milliseconds of each step of each model."""
    torch.manual_seed(0)
    x, labels = torch.randn(batch, 3, 28, 28), torch.randint(0, 10, (batch,))
    models = {"float": make().train(), "ours": prepare_qat(make().train()), "torch.ao": theirs(make().train(), x)}
    optimizers = {name: torch.optim.SGD(model.parameters(), 0.01) for name, model in models.items()}
    for name, model in models.items():
        for _ in range(3):
            step(model, optimizers[name], x, labels)
    found: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(steps):
        for name, model in models.items():
            found[name].append(step(model, optimizers[name], x, labels))
    return found


def measure_evaluation(make: Callable[[], nn.Module], steps: int, batch: int) -> dict[str, list[float]]:
    """Milliseconds of each pass in evaluation mode, without gradients and with those of the parameters on record."""
    torch.manual_seed(0)
    x, model = torch.randn(batch, 3, 28, 28), prepare_qat(make().train())
    for _ in range(3):
        model(x)
    floating = partial(inspect.unwrap(model.eval().forward.__func__), model)
    found: dict[str, list[float]] = {}
    for step in range(steps + 3):
        for name, call, gradients in (
            ("ours", model, False),
            ("fake-quantized", floating, False),
            ("ours, with gradients", model, True),
            ("fake-quantized, with gradients", floating, True),
        ):
            with torch.set_grad_enabled(gradients):
                began = time.process_time()
                call(x)
                spent = 1000 * (time.process_time() - began)
            if step >= 3:
                found.setdefault(name, []).append(spent)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--net", choices=["resnet18_small", "mobilenet_v2_small"], default="resnet18_small")
    parser.add_argument("--evaluation", action="store_true")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    what = measure_evaluation if chosen.evaluation else measure
    found = what(getattr(torch_nets, chosen.net), chosen.steps, chosen.batch)
    for name, times in found.items():
        print(f"{name:30} {statistics.median(times):7.2f} ms")
    pairs = {"ours": "fake-quantized", "ours, with gradients": "fake-quantized, with gradients"}
    for a, b in (pairs if chosen.evaluation else {"ours": "torch.ao"}).items():
        ratios = [p / q for p, q in zip(found[a], found[b], strict=True)]
        print(f"{a} / {b}, median of {len(ratios)} pairs: {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
