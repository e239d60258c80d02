# SPDX-License-Identifier: Apache-2.0
"""libwia against the standard's reference, tensor by tensor, and against itself on every ISA and thread count.

    python -m benchmarks.exactness [MODEL ...] [--samples N] [--pure] [--json FILE] [--markdown FILE]

The oracle is onnx.reference on the same quantized file; its convolutions and products are replaced by float64 ones of
numpy, operators that it gets wrong are mended (--pure keeps its products, slow and in float32). Two questions are
asked of every tensor that a QuantizeLinear makes: what does the oracle make of libwia's own inputs to it ("local": the
arithmetic of one step), and of the model's inputs ("through": one step early moves many later; onnxruntime without
optimizations stands beside it). Where they differ, how far was the oracle's real number from the border between two
levels?
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx.reference import ReferenceEvaluator

from benchmarks.executors import EXECUTORS
from benchmarks.float64_ops import MENDED, PRODUCTS
from benchmarks.models import TRAINED, Feeds, Model, cache
from benchmarks.producers import PRODUCERS

Array = npt.NDArray[np.generic]
AGAIN = "::again"


@dataclass
class Difference:
    """Integers of many tensors, compared."""

    tensors: int = 0
    elements: int = 0
    equal: int = 0
    largest_step: int = 0
    tensors_beyond_one_step: int = 0
    worst_tensor: str = ""
    farthest_from_border: float = 0.0  # in levels, of those that differ

    def add(self, name: str, got: Array, wanted: Array, real: Array | None = None) -> None:
        """One tensor; ``real`` is the oracle's number before rounding, in levels."""
        step = np.abs(got.astype(np.int64) - wanted.astype(np.int64))
        self.tensors += 1
        self.elements += step.size
        self.equal += int(np.sum(step == 0))
        largest = int(step.max(initial=0))
        self.tensors_beyond_one_step += largest > 1
        if largest > self.largest_step:
            self.largest_step, self.worst_tensor = largest, name
        if real is not None and largest:
            border = np.abs(np.abs(real - np.floor(real)) - 0.5)[step > 0]
            self.farthest_from_border = max(self.farthest_from_border, float(border.max()))


@dataclass
class Row:
    """One model."""

    model: str
    samples: int = 0
    local: Difference | None = None
    through: Difference | None = None
    peer_through: Difference | None = None
    exposed_equals_fused: bool | None = None
    variants: str = ""
    variants_equal: bool | None = None
    seconds: float = 0.0
    error: str = ""


def quantized_tensors(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The QuantizeLinear nodes of the main graph."""
    return [node for node in model.graph.node if node.op_type == "QuantizeLinear"]


def exposed(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose outputs are also every quantized tensor."""
    made = copy.deepcopy(model)
    present = {output.name for output in made.graph.output}
    for node in quantized_tensors(made):
        if node.output[0] not in present:
            made.graph.output.append(_value(made, node))
    return made


def local(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy that takes every quantized tensor as an input and makes each again from those before it.

    Outputs: for each quantized tensor q, ``q::again``, and the real number that was quantized.
    """
    made = copy.deepcopy(model)
    del made.graph.output[:]
    reals = set()
    for node in quantized_tensors(made):
        q = node.output[0]
        made.graph.input.append(_value(made, node))
        node.output[0] = q + AGAIN
        again = _value(made, node)
        again.name = q + AGAIN
        made.graph.output.append(again)
        reals.add(node.input[0])
    inputs = {value.name for value in made.graph.input}
    for name in sorted(reals - inputs):
        made.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    return made


def measure(model: Model, samples: int, pure: bool, isas: Sequence[str], threads: Sequence[int]) -> Row:
    """Everything about one model."""
    import wia_quant

    began = time.perf_counter()
    path = cache() / f"{model.name}.wia-quant.onnx"
    if not path.exists():
        PRODUCERS["wia-quant"](model, path)
    file = onnx.load(path)
    assert model.evaluation is not None
    chosen = smallest(model.evaluation(), samples)
    here, through, peer_through = Difference(), Difference(), Difference()
    row = Row(model.name, len(chosen), here, through, peer_through)
    nodes = quantized_tensors(file)
    scales = _scales(file)
    opened = wia_quant.Session(exposed(file).SerializeToString())
    names = [output.name for output in opened.get_outputs()]
    fused = wia_quant.Session(path)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(exposed(file), Path(folder) / "exposed.onnx")
        peer = EXECUTORS["onnxruntime plain"](Path(folder) / "exposed.onnx", 2)
    again = ReferenceEvaluator(local(file), new_ops=MENDED + PRODUCTS * (not pure))
    whole = ReferenceEvaluator(exposed(file), new_ops=MENDED + PRODUCTS * (not pure))
    row.exposed_equals_fused = True
    for feeds in chosen:
        got = dict(zip(names, opened.run(None, feeds), strict=True))
        for output, value in zip(fused.get_outputs(), fused.run(None, feeds), strict=True):
            row.exposed_equals_fused &= got[output.name].tobytes() == value.tobytes()
        peer_got = dict(zip(names, peer(feeds), strict=True))
        ours = {node.output[0]: got[node.output[0]] for node in nodes}
        remade = dict(zip(again.output_names, again.run(None, {**feeds, **ours}), strict=True))
        wanted = dict(zip(whole.output_names, whole.run(None, feeds), strict=True))
        for node in nodes:
            q, x = node.output[0], node.input[0]
            source = remade.get(x, feeds.get(x))
            real = None if source is None or x in {i.name for i in file.graph.initializer} else source / scales[q]
            here.add(q, got[q], remade[q + AGAIN], real)
            through.add(q, got[q], wanted[q])
            peer_through.add(q, peer_got[q], wanted[q])
    variants = [(isa, n) for isa in isas for n in threads]
    row.variants = ", ".join(isas) + " x " + "/".join(map(str, threads)) + " threads"
    row.variants_equal = True
    expected = [[value.tobytes() for value in fused.run(None, feeds)] for feeds in chosen]
    for isa, n in variants:
        session = wia_quant.Session(path, threads=n, isa=isa)
        for feeds, wanted_bytes in zip(chosen, expected, strict=True):
            same = [value.tobytes() for value in session.run(None, feeds)] == wanted_bytes
            row.variants_equal &= same
            if not same:
                print(f"{model.name}: {isa}, {n} threads: other bytes", file=sys.stderr, flush=True)
    row.seconds = time.perf_counter() - began
    return row


def smallest(samples: Sequence[Feeds], n: int) -> list[Feeds]:
    """The ``n`` samples of fewest elements, first ones first."""
    order = sorted(range(len(samples)), key=lambda i: sum(value.size for value in samples[i].values()))
    return [samples[i] for i in sorted(order[:n])]


def markdown(rows: Sequence[Row]) -> str:
    """One line per model."""
    head = ["model", "samples", "quantized tensors", "elements", "local: equal", "local: largest step"]
    head += [
        "farthest from a border",
        "through: equal",
        "through: largest step",
        "onnxruntime through: equal",
        "largest",
        "fused = exposed",
        "ISAs and threads",
    ]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for row in rows:
        if row.error or row.local is None or row.through is None:
            lines.append(f"| {row.model} | error: {row.error} |" + " |" * (len(head) - 2))
            continue
        cells = [row.model, str(row.samples), str(row.local.tensors // max(1, row.samples)), str(row.local.elements)]
        cells += [f"{row.local.equal / row.local.elements:.6%}", str(row.local.largest_step)]
        cells += [f"{row.local.farthest_from_border:.1e} levels", f"{row.through.equal / row.through.elements:.4%}"]
        cells += [str(row.through.largest_step)]
        peer = row.peer_through or Difference(elements=1)
        cells += [
            f"{peer.equal / peer.elements:.4%}",
            str(peer.largest_step),
            "yes" if row.exposed_equals_fused else "NO",
        ]
        cells += [f"{'equal bytes' if row.variants_equal else 'DIFFER'}: {row.variants}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(TRAINED)}; default all")
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--pure", action="store_true", help="onnx.reference's own convolutions and products")
    parser.add_argument("--isas", nargs="+", help="default: all that this CPU has")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    from wia_quant.runtime import usable_isas

    rows: list[Row] = []
    for name in arguments.models or TRAINED:
        try:
            isas = arguments.isas or list(usable_isas())
            row = measure(TRAINED[name], arguments.samples, arguments.pure, isas, arguments.threads)
        except Exception as problem:  # a model that fails is a result
            row = Row(name, error=f"{type(problem).__name__}: {' '.join(str(problem).split())[:300]}".replace("|", "/"))
        rows.append(row)
        print(json.dumps(asdict(row)), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
        if arguments.markdown:
            arguments.markdown.write_text(markdown(rows))
    print(markdown(rows))


def _scales(model: onnx.ModelProto) -> dict[str, Array]:
    constants = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    return {node.output[0]: constants[node.input[1]] for node in quantized_tensors(model)}


def _value(model: onnx.ModelProto, node: onnx.NodeProto) -> onnx.ValueInfoProto:
    zero_point = next(i for i in model.graph.initializer if i.name == node.input[2])
    return onnx.helper.make_tensor_value_info(node.output[0], zero_point.data_type, None)


if __name__ == "__main__":
    main()
