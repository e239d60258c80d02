# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training and post-training quantization of PyTorch models, exported to the one format.

``import wia_quant.torch`` also teaches torch's own functions the backend ``"wia"``:
``torch.quantization.get_default_qat_qconfig("wia")``.
"""

from wia_quant.errors import MissingExtraError

try:
    import torch as _torch  # noqa: F401  # only to say what is missing
except ImportError as error:
    raise MissingExtraError("PyTorch is not installed; install it with: pip install 'wia-quant[torch]'") from error

from wia_quant.torch.calibration import from_calibration, observe
from wia_quant.torch.distill import Teacher
from wia_quant.torch.export import Exported, export, to_onnx
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.freeze import freeze
from wia_quant.torch.logging_hooks import log_ranges, scales_of
from wia_quant.torch.lsq import LearnedFakeQuantize, start_learning
from wia_quant.torch.prepare import (
    convert,
    prepare,
    prepare_fx,
    prepare_qat,
    prepare_qat_fx,
    quantize_weights,
)
from wia_quant.torch.product import freeze_batch_norm
from wia_quant.torch.qconfig import (
    get_default_qat_qconfig,
    get_default_qat_qconfig_mapping,
    get_default_qconfig,
    get_default_qconfig_mapping,
    get_lsq_qconfig,
    get_qconfig,
)
from wia_quant.torch.register import register, unregister
from wia_quant.torch.trace import PrepareError
from wia_quant.torch.verify import Difference

__all__ = [
    "Difference",
    "Exported",
    "FakeQuantize",
    "LearnedFakeQuantize",
    "PrepareError",
    "Teacher",
    "convert",
    "export",
    "freeze",
    "freeze_batch_norm",
    "from_calibration",
    "get_default_qat_qconfig",
    "get_default_qat_qconfig_mapping",
    "get_default_qconfig",
    "get_default_qconfig_mapping",
    "get_lsq_qconfig",
    "get_qconfig",
    "log_ranges",
    "observe",
    "prepare",
    "prepare_fx",
    "prepare_qat",
    "prepare_qat_fx",
    "quantize_weights",
    "register",
    "scales_of",
    "start_learning",
    "to_onnx",
    "unregister",
]

register()
