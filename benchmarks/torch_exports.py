# SPDX-License-Identifier: Apache-2.0
"""What becomes of one quantized net on each way from torch to ONNX: torch's own, and ours.

python -m benchmarks.torch_exports [--markdown FILE]

The net: Conv, BatchNorm, ReLU, a residual sum, pooling, Linear. Each way's file is run by onnxruntime with its
optimizations off and compared with the torch model in evaluation that it was made of.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import logging
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn
from torch.ao import quantization as ao
from torch.ao.quantization import quantize_fx

from benchmarks.torch_nets import BasicBlock
from wia_quant import torch as wia
from wia_quant.runtime import Session

Made = tuple[onnx.ModelProto, np.ndarray]
X = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(8) % 5


@dataclass
class Row:
    """One way and what came of it."""

    way: str
    failed: str = ""
    largest: float = float("nan")
    int8_weights: int = 0
    float_weights: int = 0
    batch_norms: int = 0
    libwia: str = ""


class Net(nn.Module):
    """With the stubs that eager torch needs; they do nothing elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.stem, self.bn, self.relu = nn.Conv2d(3, 16, 3, 2, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        self.block = BasicBlock(16, 16, 1)
        self.pool, self.flatten, self.head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(self.relu(self.bn(self.stem(self.quant(x)))))
        return self.dequant(self.head(self.flatten(self.pool(x))))


class Plain(Net):
    """Without them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(self.relu(self.bn(self.stem(x))))
        return self.head(self.flatten(self.pool(x)))


def net(kind: type[Net] = Plain) -> Net:
    torch.manual_seed(0)
    model = kind()
    train(model)
    return model


def train(model: nn.Module, steps: int = 5) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(X), LABELS).backward()
        optimizer.step()


def eager_qat() -> nn.Module:
    model = net(Net).train()
    model.qconfig = ao.get_default_qat_qconfig("x86")
    model.block.qconfig = model.qconfig
    ao.fuse_modules_qat(model, [["stem", "bn", "relu"], ["block.conv1", "block.bn1"]], inplace=True)
    prepared = ao.prepare_qat(model)
    train(prepared)
    prepared.apply(ao.disable_observer)
    return prepared.eval()


def fx_qat() -> nn.Module:
    prepared = quantize_fx.prepare_qat_fx(net().train(), ao.get_default_qat_qconfig_mapping("x86"), (X,))
    train(prepared)
    prepared.apply(ao.disable_observer)
    return prepared.eval()


def pt2e_qat(quantizer: Any, convert: bool) -> nn.Module:
    from torchao.quantization import pt2e
    from torchao.quantization.pt2e import quantize_pt2e

    from wia_quant.torch.pt2e import capture

    program = quantize_pt2e.prepare_qat_pt2e(capture(net().train(), X), quantizer)
    pt2e.move_exported_model_to_train(program)
    train(program)
    pt2e.move_exported_model_to_eval(program)
    return quantize_pt2e.convert_pt2e(program) if convert else program


def x86_inductor() -> Any:
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    return x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config(is_qat=True))


def wia_pt2e() -> nn.Module:
    from wia_quant.torch.pt2e import WiaQuantizer, move_to_eval

    return move_to_eval(pt2e_qat(WiaQuantizer(), convert=False))


def plain(make: Callable[[], nn.Module], dynamo: bool, opset: int = 18) -> Callable[[], Made]:
    """torch.onnx.export of what ``make`` gives."""

    def run() -> Made:
        model = make()
        buffer = io.BytesIO()
        options: dict[str, Any] = {"dynamo": dynamo, "opset_version": opset}
        if dynamo:
            program = torch.onnx.export(model, (X,), verbose=False, **options)
            assert program is not None
            proto = program.model_proto
        else:
            torch.onnx.export(model, (X,), buffer, **options)
            proto = onnx.load_from_string(buffer.getvalue())
        with torch.no_grad():
            return proto, model(X).numpy()

    return run


def ours(make: Callable[[], nn.Module]) -> Callable[[], Made]:
    def run() -> Made:
        model = make()
        exported = wia.export(model, X)
        with torch.no_grad():
            return exported.model, model(X).numpy()

    return run


def our_eager() -> nn.Module:
    prepared = wia.prepare_qat(net().train())
    train(prepared)
    return prepared.eval()


def our_fx() -> nn.Module:
    prepared = quantize_fx.prepare_qat_fx(net().train(), ao.get_default_qat_qconfig_mapping("wia"), (X,))
    train(prepared)
    return prepared.eval()


WAYS: dict[str, Callable[[], Made]] = {
    "torch eager QAT, TorchScript exporter": plain(eager_qat, False),
    "torch eager QAT, dynamo exporter": plain(eager_qat, True),
    "torch eager QAT, convert(), TorchScript": plain(lambda: ao.convert(eager_qat()), False),
    "torch eager QAT, convert(), dynamo": plain(lambda: ao.convert(eager_qat()), True),
    "torch FX QAT, TorchScript exporter": plain(fx_qat, False),
    "torch FX QAT, dynamo exporter": plain(fx_qat, True),
    "torch FX QAT, convert_fx(), TorchScript": plain(lambda: quantize_fx.convert_fx(copy.deepcopy(fx_qat())), False),
    "torch FX QAT, convert_fx(), dynamo": plain(lambda: quantize_fx.convert_fx(copy.deepcopy(fx_qat())), True),
    "torch quantize_dynamic, TorchScript": plain(lambda: ao.quantize_dynamic(net().eval()), False),
    "torch quantize_dynamic, dynamo": plain(lambda: ao.quantize_dynamic(net().eval()), True),
    "torchao PT2E, X86InductorQuantizer, dynamo": plain(lambda: pt2e_qat(x86_inductor(), True), True),
    "ours, eager": ours(our_eager),
    "ours, FX": ours(our_fx),
    "ours, PT2E": ours(wia_pt2e),
}


def measure(way: str, make: Callable[[], Made]) -> Row:
    """One row; a failure is a result."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            proto, wanted = make()
        got = in_onnxruntime(proto)
    except Exception as problem:  # whatever fails is what is measured
        while problem.__cause__ is not None:
            problem = problem.__cause__  # type: ignore[assignment]
        lines = [line for line in str(problem).splitlines() if line.strip()] or [""]
        return Row(way, f"{type(problem).__name__}: {lines[0].strip()[:90]}")
    counts = Counter(node.op_type for node in proto.graph.node)
    weights = [t for t in proto.graph.initializer if len(t.dims) > 1]
    int8 = sum(t.data_type in (onnx.TensorProto.INT8, onnx.TensorProto.UINT8) for t in weights)
    largest = 100 * float(np.abs(got - wanted).max() / np.abs(wanted).max())
    return Row(way, "", largest, int8, len(weights) - int8, counts["BatchNormalization"], in_libwia(proto, wanted))


def in_onnxruntime(proto: onnx.ModelProto) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return session.run(None, {session.get_inputs()[0].name: X.numpy()})[0]


def in_libwia(proto: onnx.ModelProto, wanted: np.ndarray) -> str:
    try:
        session = Session(proto.SerializeToString())
        got = session.run(None, {session.get_inputs()[0].name: X.numpy()})[0]
    except Exception as problem:  # as above
        return f"refused: {str(problem).splitlines()[0][:60]}"
    return f"{100 * float(np.abs(got - wanted).max() / np.abs(wanted).max()):.4f}"


def markdown(rows: list[Row]) -> str:
    lines = [
        "| way | file against torch, % of span | in libwia | int8 / float weights | BatchNorms left |",
        "|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        if row.failed:
            lines.append(f"| {row.way} | fails: {row.failed.replace('|', '/')} | | | |")
        else:
            weights = f"{row.int8_weights} / {row.float_weights}"
            lines.append(f"| {row.way} | {row.largest:.4f} | {row.libwia} | {weights} | {row.batch_norms} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    text = markdown([measure(way, make) for way, make in WAYS.items()])
    print(text)
    if chosen.markdown:
        chosen.markdown.write_text(text)


if __name__ == "__main__":
    main()
