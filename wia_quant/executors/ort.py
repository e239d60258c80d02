# SPDX-License-Identifier: Apache-2.0
"""onnxruntime without graph optimizations: the float model's executor, and a second opinion on integers."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import onnxruntime as ort

from wia_quant.errors import DataError, ModelError
from wia_quant.executors.base import Arrays


class OnnxRuntimeExecutor:
    """Optimizations are off by default: fused integer kernels of onnxruntime saturate on some CPUs."""

    def __init__(self, model: bytes, threads: int, *, optimize: bool = False) -> None:
        options = ort.SessionOptions()
        if not optimize:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self._threads = threads
        try:
            self._session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime's exceptions share no base class of their own
            raise ModelError(f"onnxruntime cannot load the model: {_one_line(error)}") from error
        self._names = [o.name for o in self._session.get_outputs()]

    def run(self, feed: Arrays) -> dict[str, npt.NDArray[Any]]:
        try:
            return dict(zip(self._names, self._session.run(None, dict(feed)), strict=True))
        except Exception as error:  # as above
            raise DataError(f"onnxruntime refused an input: {_one_line(error)}") from error

    def inputs(self) -> object:
        return self._session.get_inputs()

    def describe(self) -> dict[str, Any]:
        return {"name": "onnxruntime", "version": ort.__version__, "isa": "any", "threads": self._threads}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
