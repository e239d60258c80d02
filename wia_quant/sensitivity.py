# SPDX-License-Identifier: Apache-2.0
"""What a model's answer would gain if one layer were float: the layer's own error taken out of the quantized model.

First order: ``y' = y - (alone - float)``, with the error that the layer makes on float inputs (copies.py). These errors
are measured once; then the quantized model runs with one of them at a time taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper

from wia_quant.copies import ALONE, combine
from wia_quant.evaluators.agreement import sqnr_db
from wia_quant.executors import make_executor
from wia_quant.stretches import Layer

Feed = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Sensitivity:
    """One layer's share in the error of the answer.

    Attributes:
        node: the layer.
        output_sqnr_db: of the model's first floating output with this layer float.
        gain_db: by how much that beats the quantized model.
    """

    node: str
    output_sqnr_db: float
    gain_db: float


def sensitivities(
    quantized: ModelProto,
    reference: ModelProto,
    nodes: Sequence[str],
    batches: Iterable[Feed],
    progress: Callable[[int, int | None, str], None] | None = None,
    threads: int = 1,
) -> tuple[Sensitivity, ...]:
    """The gain of each layer of ``nodes``, the largest first.

    Args:
        quantized: a QDQ model.
        reference: its float model.
        nodes: names as in ``layers.Layer.node``; those that feed nothing further are left out.
        batches: feeds of the model; a handful is enough.
        progress: called as ``progress(done, total, what)``.
        threads: of the runs.
    """
    layers, model = combine(quantized, reference)
    output = next((v.name for v in reference.graph.output if v.type.tensor_type.elem_type == TensorProto.FLOAT), None)
    chosen = [layer for layer in layers if layer.node in set(nodes) and layer.is_rounded]
    if output is None or not chosen:
        return ()
    errors = _errors_of(model, chosen, output, threads)
    corrected = make_executor("onnxruntime", _with_corrections(quantized, chosen).SerializeToString(), threads)
    nothing = {_correction(layer): np.zeros((), np.float32) for layer in chosen}
    found: dict[str, list[float]] = {node: [] for node in ["", *(layer.node for layer in chosen)]}
    for done, batch in enumerate(batches, 1):
        real, taken_out = errors(batch)
        for node in found:
            feed = {**batch, **nothing}
            feed |= {_correction(x): taken_out[x.result] for x in chosen if x.node == node}
            y = corrected.run(feed)[output]
            found[node].append(sqnr_db(real.astype(np.float64), y.astype(np.float64)))
        if progress:
            progress(done, None, "measuring sensitivity")
    as_it_is = float(np.mean(found.pop("")))
    gains = [Sensitivity(node, float(np.mean(v)), float(np.mean(v)) - as_it_is) for node, v in found.items()]
    return tuple(sorted(gains, key=lambda s: -s.gain_db))


def _errors_of(
    model: ModelProto, chosen: Sequence[Layer], output: str, threads: int
) -> Callable[[Feed], tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]]:
    """A function of a batch: the float model's output, and each layer's own error by its result."""
    del model.graph.output[:]
    for name in dict.fromkeys([output, *(n for x in chosen for n in (x.tensor, ALONE + x.result))]):
        model.graph.output.add().name = name
    run = make_executor("onnxruntime", model.SerializeToString(), threads)

    def errors(batch: Feed) -> tuple[npt.NDArray[Any], dict[str, npt.NDArray[Any]]]:
        y = run.run(batch)
        return y[output], {x.result: y[ALONE + x.result] - y[x.tensor] for x in chosen}

    return errors


def _correction(layer: Layer) -> str:
    return f"correction::{layer.result}"


def _with_corrections(quantized: ModelProto, chosen: Sequence[Layer]) -> ModelProto:
    """The quantized model whose readers of a layer see its result less an input of the graph; of any shape."""
    made = ModelProto()
    made.CopyFrom(quantized)
    sound = {layer.result: f"sound::{layer.result}" for layer in chosen}
    outputs = {v.name for v in quantized.graph.output}
    nodes = []
    for node in quantized.graph.node:
        copied = type(node).FromString(node.SerializeToString())
        for i, name in enumerate(node.input):
            copied.input[i] = sound.get(name, name)
        # The model's own output keeps its name: what is corrected is written to it.
        for i, name in enumerate(node.output):
            copied.output[i] = f"raw::{name}" if name in sound and name in outputs else name
        nodes.append(copied)
        for name in node.output:
            if name in sound:
                raw = f"raw::{name}" if name in outputs else name
                nodes.append(helper.make_node("Sub", [raw, f"correction::{name}"], [sound[name]], sound[name]))
                if name in outputs:
                    nodes.append(helper.make_node("Identity", [sound[name]], [name], f"result::{name}"))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    for layer in chosen:
        made.graph.input.append(helper.make_tensor_value_info(_correction(layer), TensorProto.FLOAT, None))
    return made
