# SPDX-License-Identifier: Apache-2.0
"""Writes a model whose grids come from training: the same plan, the same writer as after calibration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import onnx

from wia_quant.affine import INT8, UINT8, QType, Range, fake_quantize, range_of
from wia_quant.errors import ExportError
from wia_quant.exporters.encodings import Encodings, TrainedWeight, take_apart
from wia_quant.folding.affine import FOLDS_AFFINE
from wia_quant.graph import Model
from wia_quant.grids import Scales, WeightKey, group_ranges, uses_of_weights
from wia_quant.halves import too_large
from wia_quant.operators import Kind, operator
from wia_quant.policy import ActivationPlan, Plan, decide, scheme_named
from wia_quant.prepare import Prepared, prepare
from wia_quant.quantizer import Written, write
from wia_quant.targets.target import DEFAULT, Target, load_target


def export_trained(proto: onnx.ModelProto, *, source: str, scheme: str = "w8a8", target: str = DEFAULT) -> Written:
    """The wia-quantized form of a QDQ model as a framework's exporter writes it.

    Args:
        proto: float weights and activations, each with the QuantizeLinear and DequantizeLinear of its training.
        source: where the grids come from, for the recipe: "torch qat".
        scheme: a name of ``policy.SCHEMES``.
        target: a built-in target or a .json file.

    Raises:
        ExportError: grids that are not constant, that differ where the format needs one, or that no integer
            operator would use.
    """
    encodings = take_apart(proto)
    if not scheme_named(scheme).halves:
        encodings = _round_before_folding(encodings)
    device = load_target(target)
    prepared = prepare(encodings.model, opset=13, keep=_apart(encodings))
    if not scheme_named(scheme).halves:
        encodings = _folded_to_weights(prepared.model, encodings)
    without: dict[str, str] = {}
    plan = decide(prepared.model, scheme, {}, device, small_products=True)
    if plan.halves:
        return _export_halves(prepared, plan, encodings, source, device)
    while missing := _untrained(prepared.model, plan, encodings):
        if not set(missing) - set(without):
            raise ExportError(f"'{next(iter(missing))}' needs a grid that training did not make")
        without |= missing
        plan = decide(prepared.model, scheme, {}, device, keep_float=without, small_products=True)
    plan, unread = _with_unread_grids(prepared.model, plan, encodings)
    ranges = _ranges(plan, encodings)
    for name, span in group_ranges(prepared.model, plan, ranges).items():
        trained = next((ranges[n] for n in plan.observe if plan.activations[n].group == name), span)
        if trained != span:
            raise ExportError(f"a constant that shares the grid of '{name}' exceeds its range: {span}, not {trained}")
    _round_constants(prepared.model, plan, encodings)
    choices = {"calibrator": source, "without_grid": without, "unread_grids": unread}
    scales = _weight_scales(prepared.model, plan, encodings)
    data = {"data": {"kind": source}}
    return write(prepared, plan, ranges, device, weights=scales, choices=choices, calibration=data)


def _round_before_folding(encodings: Encodings) -> Encodings:
    """Parameters that training rounds and computes with, as in ``w * g``, have their rounded values when that folds."""
    weights, constants = dict(encodings.weights), {t.name: t for t in encodings.model.graph.initializer}
    origin: dict[str, set[str]] = {name: {name} for name in constants}
    for node in encodings.model.graph.node:
        inputs = [name for name in node.input if name]
        if not inputs or not origin.keys() >= set(inputs):
            continue
        sources = set().union(*(origin[name] for name in inputs))
        origin.update(dict.fromkeys(node.output, sources))
        for name in sources & set(weights):
            rounded = fake_quantize(weights[name].values, weights[name].qparams)
            constants[name].CopyFrom(onnx.numpy_helper.from_array(rounded, name))
            weights[name] = TrainedWeight(rounded, weights[name].qparams)
            if node.op_type not in _MOVERS:
                del weights[name]
    return replace(encodings, weights=weights)


#: A parameter keeps its levels behind these.
_MOVERS: Final = frozenset({"Transpose", "Reshape", "Squeeze", "Unsqueeze", "Identity", "Flatten"})


def _folded_to_weights(model: Model, encodings: Encodings) -> Encodings:
    """A tensor on a grid that folding made a constant is a weight."""
    arrays = {name: array for name in encodings.activations if (array := model.array(name)) is not None}
    weights = {n: TrainedWeight(a.astype(np.float32), encodings.activations[n]) for n, a in arrays.items()}
    activations = {n: qp for n, qp in encodings.activations.items() if n not in arrays}
    return replace(encodings, activations=activations, weights={**encodings.weights, **weights})


#: What folds into the product before it, were the tensor between them not on a grid.
_AFFINE: Final = frozenset({"Add", "Sub", "Mul", "Div", "BatchNormalization"})


def _apart(encodings: Encodings) -> frozenset[str]:
    """The nodes that must not be folded into a product, as training rounded between the two."""
    graph = encodings.model.graph
    constants = {tensor.name for tensor in graph.initializer}
    # A MatMul's bias is an Add of its own.
    products = [n for n in graph.node if n.op_type in FOLDS_AFFINE or (n.op_type == "Add" and constants & {*n.input})]
    made = {n.output[0] for n in products}
    behind = frozenset[str]().union(*(names for tensor, names in encodings.readers.items() if tensor in made))
    return frozenset(n.name for n in graph.node if n.op_type in _AFFINE and n.name in behind)


def _export_halves(prepared: Prepared, plan: Plan, encodings: Encodings, source: str, device: Target) -> Written:
    """Scheme fp16: the grids only say how large the values were."""
    model = prepared.model
    ranges = {name: range_of(qp) for name, qp in encodings.activations.items() if name in plan.observe}
    without = _float_products(model, plan, encodings)
    kept = {**without, **too_large(model, plan.halves, ranges)}
    plan = decide(model, plan.scheme, {}, device, keep_float=kept)
    choices = {"calibrator": source, "without_grid": without}
    return write(prepared, plan, ranges, device, choices=choices, calibration={"data": {"kind": source}})


def _float_products(model: Model, plan: Plan, encodings: Encodings) -> dict[str, str]:
    """The products of float16 whose weight training did not round -> why they stay float32."""
    found: dict[str, str] = {}
    for _, node in model.nodes():
        line = operator(model, node)
        if node.name not in plan.halves or line.kind not in (Kind.PRODUCT, Kind.EMBEDDING):
            continue
        weight = node.input(0 if line.kind is Kind.EMBEDDING else 1)
        if model.array(weight) is not None and _trained(model, encodings, weight) is None:
            found[node.name] = f"training left '{weight}' float"
    return found


def _untrained(model: Model, plan: Plan, encodings: Encodings) -> dict[str, str]:
    """The integer nodes that training did not make integer -> why they stay float."""
    return (
        _readers_without_grid(model, plan, encodings)
        | _float_weights(model, plan, encodings)
        | (_moved_between_two_grids(model, plan, encodings) or _joined_on_two_grids(model, plan, encodings))
    )


def _joined_on_two_grids(model: Model, plan: Plan, encodings: Encodings) -> dict[str, str]:
    """The Concats whose tensors training put on grids of their own: reals are joined, each rounded on its own."""
    spans: dict[str, set[Range]] = {}
    for name, activation in plan.activations.items():
        if name in encodings.activations:
            spans.setdefault(activation.group, set()).add(range_of(encodings.activations[name]))
    quantized = {decision.node for decision in plan.decisions if decision.quantized}
    return {
        node.name: "training put what it joins on grids of their own"
        for _, node in model.nodes()
        if node.op_type == "Concat"
        and node.name in quantized
        and any(len(spans.get(plan.activations[v].group, ())) > 1 for v in node.inputs if v in plan.activations)
    }


def _moved_between_two_grids(model: Model, plan: Plan, encodings: Encodings) -> dict[str, str]:
    """The movers behind which training rounds to another grid than before: reals are moved, each rounded on its own."""
    quantized = {decision.node for decision in plan.decisions if decision.quantized}
    grids = {name: range_of(qp) for name, qp in encodings.activations.items()}
    found: dict[str, str] = {}
    for _, node in model.nodes():
        if node.name not in quantized or operator(model, node).kind is not Kind.MOVES:
            continue
        inputs = [name for name in node.inputs if name in plan.activations][:1]
        before = {grids[name] for name in inputs if name in grids}
        behind = {grids[name] for name in node.outputs if name in grids}
        if len(before | behind) > 1:
            found[node.name] = "training put what it moves on another grid than before"
        elif before or behind:
            # What has no grid of its own is on that of the other side.
            grids.update(dict.fromkeys((*inputs, *node.outputs), next(iter(before | behind))))
    return found


def _readers_without_grid(model: Model, plan: Plan, encodings: Encodings) -> dict[str, str]:
    """The integer nodes of groups that training put on no grid -> why they stay float."""
    known = {
        activation.group
        for name, activation in plan.activations.items()
        if name in encodings.activations or model.array(name) is not None
    }
    found: dict[str, str] = {}
    for name, activation in plan.activations.items():
        if activation.group not in known:
            for node in sorted(plan.integer_readers.get(name, ())):
                found[node] = f"training put '{name}' on no grid"
    return found


def _float_weights(model: Model, plan: Plan, encodings: Encodings) -> dict[str, str]:
    """The integer nodes whose weight training left float, or on a grid of activations -> why they stay float."""
    found: dict[str, str] = {}
    for weight in plan.weights:
        trained = _trained(model, encodings, weight.tensor)
        if trained is None:
            found[weight.node] = f"training left '{weight.tensor}' float"
        elif trained.axis is None and not _is_symmetric(trained):
            found[weight.node] = f"training put '{weight.tensor}' on a grid with a zero point, as weights have none"
    return found


def _is_symmetric(weight: TrainedWeight) -> bool:
    """Whether its levels are those of a weight, 0 in the middle."""
    qp = weight.qparams
    levels = np.rint(weight.values / qp.scale)
    return bool(
        np.all(qp.zero_point == qp.qtype.middle) and levels.min(initial=0) >= -(qp.qtype.qmax - qp.qtype.middle)
    )


def _with_unread_grids(model: Model, plan: Plan, encodings: Encodings) -> tuple[Plan, list[str]]:
    """The plan with what training rounds though no integer operator needs it: the file rounds where training did."""
    present = {info.name for graph in model.graphs for info in graph.inputs} | set(model.producers)
    lost = sorted(set(encodings.activations) - present)
    if lost:
        raise ExportError(f"'{lost[0]}' was trained on a grid, but simplifying the graph removed it")
    unread = [name for name in encodings.activations if name not in plan.activations]
    readers = {
        name: plan.integer_readers.get(name, frozenset()) | encodings.readers[name] for name in encodings.activations
    }
    made = {name for name in unread if name in model.producers and name not in encodings.also_raw}
    extended = replace(
        plan,
        activations={
            **plan.activations,
            **{n: ActivationPlan(_stored(encodings.activations[n].qtype), n) for n in unread},
        },
        observe=(*plan.observe, *unread),
        integer_made=plan.integer_made | made,
        integer_readers={**plan.integer_readers, **readers},
    )
    return extended, unread


def _stored(grid: QType) -> QType:
    """The grid of the format that has the same levels: uint8 ones are int8 with another zero point."""
    return INT8 if grid == UINT8 else grid


def _round_constants(model: Model, plan: Plan, encodings: Encodings) -> None:
    """A parameter that training rounds, but the plan keeps float, takes its rounded values."""
    planned = {w.tensor for w in plan.weights} | set(plan.activations)
    for name, weight in encodings.weights.items():
        if name in planned or model.array(name) is None:
            continue
        rounded = fake_quantize(weight.values, weight.qparams)
        if rounded.tobytes() != weight.values.tobytes():  # -0.0 is no level
            model.replace_readers(name, model.add_constant(model.owners[name], f"{name}/rounded", rounded))


def _weight_scales(model: Model, plan: Plan, encodings: Encodings) -> dict[WeightKey, Scales]:
    """The trained scales of every planned weight, along the axis that the format gives it."""
    found: dict[WeightKey, Scales] = {}
    for tensor, axis in uses_of_weights(plan):
        w = model.floats(tensor)
        trained = _trained(model, encodings, tensor)
        assert trained is not None  # _float_weights saw to it
        if trained.axis is None and axis is not None:
            found[(tensor, axis)] = np.broadcast_to(trained.scale, (w.shape[axis],)).astype(np.float32)
        elif trained.axis == axis:
            found[(tensor, axis)] = trained.scale
        else:
            raise ExportError(
                f"weight '{tensor}' was trained with scales along axis {trained.axis}, the file needs"
                f" {'one scale' if axis is None else f'axis {axis}'}; train with a qconfig of that granularity"
            )
    return found


def _trained(model: Model, encodings: Encodings, tensor: str) -> TrainedWeight | None:
    """What training made of a weight; one that folding renamed is found by its values."""
    if tensor in encodings.weights:
        return encodings.weights[tensor]
    w = model.floats(tensor)
    for trained in encodings.weights.values():
        for form in (trained, _transposed(trained)):
            if np.array_equal(form.values, w):
                return form
    return None


def _transposed(weight: TrainedWeight) -> TrainedWeight:
    if weight.values.ndim != 2:
        return weight
    axis = None if weight.axis is None else 1 - weight.axis
    return TrainedWeight(weight.values.T, replace(weight.qparams, axis=axis))


def _ranges(plan: Plan, encodings: Encodings) -> Mapping[str, Range]:
    """Tensor -> the range of its trained grid; a group's members without a grid of their own take the group's."""
    by_group: dict[str, tuple[str, Range]] = {}
    for name, activation in plan.activations.items():
        if name not in encodings.activations:
            continue
        span = range_of(encodings.activations[name])
        first, known = by_group.setdefault(activation.group, (name, span))
        if known != span:
            raise ExportError(
                f"'{first}' and '{name}' must share one grid, but training put them on two: {known} and {span}"
            )
    return {name: by_group[plan.activations[name].group][1] for name in plan.observe}
