# SPDX-License-Identifier: Apache-2.0
"""Raise a model to the operator set that a feature needs, and no further."""

from __future__ import annotations

from typing import Final

import onnx
from onnx import TensorProto

from wia_quant.errors import ModelError
from wia_quant.folding.constants import fold_constants
from wia_quant.graph import SMALL_CONSTANT, Model, ir_version_of, unique_names

#: The oldest operator set that is read.
OLDEST: Final = 7

#: A domain only this file uses, between hiding a node from the converter and showing it again.
_HIDDEN: Final = "wia.hidden"

#: Operators whose result has the rank of their first input, in what exporters write around a Softmax.
_RANK_OF_FIRST: Final = frozenset(
    {"MatMul", "Add", "Mul", "Div", "Sub", "Transpose", "Relu", "Softmax", "Cast", "Dropout"}
)


def raise_opset(model: Model, least: int) -> Model:
    """``model`` itself when its opset is at least ``least``, else a converted one.

    Names of nodes and values stay. Large constants do not pass through the converter, so models above
    2 GiB convert too.

    Raises:
        ModelError: the opset is older than ``OLDEST`` or newer than the onnx package knows, or an operator
            cannot be converted.
    """
    newest = onnx.defs.onnx_opset_version()
    if not OLDEST <= model.opset <= newest:
        raise ModelError(
            f"the model uses opset {model.opset}; opsets {OLDEST} to {newest} can be read with onnx {onnx.__version__}"
        )
    model.ir_version = max(ir_version_of(model.opset), min(model.ir_version, ir_version_of(max(least, model.opset))))
    if model.opset >= least:
        return model
    fold_constants(model, frozenset())  # shapes that hang on Constant nodes become known
    large = {name: tensor for name, tensor in model.constants.items() if _n_elements(tensor) > SMALL_CONSTANT}
    owners = {name: i for i, graph in enumerate(model.graphs) for name in graph.initializers}
    if any(owners[name] != 0 for name in large):
        large = {name: t for name, t in large.items() if owners[name] == 0}
    _hide_last_axis_softmax(model)
    proto = model.to_proto()
    proto.ir_version = max(proto.ir_version, 4)  # constants need not be inputs
    kept = [t for t in proto.graph.initializer if t.name not in large]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(kept)
    existing = {info.name for info in proto.graph.input}
    for name, tensor in large.items():
        if name not in existing:
            proto.graph.input.append(onnx.helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    try:
        converted = onnx.version_converter.convert_version(proto, least)
    except Exception as error:  # the converter raises RuntimeError and its own ConvertError
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"cannot be raised from opset {model.opset} to {least}: {reason}") from None
    inputs = [info for info in converted.graph.input if info.name not in large or info.name in existing]
    del converted.graph.input[:]
    converted.graph.input.extend(inputs)
    converted.graph.initializer.extend(large.values())
    converted.ir_version = ir_version_of(least)
    unique_names(converted)
    raised = Model(converted)
    _keep_names(raised, model)
    _show_softmax(raised)
    raised.metadata, raised.notes = model.metadata, model.notes
    raised._producer_info, raised._doc_string = model._producer_info, model._doc_string
    raised.main.name, raised.main.doc_string = model.main.name, model.main.doc_string
    raised.notes.append(f"opset {model.opset} raised to {least}")
    return raised


def _hide_last_axis_softmax(model: Model) -> None:
    """Before opset 13 Softmax flattened to two dimensions; over the last axis both mean the same.

    The converter would wrap each in Shape, Flatten and Reshape; those of a foreign domain it leaves alone.
    """
    if model.opset >= 13:
        return
    model.infer()
    for _, node in model.nodes():
        if node.op_type in ("Softmax", "LogSoftmax", "Hardmax") and node.standard:
            axis, rank = node.integer("axis", 1), _rank(model, node.inputs[0])
            if axis == -1 or (rank is not None and axis == rank - 1):
                node.domain = _HIDDEN
                node.set("axis", -1)
                model.opsets[_HIDDEN] = 1


def _keep_names(raised: Model, model: Model) -> None:
    """A node that the converter put in another's place takes its name: it reads the same value first."""
    left = {node.name for _, node in raised.nodes()}
    gone = {node.inputs[0]: node.name for _, node in model.nodes() if node.name not in left and node.inputs}
    known = {node.name for _, node in model.nodes()}
    for _, node in raised.nodes():
        if node.name not in known and node.inputs and node.inputs[0] in gone:
            node.name = gone.pop(node.inputs[0])


def _rank(model: Model, value: str) -> int | None:
    """The rank of a value, also where inference gives up on a shape that is computed while running."""
    seen: set[str] = set()
    while model.rank(value) is None:
        node = model.producers.get(value)
        if node is None or value in seen:
            return None
        seen.add(value)
        if node.op_type == "Reshape":
            target = model.shape(node.inputs[1])
            return target[0] if target else None
        if node.op_type == "Transpose":
            perm = node.integers("perm")
            if perm is not None:
                return len(perm)
        if node.op_type not in _RANK_OF_FIRST:
            return None
        value = node.inputs[0]
    return model.rank(value)


def _show_softmax(model: Model) -> None:
    model.opsets.pop(_HIDDEN, None)
    for _, node in model.nodes():
        if node.domain == _HIDDEN:
            node.domain = ""


def _n_elements(tensor: TensorProto) -> int:
    n = 1
    for d in tensor.dims:
        n *= d
    return n
