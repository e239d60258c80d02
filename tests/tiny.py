# SPDX-License-Identifier: Apache-2.0
"""The promise of the project in under five seconds: quantize, run in libwia, compare with float. `./check tiny`."""

from __future__ import annotations

import sys
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import wia_quant

#: What 8 bits may cost a net of three layers on its own data: share of the output's range.
TOLERANCE = 0.03


def small_net() -> onnx.ModelProto:
    """Conv, Relu, Conv + skip, mean, Gemm on pictures of [N, 3, 16, 16]."""
    rng = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        fan_in = int(np.prod(shape[1:])) or 1
        return numpy_helper.from_array((rng.normal(size=shape) / np.sqrt(fan_in)).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], "conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], "conv2", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["c2", "r1"], ["a"], "skip"),
        helper.make_node("GlobalAveragePool", ["a"], ["p"], "mean"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"], "head", transB=1),
    ]
    initializers = [
        weight("w1", 8, 3, 3, 3), weight("b1", 8), weight("w2", 8, 8, 3, 3), weight("b2", 8), weight("w3", 10, 8),
        weight("b3", 10),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])],
        initializers,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def main() -> int:
    """0 when the quantized model answers as the float one does, in any instruction set and number of threads."""
    start = time.perf_counter()
    rng = np.random.default_rng(1)
    model = small_net()
    batches = [{"x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)} for _ in range(16)]
    quantized = wia_quant.quantize(model, batches)
    onnx.checker.check_model(quantized.model, full_check=True)
    reference = ReferenceEvaluator(model)
    payload = quantized.model.SerializeToString()
    fast = wia_quant.Session(payload, threads=2)
    plain = wia_quant.Session(payload, threads=1, isa="reference")
    for batch in batches[:4]:
        (wanted,) = reference.run(None, batch)
        (got,), (same,) = fast.run(None, batch), plain.run(None, batch)
        if got.tobytes() != same.tobytes():
            print("the fast kernels do not equal the reference", file=sys.stderr)
            return 1
        error = float(np.abs(got - wanted).max() / np.ptp(wanted))
        if not error < TOLERANCE:
            print(f"int8 is {100 * error:.1f} % of the range off float", file=sys.stderr)
            return 1
    print(f"tiny: quantized, exact on two paths, close to float, in {time.perf_counter() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
