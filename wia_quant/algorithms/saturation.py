# SPDX-License-Identifier: Apache-2.0
"""The input of a table need not reach where the function is flat: HardSwish below -3, Sigmoid beyond a few units.

The range of a tensor that only feeds pointwise regions is cut back, at each end, as far as every region's output
changes by less than a quarter of its own step. A network's pre-activations often spread twice as far as the
function looks, so this halves their step for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from wia_quant.affine import Range
from wia_quant.algorithms.base import Draft, Feeds, Progress
from wia_quant.graph import Model, Node
from wia_quant.grids import Grids
from wia_quant.regions import Regions, find_regions

#: Where the functions are looked at.
N_POINTS: Final = 8193

#: How far a result may move, in steps of its own grid.
TOLERANCE: Final = 0.25

#: An end is moved only if that saves this share of the range.
LEAST_GAIN: Final = 0.02


def saturation(draft: Draft, batches: Sequence[Feeds], progress: Progress | None) -> dict[str, Any]:
    """Cut back the ranges of all sources of regions; data is not needed."""
    model, plan = draft.model, draft.plan
    quantized = {d.node for d in plan.decisions if d.quantized}
    fused = {d.node for d in plan.decisions if d.reason.startswith("part of '")}
    regions = find_regions(model, lambda n: n.name not in quantized or n.name in fused)
    grids = draft.grids()
    cut: dict[str, Any] = {}
    for source in dict.fromkeys(regions.source.values()):
        if not _feeds_only_regions(draft, regions, source):
            continue
        old = draft.ranges[source]
        new = _cut_back(model, regions, grids, draft, source, old)
        if new != old:
            draft.ranges[source] = new
            cut[source] = [new.lo, new.hi]
    return {"ranges": len(cut)}


def _feeds_only_regions(draft: Draft, regions: Regions, source: str) -> bool:
    model, plan = draft.model, draft.plan
    if source not in plan.activations or source not in draft.ranges or source in model.outputs:
        return False
    if plan.group(plan.activations[source].group) != [source]:
        return False
    return all(regions.source.get(r.outputs[0]) == source for r in model.consumers(source))


def _cut_back(model: Model, regions: Regions, grids: Grids, draft: Draft, source: str, old: Range) -> Range:
    nodes = [n for _, n in model.nodes() if n.outputs and regions.source.get(n.outputs[0]) == source]
    ends = [n.outputs[0] for n in nodes if n.outputs[0] in draft.plan.activations]
    if not ends:
        return old
    x = np.linspace(old.lo, old.hi, N_POINTS, dtype=np.float32)
    values = _evaluate(model, nodes, source, ends, x)
    if values is None:
        return old
    below, above = np.ones(N_POINTS, dtype=bool), np.ones(N_POINTS, dtype=bool)
    for name, y in zip(ends, values, strict=True):
        tolerance = TOLERANCE * float(grids.of(draft.plan, name).scale)
        above &= _spread(y[::-1])[::-1] <= tolerance
        below &= _spread(y) <= tolerance
    hi = float(x[int(np.argmax(above))])  # the first point from which on nothing changes
    lo = float(x[N_POINTS - 1 - int(np.argmax(below[::-1]))])
    worth = LEAST_GAIN * (old.hi - old.lo)
    lo, hi = (lo if lo - old.lo > worth else old.lo), (hi if old.hi - hi > worth else old.hi)
    return Range.around_zero(lo, hi) if lo < hi else old


def _spread(y: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """At each point the largest distance from its value to any before it."""
    return np.maximum(np.maximum.accumulate(y) - y, y - np.minimum.accumulate(y))


def _evaluate(
    model: Model, nodes: Sequence[Node], source: str, ends: Sequence[str], x: npt.NDArray[np.float32]
) -> list[npt.NDArray[np.float64]] | None:
    """The region's results on ``x`` [n]; None if it cannot be computed apart from the model."""
    from onnx.reference import ReferenceEvaluator  # slow to import

    proto = onnx.GraphProto(name="region")
    proto.input.append(helper.make_tensor_value_info(source, TensorProto.FLOAT, None))
    proto.output.extend(onnx.ValueInfoProto(name=n) for n in ends)
    for name in dict.fromkeys(v for n in nodes for v in n.inputs if v in model.constants):
        array = model.array(name)
        assert array is not None
        # Shapes such as [1, 1, 1] would turn the points into an image of them.
        proto.initializer.append(onnx.numpy_helper.from_array(np.asarray(array).reshape(()), name))
    for node in nodes:
        target = proto.node.add(op_type=node.op_type, name=node.name)
        target.input.extend(node.inputs)
        target.output.extend(node.outputs)
        target.attribute.extend(node.attributes.values())
    whole = helper.make_model(proto, opset_imports=[helper.make_opsetid("", model.opset)])
    try:
        results = ReferenceEvaluator(whole).run(list(ends), {source: x})
    except Exception:  # an operator that the reference lacks: the range stays as it is
        return None
    return [np.asarray(r, dtype=np.float64).reshape(-1) for r in results]
