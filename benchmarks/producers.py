# SPDX-License-Identifier: Apache-2.0
"""Who makes an int8 file of a float one: wia-quant, and onnxruntime.quantization in its usual settings."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import onnx
import onnx.version_converter

from benchmarks.models import Feeds, Model

PER_CHANNEL_OPSET = 13  # DequantizeLinear has no axis before


def wia_quant(model: Model, target: Path) -> None:
    """wia_quant.quantize with every default."""
    import wia_quant

    wia_quant.quantize(model.path(), list(model.calibration())).save(target, force=True)


def onnxruntime_static(model: Model, target: Path, **settings: object) -> None:
    """quant_pre_process, then quantize_static: QDQ, per channel, MinMax, int8 activations and weights.

    Where its per-channel code fails (a bias behind a Reshape), per tensor.
    """
    from onnxruntime.quantization import QuantFormat, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.getLogger().setLevel(logging.ERROR)
    usual = {"quant_format": QuantFormat.QDQ, "per_channel": True, **settings}
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        quant_pre_process(_at_least(model.path(), PER_CHANNEL_OPSET, Path(folder)), ready, skip_symbolic_shape=True)
        try:
            quantize_static(ready, target, _Reader(model.calibration()), **usual)
        except ValueError:
            usual["per_channel"] = False
            quantize_static(ready, target, _Reader(model.calibration()), **usual)


def onnxruntime_reduced(model: Model, target: Path) -> None:
    """The same with 7-bit weights, its advice for CPUs without VNNI."""
    onnxruntime_static(model, target, reduce_range=True)


def onnxruntime_uint8(model: Model, target: Path) -> None:
    """The same with uint8 activations, its faster form on x86."""
    from onnxruntime.quantization import QuantType

    onnxruntime_static(model, target, activation_type=QuantType.QUInt8)


def onnxruntime_dynamic(model: Model, target: Path) -> None:
    """quantize_dynamic: int8 weights, activations quantized anew at each run; its fast form for transformers."""
    from onnxruntime.quantization import quantize_dynamic

    logging.getLogger().setLevel(logging.ERROR)
    quantize_dynamic(model.path(), target, per_channel=True)


def onnxruntime_fastest(model: Model, target: Path) -> None:
    """uint8 activations, 7-bit weights: what its kernels run fastest without saturating."""
    from onnxruntime.quantization import QuantType

    onnxruntime_static(model, target, activation_type=QuantType.QUInt8, reduce_range=True)


def nncf(model: Model, target: Path) -> None:
    """nncf.quantize with its defaults, on the same samples."""
    import nncf

    logging.getLogger("nncf").setLevel(logging.ERROR)
    samples = list(model.calibration())
    with tempfile.TemporaryDirectory() as folder:
        ready = onnx.load(_at_least(model.path(), PER_CHANNEL_OPSET, Path(folder)))
    onnx.save(nncf.quantize(ready, nncf.Dataset(samples), subset_size=len(samples)), target)


PRODUCERS: Mapping[str, Callable[[Model, Path], None]] = MappingProxyType(
    {
        "wia-quant": wia_quant,
        "onnxruntime": onnxruntime_static,
        "onnxruntime 7-bit": onnxruntime_reduced,
        "onnxruntime u8": onnxruntime_uint8,
        "onnxruntime u8 7-bit": onnxruntime_fastest,
        "onnxruntime dynamic": onnxruntime_dynamic,
        "nncf": nncf,
    }
)


class _Reader:
    """onnxruntime's CalibrationDataReader."""

    def __init__(self, samples: Sequence[Feeds]) -> None:
        self._samples: Iterator[Feeds] = iter(samples)

    def get_next(self) -> Feeds | None:
        return next(self._samples, None)


def _at_least(path: Path, opset: int, folder: Path) -> Path:
    model = onnx.load(path)
    if next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) >= opset:
        return path
    raised = folder / "raised.onnx"
    onnx.save(onnx.version_converter.convert_version(model, opset), raised)
    return raised
