# SPDX-License-Identifier: Apache-2.0
"""A streaming model keeps variables between runs; its file has them as inputs and outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from tests.tflite.litert import T, packed, run_stream, stream_in_libwia, tensor
from wia_quant.errors import UnsupportedError
from wia_quant.tflite import to_onnx


def streaming(start: int) -> bytes:
    """The last four rows of what was seen are kept in a variable; a convolution sees five. It starts with one level."""

    def operator(index: int, inputs: list[int], outputs: list[int], options: str, **values: Any) -> Any:
        op = schema.OperatorT()
        op.opcodeIndex, op.inputs, op.outputs = index, inputs, outputs
        op.builtinOptionsType = getattr(schema.BuiltinOptions, options)
        op.builtinOptions = getattr(schema, f"{options}T")()
        for name, value in values.items():
            setattr(op.builtinOptions, name, value)
        return op

    rng = np.random.default_rng(0)
    window = {"padding": 1, "strideH": 1, "strideW": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    seen = T((1, 4, 1, 8), "int8", 0.05, 3)
    handle, weight = T((), "resource"), rng.integers(-127, 128, (6, 5, 1, 8)).astype(np.int8)
    main = [
        handle, T((1, 1, 1, 8), "int8", 0.05, 3), seen, T((1, 5, 1, 8), "int8", 0.05, 3), seen,
        T((4,), "int32", data=np.array([0, 1, 0, 0])), T((4,), "int32", data=np.array([1, 5, 1, 8])),
        T((4,), "int32", data=np.ones(4)), T(weight.shape, "int8", np.full(6, 0.004), 0, weight),
        T((6,), "int32", np.full(6, 0.0002), 0, np.arange(6)), T((1, 1, 1, 6), "int8", 0.04, -5),
    ]  # fmt: skip
    model, graphs = schema.ModelT(), [schema.SubGraphT(), schema.SubGraphT()]
    kinds = {"CALL_ONCE": 1, "VAR_HANDLE": 1, "READ_VARIABLE": 1, "CONCATENATION": 2, "STRIDED_SLICE": 2,
             "ASSIGN_VARIABLE": 1, "CONV_2D": 3}  # fmt: skip
    model.version, model.buffers, model.operatorCodes, model.subgraphs = 3, [schema.BufferT()], [], graphs
    for kind, version in kinds.items():
        code = schema.OperatorCodeT()
        code.builtinCode, code.version = getattr(schema.BuiltinOperator, kind), version
        code.deprecatedBuiltinCode = min(code.builtinCode, 127)
        model.operatorCodes.append(code)
    graphs[0].tensors = [tensor(f"t{i}", t, model.buffers) for i, t in enumerate(main)]
    first = np.full(seen.shape, start, np.int8)
    graphs[1].tensors = [tensor(f"s{i}", t, model.buffers) for i, t in enumerate([handle, replace(seen, data=first)])]
    variable = {"options": "VarHandleOptions", "container": "", "sharedName": "seen"}
    graphs[0].operators = [
        operator(0, [], [], "CallOnceOptions", initSubgraphIndex=1),
        operator(1, [], [0], **variable),
        operator(2, [0], [2], "ReadVariableOptions"),
        operator(3, [2, 1], [3], "ConcatenationOptions", axis=1),
        operator(4, [3, 5, 6, 7], [4], "StridedSliceOptions", beginMask=0b1101, endMask=0b1101),
        operator(5, [0, 4], [], "AssignVariableOptions"),
        operator(6, [3, 8, 9], [10], "Conv2DOptions", **window),
    ]  # fmt: skip
    graphs[1].operators = [operator(1, [], [0], **variable), operator(5, [0, 1], [], "AssignVariableOptions")]
    graphs[0].inputs, graphs[0].outputs, graphs[1].inputs, graphs[1].outputs = [1], [10], [], []
    return packed(model)


def test_a_streaming_model_has_its_variables_as_inputs_and_outputs() -> None:
    content = streaming(start=3)
    proto = to_onnx(content)
    assert [i.name for i in proto.graph.input] == ["t1", "seen"]
    assert [o.name for o in proto.graph.output] == ["t10", "seen/next"]
    frames = np.random.default_rng(1).integers(-128, 128, (20, 1, 1, 1, 8)).astype(np.int8)
    np.testing.assert_array_equal(stream_in_libwia(content, frames), run_stream(content, frames))


def test_a_variable_that_starts_with_other_than_zeros_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="variable 'seen' is not one that starts with zeros"):
        to_onnx(streaming(start=4))
