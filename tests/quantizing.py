# SPDX-License-Identifier: Apache-2.0
"""Small float models and the shortest way from samples to a quantized one, for the quantizer's tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from wia_quant.affine import Range
from wia_quant.policy import decide, scheme_named
from wia_quant.prepare import prepare
from wia_quant.quantizer import Written, quantize_with_ranges

Array = npt.NDArray[np.generic]
Feeds = Mapping[str, Array]


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 17,
    ir_version: int | None = None,
    types: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int | str]] | None = None,
) -> onnx.ModelProto:
    """A checked float model; inputs are float32 unless ``types`` says otherwise.

    ``shapes`` are those of outputs that inference does not find.
    """
    types, shapes = types or {}, shapes or {}
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, types.get(n, TensorProto.FLOAT), shapes.get(n)) for n in outputs],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    proto.ir_version = ir_version or 8
    proto = onnx.shape_inference.infer_shapes(proto)
    del proto.graph.value_info[:]
    onnx.checker.check_model(proto)
    return proto


def session(proto: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """onnxruntime without its optimizations: every node as the standard defines it."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(proto: onnx.ModelProto, feeds: Feeds) -> list[Array]:
    """The outputs, by onnxruntime without optimizations."""
    return list(session(proto).run(None, dict(feeds)))


def measured(proto: onnx.ModelProto, samples: Sequence[Feeds], **options: object) -> dict[str, Range]:
    """The smallest and largest value of every tensor that the plan wants observed, in the main graph."""
    scheme = str(options.get("scheme", "w8a8"))
    prepared = prepare(proto, opset=scheme_named(scheme).opset, exclude=options.get("exclude", ()))  # type: ignore[arg-type]
    wanted = decide(prepared.model, scheme, prepared.excluded).observe
    exposed = prepared.model.to_proto()
    inputs = {i.name for i in exposed.graph.input}
    outputs = {o.name for o in exposed.graph.output}
    exposed.graph.output.extend(onnx.ValueInfoProto(name=t) for t in wanted if t not in inputs | outputs)
    runner = session(exposed)
    names = [o.name for o in runner.get_outputs()]
    spans: dict[str, list[float]] = {}
    for feeds in samples:
        values = dict(feeds) | dict(zip(names, runner.run(names, dict(feeds)), strict=True))
        for t in wanted:
            spans.setdefault(t, [0.0, 0.0])
            spans[t] = [min(spans[t][0], float(values[t].min())), max(spans[t][1], float(values[t].max()))]
    return {t: Range(lo, hi) for t, (lo, hi) in spans.items()}


def quantized(proto: onnx.ModelProto, samples: Sequence[Feeds], **options: object) -> Written:
    """Min-max over ``samples``, then the whole quantizer."""
    return quantize_with_ranges(proto, measured(proto, samples, **options), **options)  # type: ignore[arg-type]


def conv(name: str, x: str, y: str, **attributes: object) -> onnx.NodeProto:
    """A Conv whose weight is ``<name>.w`` and bias ``<name>.b``."""
    return helper.make_node("Conv", [x, f"{name}.w", f"{name}.b"], [y], name, **attributes)


def conv_constants(name: str, shape: tuple[int, ...], seed: int = 0) -> dict[str, Array]:
    """Weight and bias for ``conv``."""
    rng = np.random.default_rng([seed, *name.encode()])
    fan_in = int(np.prod(shape[1:]))
    return {
        f"{name}.w": (rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32),
        f"{name}.b": rng.uniform(-0.5, 0.5, shape[0]).astype(np.float32),
    }


def decisions(written: Written) -> dict[str, bool]:
    """node -> whether it works on integers."""
    return {d.node: d.quantized for d in written.plan.decisions}


def initializers(proto: onnx.ModelProto) -> dict[str, Array]:
    """Every constant of the main graph."""
    return {t.name: numpy_helper.to_array(t) for t in proto.graph.initializer}
