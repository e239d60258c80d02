# SPDX-License-Identifier: Apache-2.0
"""What `wia-quant check` finds in QDQ files of real models by several tools, each finding proved from the file.

python -m benchmarks.check [MODEL ...] [--producers wia-quant onnxruntime ...] [--json FILE]

A finding is proved by looking at the raw protobuf, not through the rule's own code: for an overflow, an input is made
whose sum of products leaves int32, and onnxruntime's ConvInteger or MatMulInteger is run on it. What --fix mends is
run by onnxruntime, unoptimized, before and after: the outputs must be equal bytes.
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from benchmarks.models import TRAINED, Model, cache
from benchmarks.producers import PRODUCERS
from wia_quant.rules import Finding, check_model, fix_model

Array = npt.NDArray[np.generic]

TOOLS = ("wia-quant", "onnxruntime", "onnxruntime u8", "nncf")
MODELS = ("efficientnet_lite0", "ppocr_rec", "ppocr_det", "minilm", "magika")
_INT32 = np.iinfo(np.int32)


@dataclass
class Row:
    """One file."""

    model: str
    producer: str
    errors: dict[str, int] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    not_proved: list[str] = field(default_factory=list)
    mended: dict[str, int] = field(default_factory=dict)
    mended_equal: bool | None = None
    left_to_mend: int = 0


class Raw:
    """Look-ups in a model, apart from those of the package."""

    def __init__(self, model: ModelProto) -> None:
        self.nodes = {n.name: n for n in model.graph.node if n.name}
        self.makers = {o: n for n in model.graph.node for o in n.output}
        self.tensors = {t.name: t for t in model.graph.initializer}
        for n in model.graph.node:
            if n.op_type == "Constant":
                self.tensors[n.output[0]] = n.attribute[0].t
        self.names = Counter(n.name for n in model.graph.node)

    def value(self, name: str) -> Array:
        """A constant."""
        return numpy_helper.to_array(self.tensors[name])

    def node_of(self, finding: Finding) -> NodeProto:
        """The node that a finding names: ``Conv 'stem/conv'``."""
        found = re.fullmatch(r"\w+ '(.*)'", finding.node)
        assert found
        return self.nodes[found[1]]

    def integers(self, name: str) -> tuple[Array, Array, Array]:
        """Of a constant behind DequantizeLinear: levels, scale, zero point."""
        node = self.makers[name]
        assert node.op_type == "DequantizeLinear"
        return self.value(node.input[0]), self.value(node.input[1]), self.value(node.input[2])


def overflow(raw: Raw, finding: Finding) -> bool:
    """Makes levels of the input whose sum leaves int32, adds it up exactly, and as onnxruntime's integers do."""
    node = raw.node_of(finding)
    channel, reached = (int(re.search(p, finding.message)[1]) for p in (r"channel (\d+)", r"bias is (-?\d+)"))  # type: ignore[index]
    w, _, w_zero = raw.integers(node.input[1])
    bias, _, _ = raw.integers(node.input[2])
    x_zero = raw.value(raw.makers[node.input[0]].input[2]).reshape(())
    row = w[channel].astype(np.int64) - (w_zero.reshape(-1)[channel if w_zero.size > 1 else 0].astype(np.int64))
    ends = np.iinfo(x_zero.dtype)
    levels = np.where((row > 0) == (reached > 0), ends.max, ends.min).astype(x_zero.dtype)
    exact = int(((levels.astype(np.int64) - int(x_zero)) * row).sum()) + int(bias[channel])
    one = helper.make_node("ConvInteger", ["x", "w", "z"], ["y"])
    graph = helper.make_graph(
        [one, helper.make_node("Add", ["y", "b"], ["s"])],
        "g",
        [helper.make_tensor_value_info("x", _type(levels), [1, *levels.shape])],
        [helper.make_tensor_value_info("s", TensorProto.INT32, None)],
        [
            numpy_helper.from_array(row.astype(w.dtype)[None], "w"),
            numpy_helper.from_array(x_zero, "z"),
            numpy_helper.from_array(np.array(bias[channel], np.int32), "b"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    wrapped = int(_session(model).run(None, {"x": levels[None]})[0].reshape(()))
    return exact == reached and not _INT32.min <= exact <= _INT32.max and wrapped != exact


def scale_value(raw: Raw, finding: Finding) -> bool:
    """A scale is below the smallest normal float32, or no positive number."""
    scale = raw.value(finding.tensor).astype(np.float64)
    return bool(((scale < float(np.finfo(np.float32).tiny)) | ~np.isfinite(scale)).any())


def activation_grid(raw: Raw, finding: Finding) -> bool:
    """A tensor that is no constant is quantized with several scales."""
    node = raw.node_of(finding)
    return node.input[0] not in raw.tensors and raw.value(node.input[1]).size > 1


def missing(raw: Raw, finding: Finding) -> bool:
    """The operand is no output of DequantizeLinear, while the weight is."""
    node = raw.node_of(finding)
    maker = raw.makers.get(finding.tensor)
    return raw.makers[node.input[1]].op_type == "DequantizeLinear" and (
        maker is None or maker.op_type != "DequantizeLinear"
    )


def float_copy(raw: Raw, finding: Finding) -> bool:
    """A float constant goes into a QuantizeLinear."""
    node = raw.node_of(finding)
    return node.op_type == "QuantizeLinear" and raw.value(node.input[0]).dtype == np.float32


def weight_axis(raw: Raw, finding: Finding) -> bool:
    """The axis is written below 0."""
    return any(a.name == "axis" and a.i < 0 for a in raw.node_of(finding).attribute)


def axis_size(raw: Raw, finding: Finding) -> bool:
    """Scale and zero point have different shapes."""
    node = raw.node_of(finding)
    return raw.value(node.input[1]).shape != raw.value(node.input[2]).shape


def moved(raw: Raw, finding: Finding) -> bool:
    """The sides have different scales or zero points."""
    node = raw.node_of(finding)
    sides = {
        (float(raw.value(m.input[1])), int(raw.value(m.input[2])))
        for m in (raw.makers[n] for n in node.input if n in raw.makers)
        if m.op_type == "DequantizeLinear"
    }
    sides |= {
        (float(raw.value(q.input[1])), int(raw.value(q.input[2])))
        for q in raw.nodes.values()
        if q.op_type == "QuantizeLinear" and q.input[0] in node.output
    }
    return len(sides) > 1


def names(raw: Raw, finding: Finding) -> bool:
    """A node without a name, or a name twice."""
    return raw.names[""] > 0 or any(n > 1 for n in raw.names.values())


#: How a finding of each rule is proved; what has no proof counts as not proved.
PROOFS: Mapping[str, Callable[[Raw, Finding], bool]] = MappingProxyType(
    {
        "overflow": overflow,
        "scale-value": scale_value,
        "activation-grid": activation_grid,
        "missing": missing,
        "float-copy": float_copy,
        "weight-axis": weight_axis,
        "axis-size": axis_size,
        "moved": moved,
        "names": names,
    }
)


def measure(model: Model, producer: str) -> Row:
    """Makes the file if it is not in the cache, checks it, proves what is found, mends it and compares."""
    path = cache() / f"{model.name}.{producer.replace(' ', '-')}.onnx"
    if not path.exists():
        PRODUCERS[producer](model, path)
    proto = onnx.load(path)
    raw, row, found = Raw(proto), Row(model.name, producer), check_model(proto)
    for severity, counts in (("error", row.errors), ("note", row.notes)):
        counts.update(Counter(f.rule for f in found if f.severity.value == severity))
    row.not_proved = [
        f"{f.rule}: {f.node}: {f.message}" for f in found if f.rule not in PROOFS or not PROOFS[f.rule](raw, f)
    ]
    feed = dict(model.calibration()[0])
    before = _session(proto).run(None, feed)
    row.mended = fix_model(proto)
    row.left_to_mend = sum(f.fixable for f in check_model(proto))
    onnx.checker.check_model(proto, full_check=True)
    after = _session(proto).run(None, feed)
    row.mended_equal = all(a.tobytes() == b.tobytes() for a, b in zip(before, after, strict=True))
    return row


def _session(model: ModelProto) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _type(x: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(x.dtype))


def markdown(rows: Sequence[Row]) -> str:
    """The table: errors and notes by rule, what was not proved, what was mended."""
    lines = ["| model | made by | errors | notes | not proved | mended, outputs equal |", "|---|---|---|---|---|---|"]
    for r in rows:
        counted = [", ".join(f"{n} {rule}" for rule, n in counts.items()) or "-" for counts in (r.errors, r.notes)]
        mended = ", ".join(f"{n} {rule}" for rule, n in r.mended.items()) or "-"
        equal = "yes" if r.mended_equal and not r.left_to_mend else "NO"
        lines.append(
            f"| {r.model} | {r.producer} | {counted[0]} | {counted[1]} | {len(r.not_proved)} | {mended}: {equal} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(TRAINED)}; default {', '.join(MODELS)}")
    parser.add_argument("--producers", nargs="+", default=list(TOOLS), choices=list(PRODUCERS))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = [measure(TRAINED[m], p) for m in arguments.models or MODELS for p in arguments.producers]
    print(markdown(rows))
    for row in rows:
        for line in row.not_proved:
            print(f"not proved: {row.model} {row.producer}: {line}")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    if any(r.not_proved or r.left_to_mend or not r.mended_equal for r in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
