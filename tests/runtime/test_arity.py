# SPDX-License-Identifier: Apache-2.0
"""kernels/runtime/arity.inc says what onnx.defs says of every operator that libwia has."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from onnx import TensorProto as T
from onnx import defs
from onnx import helper as h

from wia_quant.errors import ModelError
from wia_quant.runtime import Session, operators

TABLE = Path(__file__).parents[2] / "kernels" / "runtime" / "arity.inc"
Option = defs.OpSchema.FormalParameterOption
ANY = 2**31 - 1


def leading(parameters: Sequence[defs.OpSchema.FormalParameter], at_least: int) -> int:
    """How many of the first parameters must be there."""
    required = [p.option == Option.Single for p in parameters]
    if parameters and parameters[0].option == Option.Variadic:
        return at_least
    return required.index(False) if False in required else len(required)


def arity(schemas: list[defs.OpSchema]) -> tuple[int, int, int, int]:
    return (
        min(leading(s.inputs, s.min_input) for s in schemas),
        max(s.max_input for s in schemas),
        min(leading(s.outputs, 0) for s in schemas),
        max(s.max_output for s in schemas),
    )


def test_the_table_is_that_of_onnx() -> None:
    rows = re.findall(r"^WIA_ARITY\((\w+), (\w+), (\w+), (\w+), (\w+)\)$", TABLE.read_text(), re.M)
    table = {op: tuple(ANY if n == "kAny" else int(n) for n in numbers) for op, *numbers in rows}
    ours = {op for domain, op in operators() if domain == ""}
    schemas: dict[str, list[defs.OpSchema]] = {}
    for s in defs.get_all_schemas_with_history():
        if s.domain == "" and s.name in ours:
            schemas.setdefault(s.name, []).append(s)
    assert table == {op: arity(versions) for op, versions in schemas.items()}


@pytest.mark.parametrize(
    ("op_type", "inputs", "outputs", "message"),
    [
        ("Conv", ["x"], ["y"], "Conv 'n': its first 2 inputs must be there; it has 1"),
        ("Conv", ["x", ""], ["y"], "it has 2, some of them empty"),
        ("Relu", ["x", "x"], ["y"], "Relu 'n': has 2 inputs, at most 1 are known"),
        ("Relu", ["x"], ["y", "z"], "has 2 outputs, at most 1 are known"),
        ("BatchNormalization", ["x"] * 5, ["", "y"], "its first 1 outputs must be there"),
    ],
)
def test_a_node_with_other_numbers_is_an_error(
    op_type: str, inputs: list[str], outputs: list[str], message: str
) -> None:
    node = h.make_node(op_type, inputs, outputs, name="n")
    info = h.make_tensor_value_info
    graph = h.make_graph([node], "g", [info("x", T.FLOAT, [2, 2])], [info("y", T.FLOAT, None)])
    proto = h.make_model(graph, opset_imports=[h.make_opsetid("", 13)])
    with pytest.raises(ModelError, match=message):
        Session(proto.SerializeToString())
