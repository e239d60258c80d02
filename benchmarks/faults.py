# SPDX-License-Identifier: Apache-2.0
"""Does a report name the guilty layer? Faults of one layer each are put into sound models, and its first name counted.

    PYTHONPATH=. python -m benchmarks.faults [--faults 100] [--models ...] [--samples 4] [--producer NAME]
        [-o RESULT.json]

Weights: scale doubled, zero point moved, channel scales permuted, levels clipped, axis changed (where both axes have
the length of the scales). Activations: scale doubled, zero point moved, range clipped.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import ModelProto, NodeProto, numpy_helper

from wia_quant.evaluation import UNEXPLAINED_DB, worst_first
from wia_quant.layers import probe_layers
from wia_quant.qdq import Dequantized, GraphView, view_model
from wia_quant.stretches import Layer, cut

Array = npt.NDArray[np.generic]
Random = np.random.Generator

MODELS: Final = ("efficientnet_lite0", "ppocr_rec", "ppocr_det", "minilm")
#: Channel scales that differ less than this are the same for a permutation.
UNEVEN: Final = 1.5


@dataclass(frozen=True)
class Place:
    """One quantized tensor of a layer: where a fault can be.

    Attributes:
        layer: the layer that is guilty of it: its name.
        dequantize: outputs of its DequantizeLinear nodes.
        quantize: output of its QuantizeLinear; empty for a weight.
        tensor: as the view has it.
    """

    layer: str
    dequantize: tuple[str, ...]
    quantize: str
    tensor: Dequantized


@dataclass(frozen=True)
class Verdict:
    """One fault and what was said of it."""

    model: str
    kind: str
    tensor: str
    guilty: str
    named: str
    excess_db: float
    rank: int

    @property
    def right(self) -> bool:
        """True when the guilty layer is the first that is named."""
        return self.guilty == self.named


def places(model: ModelProto, layers: Sequence[Layer]) -> tuple[list[Place], list[Place]]:
    """Weights and activations that a fault can be put into."""
    view = view_model(model).graphs[0]
    names = {layer.node for layer in layers}
    weights = [
        Place(node.name, (name,), "", view.dequantized[name])
        for node in view.graph.node
        for name in node.input
        if node.name in names and _is_weight(view, name)
    ]
    activations = []
    for layer in layers:
        tensor = view.dequantized.get(layer.result)
        if tensor is None or tensor.quantize_node is None or layer.op_type == "input":
            continue
        quantized = tensor.quantize_node.output[0]
        readers = tuple(t.name for t in view.dequantized.values() if t.node.input[0] == quantized)
        if layer.result == readers[0]:
            activations.append(Place(layer.node, readers, quantized, tensor))
    return weights, activations


def _is_weight(view: GraphView, name: str) -> bool:
    tensor = view.dequantized.get(name)
    return tensor is not None and tensor.levels is not None and tensor.levels.ndim >= 2


def _nodes(model: ModelProto, place: Place) -> list[NodeProto]:
    return [n for n in model.graph.node if n.output[0] in (*place.dequantize, place.quantize)]


def _set(model: ModelProto, place: Place, index: int, value: Array) -> None:
    """Gives the place's nodes an input of their own: 0 levels, 1 scale, 2 zero point."""
    for node in _nodes(model, place):
        name = f"{node.output[0]}::fault{index}"
        model.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        while len(node.input) <= index:
            node.input.append("")
        node.input[index] = name


def _scale(place: Place) -> npt.NDArray[np.float32]:
    assert place.tensor.scale is not None
    return place.tensor.scale.astype(np.float32)


def _dtype(place: Place) -> np.dtype[np.generic]:
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(place.tensor.elem_type))


def _ends(place: Place) -> tuple[int, int]:
    info = np.iinfo(str(_dtype(place)))
    return int(info.min), int(info.max)


def double_scale(model: ModelProto, place: Place, _: Random) -> None:
    _set(model, place, 1, _scale(place) * np.float32(2))


def move_zero_point(model: ModelProto, place: Place, rng: Random) -> None:
    """By a quarter of the grid, to where there is room."""
    assert place.tensor.zero_point is not None
    (first, last), zero_point = _ends(place), place.tensor.zero_point
    move = (last - first + 1) // 4 * int(rng.choice([-1, 1]))
    there, back = zero_point + move, zero_point - move
    moved = np.where((there >= first) & (there <= last), there, back)
    _set(model, place, 2, moved.reshape(_scale(place).shape).astype(_dtype(place)))


def permute_scales(model: ModelProto, place: Place, rng: Random) -> None:
    scale = _scale(place)
    _set(model, place, 1, scale[rng.permutation(scale.size)])


def clip_levels(model: ModelProto, place: Place, _: Random) -> None:
    """What a weight's range chosen three times too small gives."""
    assert place.tensor.levels is not None
    _set(model, place, 0, np.clip(place.tensor.levels * 3, *_ends(place)).astype(_dtype(place)))
    _set(model, place, 1, _scale(place) / np.float32(3))


def clip_range(model: ModelProto, place: Place, _: Random) -> None:
    _set(model, place, 1, _scale(place) / np.float32(3))


def change_axis(model: ModelProto, place: Place, _: Random) -> None:
    for node in _nodes(model, place):
        kept = [a for a in node.attribute if a.name != "axis"]
        del node.attribute[:]
        node.attribute.extend([*kept, onnx.helper.make_attribute("axis", 1 - place.tensor.axis)])


def _anywhere(_: Place) -> bool:
    return True


def _has_uneven_scales(place: Place) -> bool:
    scale = place.tensor.scale
    return scale is not None and scale.ndim == 1 and scale.size > 1 and bool(scale.max() > UNEVEN * scale.min())


def _has_two_axes(place: Place) -> bool:
    levels = place.tensor.levels
    other = 1 - place.tensor.axis
    return _has_uneven_scales(place) and levels is not None and other in (0, 1) and levels.shape[0] == levels.shape[1]


Fault = Callable[[ModelProto, Place, Random], None]
#: Kind -> what is done, and to which weights and which activations.
WEIGHT_FAULTS: Final[Mapping[str, tuple[Fault, Callable[[Place], bool]]]] = MappingProxyType(
    {
        "scale x2": (double_scale, _anywhere),
        "wrong zero point": (move_zero_point, _anywhere),
        "permuted channel scales": (permute_scales, _has_uneven_scales),
        "clipped range": (clip_levels, _anywhere),
        "wrong axis": (change_axis, _has_two_axes),
    }
)
ACTIVATION_FAULTS: Final[Mapping[str, tuple[Fault, Callable[[Place], bool]]]] = MappingProxyType(
    {
        "scale x2": (double_scale, _anywhere),
        "wrong zero point": (move_zero_point, _anywhere),
        "clipped range": (clip_range, _anywhere),
    }
)


def seeded(model: ModelProto, layers: Sequence[Layer], n: int, seed: int) -> Iterator[tuple[str, Place, ModelProto]]:
    """``n`` broken copies: the kinds in turn, weights and activations in turn, places at random."""
    rng = np.random.default_rng(seed)
    weights, activations = places(model, layers)
    table = [
        (f"{what}: {kind}", fault, [place for place in candidates if fits(place)])
        for what, faults, candidates in (
            ("weight", WEIGHT_FAULTS, weights),
            ("activation", ACTIVATION_FAULTS, activations),
        )
        for kind, (fault, fits) in faults.items()
    ]
    table = [row for row in table if row[2]]
    for i in range(n):
        kind, fault, candidates = table[i % len(table)]
        place = candidates[int(rng.integers(len(candidates)))]
        broken = ModelProto()
        broken.CopyFrom(model)
        fault(broken, place, rng)
        yield kind, place, broken


def judge(
    name: str,
    quantized: ModelProto,
    reference: ModelProto,
    samples: Sequence[Mapping[str, Array]],
    n: int,
    seed: int = 0,
) -> Iterator[Verdict]:
    """What a report would name first for each of ``n`` faults."""
    layers = cut(view_model(quantized).graphs[0], reference).layers
    for kind, place, broken in seeded(quantized, layers, n, seed):
        errors = worst_first(probe_layers(broken, reference, samples).errors())
        names = [e.node for e in errors]
        rank = names.index(place.layer) + 1
        yield Verdict(name, kind, place.tensor.name, place.layer, names[0], errors[rank - 1].excess_db, rank)


def main() -> None:
    from benchmarks.models import TRAINED
    from benchmarks.models.base import cache

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=100, help="over all models")
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--skip", type=float, default=1 / 3, help="share of the samples, by size, that is passed over")
    parser.add_argument("--data", choices=("evaluation", "calibration"), default="evaluation")
    parser.add_argument("--producer", default="wia-quant", help="whose quantized file of the cache is broken")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path)
    arguments = parser.parse_args()
    verdicts: list[Verdict] = []
    for name in arguments.models:
        zoo = TRAINED[name]
        source = zoo.calibration if arguments.data == "calibration" else zoo.evaluation
        assert source is not None
        # The largest take long, and the smallest (a sentence of two words) are like no other.
        ordered = sorted(source(), key=lambda feeds: sum(a.size for a in feeds.values()))
        samples = ordered[int(len(ordered) * arguments.skip) :][: arguments.samples]
        reference, quantized = onnx.load(zoo.path()), onnx.load(cache() / f"{name}.{arguments.producer}.onnx")
        started = time.process_time()
        # A suspect of the sound model hides every smaller fault.
        sound = worst_first(probe_layers(quantized, reference, samples).errors())
        suspects = [e for e in sound if e.excess_db > UNEXPLAINED_DB]
        names = ", ".join(f"{e.node} {e.excess_db:.1f} dB" for e in suspects[:5])
        print(f"{name}: sound, suspects: {names or 'none'}", flush=True)
        n = arguments.faults // len(arguments.models)
        for verdict in judge(name, quantized, reference, samples, n, arguments.seed):
            verdicts.append(verdict)
            mark = "" if verdict.right else f"  NOT {verdict.named}"
            print(f"{name}: {verdict.kind}: {verdict.guilty}: {verdict.excess_db:.1f} dB{mark}", flush=True)
        print(f"{name}: {time.process_time() - started:.0f} s of CPU", flush=True)
    right = sum(v.right for v in verdicts)
    by_kind = Counter(v.kind for v in verdicts)
    right_by_kind = Counter(v.kind for v in verdicts if v.right)
    result = {
        "faults": len(verdicts),
        "named first": right,
        "by kind": {kind: f"{right_by_kind[kind]} of {n}" for kind, n in by_kind.items()},
        "missed": [asdict(v) for v in verdicts if not v.right],
    }
    print(json.dumps(result, indent=1))
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
