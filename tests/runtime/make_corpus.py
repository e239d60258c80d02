# SPDX-License-Identifier: Apache-2.0
"""Writes tests/runtime/corpus: tiny models that together use every part of the file format libwia reads.

    python tests/runtime/make_corpus.py

The mutation tests and the fuzzer start from them. Deterministic: the same script writes the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

CORPUS = Path(__file__).parent / "corpus"
OPSET = 21


def _array(name: str, shape: tuple[int, ...], seed: int, scale: float = 1.0) -> onnx.TensorProto:
    values = np.random.default_rng(seed).normal(size=shape) * scale
    return nh.from_array(values.astype(np.float32), name)


def _info(name: str, shape: list[int | str], dtype: int = T.FLOAT) -> onnx.ValueInfoProto:
    return h.make_tensor_value_info(name, dtype, shape)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    initializers: list[onnx.TensorProto] | None = None,
    **kwargs: object,
) -> onnx.ModelProto:
    graph = h.make_graph(nodes, "g", inputs, outputs, initializers or [])
    imports = kwargs.pop("opset_imports", [h.make_opsetid("", OPSET)])
    return h.make_model(graph, opset_imports=imports, ir_version=10, **kwargs)


def elementwise() -> onnx.ModelProto:
    """Constants as typed fields, raw bytes and a Constant node; optional inputs left out."""
    zero = h.make_tensor("zero", T.FLOAT, [1], [0.0])
    nodes = [
        h.make_node("Constant", [], ["one"], value_float=1.0),
        h.make_node("Relu", ["x"], ["a"], name="relu"),
        h.make_node("Add", ["a", "zero"], ["b"]),
        h.make_node("Mul", ["b", "one"], ["c"]),
        h.make_node("Clip", ["c", "", "limit"], ["y"]),
    ]
    limit = nh.from_array(np.float32(6.0), "limit")
    return _model(nodes, [_info("x", ["batch", 3])], [_info("y", ["batch", 3])], [zero, limit])


def convolution() -> onnx.ModelProto:
    nodes = [
        h.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], kernel_shape=[3, 3]),
        h.make_node("Relu", ["c"], ["r"]),
        h.make_node("GlobalAveragePool", ["r"], ["p"]),
        h.make_node("Flatten", ["p"], ["f"]),
        h.make_node("Gemm", ["f", "fw"], ["g"], transB=1),
        h.make_node("Softmax", ["g"], ["y"], axis=-1),
    ]
    weights = [_array("w", (4, 3, 3, 3), 1), _array("b", (4,), 2), _array("fw", (5, 4), 3)]
    return _model(nodes, [_info("x", [1, 3, 8, 8])], [_info("y", [1, 5])], weights)


def quantized() -> onnx.ModelProto:
    """QDQ convolution with per-channel weights and an int32 bias."""
    w = np.random.default_rng(4).integers(-127, 128, (4, 3, 1, 1)).astype(np.int8)
    initializers = [
        nh.from_array(np.float32(0.02), "xs"), nh.from_array(np.int8(3), "xz"),
        nh.from_array(w, "w"), nh.from_array(np.full(4, 0.01, np.float32), "ws"),
        nh.from_array(np.zeros(4, np.int8), "wz"), nh.from_array(np.arange(4, dtype=np.int32) * 100, "b"),
        nh.from_array(np.full(4, 0.0002, np.float32), "bs"), nh.from_array(np.float32(0.05), "ys"),
        nh.from_array(np.int8(-5), "yz"),
    ]  # fmt: skip
    nodes = [
        h.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        h.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        h.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        h.make_node("DequantizeLinear", ["b", "bs"], ["bd"], axis=0),
        h.make_node("Conv", ["xd", "wd", "bd"], ["c"]),
        h.make_node("QuantizeLinear", ["c", "ys", "yz"], ["yq"]),
        h.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    return _model(nodes, [_info("x", [1, 3, 4, 4])], [_info("y", [1, 4, 4, 4])], initializers)


def shapes() -> onnx.ModelProto:
    """A Shape -> Gather -> Concat -> Reshape chain, as exporters write it."""
    nodes = [
        h.make_node("Shape", ["x"], ["s"]),
        h.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        h.make_node("Unsqueeze", ["n", "axes"], ["nu"]),
        h.make_node("Concat", ["nu", "rest"], ["target"], axis=0),
        h.make_node("Reshape", ["x", "target"], ["r"]),
        h.make_node("Transpose", ["r"], ["y"], perm=[0, 2, 1]),
    ]
    initializers = [
        nh.from_array(np.int64(0), "zero"),
        nh.from_array(np.array([0]), "axes"),
        nh.from_array(np.array([2, -1]), "rest"),
    ]
    return _model(nodes, [_info("x", ["n", 6])], [_info("y", ["n", 3, 2])], initializers)


def control_flow() -> onnx.ModelProto:
    """If inside Loop, with values captured from one and two graphs out."""
    then = h.make_graph([h.make_node("Add", ["v", "x"], ["t"])], "then", [], [_info("t", [2])])
    other = h.make_graph([h.make_node("Sub", ["v", "w"], ["e"])], "else", [], [_info("e", [2])])
    body = h.make_graph(
        [
            h.make_node("Cast", ["i"], ["odd"], to=T.BOOL),
            h.make_node("If", ["odd"], ["next"], then_branch=then, else_branch=other),
            h.make_node("Identity", ["next"], ["scan"]),
            h.make_node("Identity", ["cond"], ["cond_out"]),
        ],
        "body",
        [_info("i", [], T.INT64), _info("cond", [], T.BOOL), _info("v", [2])],
        [_info("cond_out", [], T.BOOL), _info("next", [2]), _info("scan", [2])],
    )
    nodes = [h.make_node("Loop", ["trips", "", "x"], ["last", "all"], body=body)]
    initializers = [nh.from_array(np.int64(3), "trips"), nh.from_array(np.float32([1, 2]), "w")]
    return _model(nodes, [_info("x", [2])], [_info("last", [2]), _info("all", ["n", 2])], initializers)


def scan() -> onnx.ModelProto:
    body = h.make_graph(
        [h.make_node("Add", ["state", "row"], ["sum"]), h.make_node("Identity", ["sum"], ["out"])],
        "body",
        [_info("state", [3]), _info("row", [3])],
        [_info("sum", [3]), _info("out", [3])],
    )
    nodes = [h.make_node("Scan", ["s", "x"], ["last", "sums"], body=body, num_scan_inputs=1)]
    return _model(nodes, [_info("s", [3]), _info("x", ["t", 3])], [_info("last", [3]), _info("sums", ["t", 3])])


def function() -> onnx.ModelProto:
    """A local function with an attribute that its caller fills."""
    leaky = h.make_node("LeakyRelu", ["a"], ["t"])
    alpha = onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    leaky.attribute.append(alpha)
    body = h.make_function(
        "local", "Twice", ["a"], ["b"], [leaky, h.make_node("Add", ["t", "t"], ["b"])],
        [h.make_opsetid("", OPSET)], ["slope"],
    )  # fmt: skip
    node = h.make_node("Twice", ["x"], ["y"], domain="local", slope=0.25)
    imports = [h.make_opsetid("", OPSET), h.make_opsetid("local", 1)]
    return _model([node], [_info("x", [4])], [_info("y", [4])], functions=[body], opset_imports=imports)


def types() -> onnx.ModelProto:
    """Every element type as an initializer that is an output."""
    kinds = [
        T.FLOAT, T.UINT8, T.INT8, T.UINT16, T.INT16, T.INT32, T.INT64, T.BOOL, T.FLOAT16, T.DOUBLE,
        T.UINT32, T.UINT64, T.BFLOAT16, T.FLOAT8E4M3FN, T.FLOAT8E5M2, T.UINT4, T.INT4,
    ]  # fmt: skip
    initializers = [h.make_tensor(f"t{k}", k, [3], [1, 0, 1]) for k in kinds]
    return _model([], [], [_info(f"t{k}", [3], k) for k in kinds], initializers, opset_imports=[h.make_opsetid("", 21)])


def data_dependent() -> onnx.ModelProto:
    """Shapes known at run time only: NonZero and what follows."""
    nodes = [
        h.make_node("NonZero", ["x"], ["i"]),
        h.make_node("Transpose", ["i"], ["it"], perm=[1, 0]),
        h.make_node("GatherND", ["x", "it"], ["v"]),
        h.make_node("Relu", ["v"], ["y"]),
    ]
    return _model(nodes, [_info("x", ["n", 3])], [_info("y", ["k"])])


def rows() -> onnx.ModelProto:
    """One-hot rows made over a computed batch, a product, Gelu by tanh, a column-wise Softmax and maximum, a Resize."""

    def constant(name: str, value: object, dtype: type = np.float32) -> onnx.TensorProto:
        return nh.from_array(np.asarray(value, dtype), name)

    initializers = [
        constant("zero", [0], np.int64),
        constant("one", [1], np.int64),
        constant("last", [2], np.int64),
        constant("columns", [9, 1], np.int64),
        constant("classes", [[[0, 1, 2, 3]]], np.int32),
        _array("w", (4, 16), 1, 0.5),
        constant("half", 0.5),
        constant("unit", 1.0),
        constant("cube", 0.044715),
        constant("root", 0.7978846),
        constant("scales", [1, 1, 2]),
    ]
    nodes = [
        h.make_node("Cast", ["x"], ["i"], to=T.INT32),
        h.make_node("Shape", ["i"], ["shape"]),
        h.make_node("Slice", ["shape", "zero", "one", "zero"], ["batch"]),
        h.make_node("Concat", ["batch", "columns"], ["target"], axis=0),
        h.make_node("Unsqueeze", ["i", "last"], ["column"]),
        h.make_node("Expand", ["column", "target"], ["wide"]),
        h.make_node("Equal", ["wide", "classes"], ["hot"]),
        h.make_node("Cast", ["hot"], ["real"], to=T.FLOAT),
        h.make_node("MatMul", ["real", "w"], ["p"]),
        h.make_node("Softmax", ["p"], ["s"], axis=1),
        h.make_node("Mul", ["s", "s"], ["s2"]),
        h.make_node("Mul", ["s2", "s"], ["s3"]),
        h.make_node("Mul", ["s3", "cube"], ["c"]),
        h.make_node("Add", ["s", "c"], ["u"]),
        h.make_node("Mul", ["u", "root"], ["r"]),
        h.make_node("Tanh", ["r"], ["t"]),
        h.make_node("Add", ["t", "unit"], ["t1"]),
        h.make_node("Mul", ["t1", "half"], ["t2"]),
        h.make_node("Mul", ["s", "t2"], ["g"]),
        h.make_node("Resize", ["g", "", "scales"], ["z"], mode="linear"),
        h.make_node("Transpose", ["z"], ["zt"], perm=[0, 2, 1]),
        h.make_node("GlobalMaxPool", ["zt"], ["y"]),
    ]
    return _model(nodes, [_info("x", ["batch", 9])], [_info("y", ["batch", 32, 1])], initializers)


MODELS = (elementwise, convolution, quantized, shapes, control_flow, scan, function, types, data_dependent, rows)


def main() -> None:
    """Write them all."""
    CORPUS.mkdir(exist_ok=True)
    for make in MODELS:
        model = make()
        model.producer_name = "wia-quant tests"
        onnx.checker.check_model(model)
        (CORPUS / f"{make.__name__}.onnx").write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    main()
