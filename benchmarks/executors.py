# SPDX-License-Identifier: Apache-2.0
"""Who runs a file: functions that make ``run(feeds) -> outputs`` of a path and a number of threads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np

from benchmarks.models import Feeds, Outputs

Run = Callable[[Feeds], Outputs]


def onnxruntime_plain(path: Path, threads: int) -> Run:
    """onnxruntime, graph optimizations disabled: each QDQ node as the standard says it."""
    import onnxruntime as ort

    return _onnxruntime(path, threads, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)


def onnxruntime_fast(path: Path, threads: int) -> Run:
    """Onnxruntime at its defaults: fused, on CPUs without VNNI with saturating kernels."""
    import onnxruntime as ort

    return _onnxruntime(path, threads, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)


def onnxruntime_precise(path: Path, threads: int) -> Run:
    """Onnxruntime fused, told not to saturate (session.x64quantprecision)."""
    import onnxruntime as ort

    return _onnxruntime(path, threads, ort.GraphOptimizationLevel.ORT_ENABLE_ALL, {"session.x64quantprecision": "1"})


def openvino(path: Path, threads: int) -> Run:
    """OpenVINO on the CPU, latency hint, float32 where not int8."""
    import openvino as ov

    core = ov.Core()
    compiled = core.compile_model(
        core.read_model(path), "CPU",
        {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"},
    )  # fmt: skip
    request = compiled.create_infer_request()

    def run(feeds: Feeds) -> Outputs:
        results = request.infer(feeds, share_inputs=True, share_outputs=True)
        return [np.asarray(results[port]) for port in compiled.outputs]

    return run


def libwia(path: Path, threads: int, isa: str | None = None) -> Run:
    """Libwia through wia_quant.Session."""
    import wia_quant

    session = wia_quant.Session(path, threads=threads, isa=isa)
    return lambda feeds: list(session.run(None, feeds))


EXECUTORS: Mapping[str, Callable[[Path, int], Run]] = MappingProxyType(
    {
        "onnxruntime plain": onnxruntime_plain,
        "onnxruntime": onnxruntime_fast,
        "onnxruntime precise": onnxruntime_precise,
        "openvino": openvino,
        "libwia": libwia,
    }
)


def _onnxruntime(path: Path, threads: int, level: object, entries: Mapping[str, str] = MappingProxyType({})) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = level
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, feeds))
