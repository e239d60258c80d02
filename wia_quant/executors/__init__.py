# SPDX-License-Identifier: Apache-2.0
"""What can run a model for an evaluation: one file each, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from wia_quant.errors import UsageError
from wia_quant.executors.base import Executor
from wia_quant.executors.ort import OnnxRuntimeExecutor
from wia_quant.executors.reference import ReferenceExecutor
from wia_quant.executors.wia import WiaExecutor

EXECUTORS: Mapping[str, Callable[[bytes, int], Executor]] = MappingProxyType(
    {"wia": WiaExecutor, "onnxruntime": OnnxRuntimeExecutor, "reference": ReferenceExecutor}
)


def make_executor(name: str, model: bytes, threads: int = 1) -> Executor:
    """The executor of that name with ``model`` loaded."""
    if name not in EXECUTORS:
        raise UsageError(f"executor '{name}' is not known; use one of {', '.join(EXECUTORS)}")
    return EXECUTORS[name](model, threads)
