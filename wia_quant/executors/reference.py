# SPDX-License-Identifier: Apache-2.0
"""onnx.reference: the standard's own words in numpy; exact, and slow."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnx
from onnx.reference import ReferenceEvaluator

from wia_quant.errors import ModelError
from wia_quant.executors.base import Arrays

#: The reference has QuantizeLinear and DequantizeLinear from this opset on.
_OLDEST_QDQ = 19


class ReferenceExecutor:
    """Models of an older opset are read as opset 19: their Q and DQ are the same there."""

    def __init__(self, model: bytes, threads: int) -> None:
        proto = onnx.load_model_from_string(model)
        opset = next((o for o in proto.opset_import if o.domain in ("", "ai.onnx")), None)
        if opset is not None and opset.version < _OLDEST_QDQ:
            proto = onnx.version_converter.convert_version(proto, _OLDEST_QDQ)
        try:
            self._evaluator = ReferenceEvaluator(proto)
        except (RuntimeError, NotImplementedError) as error:
            raise ModelError(f"onnx.reference cannot run the model: {' '.join(str(error).split())[:300]}") from error
        self._proto = proto

    def run(self, feed: Arrays) -> dict[str, npt.NDArray[Any]]:
        return dict(zip(self._evaluator.output_names, self._evaluator.run(None, dict(feed)), strict=True))

    def inputs(self) -> object:
        return self._proto

    def describe(self) -> dict[str, Any]:
        return {"name": "reference", "version": onnx.__version__, "isa": "any", "threads": 1}
