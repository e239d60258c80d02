# SPDX-License-Identifier: Apache-2.0
"""A prepared torch model -> a .wia.onnx file that computes what was trained."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import io
import logging
import re
import sys
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from wia_quant.errors import ExportError, MissingExtraError, UsageError
from wia_quant.files import replacing
from wia_quant.graph import save
from wia_quant.policy import Plan, scheme_named
from wia_quant.targets.target import DEFAULT
from wia_quant.torch.culprit import find_culprit, reason_of
from wia_quant.torch.differing import pin_corners, refuse_divisors
from wia_quant.torch.evaluation import PreparedGraph
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.freeze import freeze
from wia_quant.torch.half import HalfQuantize
from wia_quant.torch.marker import translations
from wia_quant.torch.prepare import convert
from wia_quant.torch.qconfig import HALF, SCHEMES
from wia_quant.torch.usable import require_model, run_once
from wia_quant.torch.verify import Difference, arguments, compare
from wia_quant.trained import export_trained

#: The newest opset that every runtime of the day optimizes int8 activations of.
OPSET: Final = 18


@dataclass(frozen=True)
class Exported:
    """What ``export`` gives.

    Attributes:
        model: the QDQ model, in the wia-quantized ONNX format.
        plan: the decision for every node.
        notes: what else a user should know, one sentence each.
        differences: with ``verify``, one an output; else empty.
    """

    model: onnx.ModelProto = field(repr=False)
    plan: Plan
    notes: tuple[str, ...]
    differences: tuple[Difference, ...]


def export(
    model: nn.Module,
    example: Any,  # Any: a tensor, a tuple of tensors, or a dict by argument name
    path: str | Path | None = None,
    *,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    dynamic_batch: bool = True,
    target: str = DEFAULT,
    force: bool = False,
    verify: bool = False,
) -> Exported:
    """Writes a prepared model in the wia-quantized ONNX format.

    Args:
        model: what ``prepare_qat`` or ``prepare`` returned, trained or calibrated; not changed.
        example: inputs as the model takes them: a tensor, a tuple, or a dict by argument name.
        path: the file; None only returns the model.
        input_names: of the file; default the arguments' names.
        output_names: of the file; default the keys or fields of what the model returns, where it has such.
        dynamic_batch: axis 0 of every input is open.
        target: a built-in target or a .json file.
        force: overwrite ``path``.
        verify: run the result in libwia on the example and report how far it is from ``model`` in evaluation mode.

    Raises:
        CalibrationError: a fake quantizer that saw no data.
        ExportError: torch cannot export the model; names the operator or module.
    """
    require_model(model)
    if not any(isinstance(module, FakeQuantize) for module in model.modules()):
        raise ExportError(f"{type(model).__name__} has no fake quantizers; call prepare_qat or prepare on it first")
    frozen = _frozen(model)
    scheme = scheme_of(model)
    proto = to_onnx(frozen, example, input_names, output_names, dynamic_batch, scheme_named(scheme).opset)
    written = export_trained(proto, source="torch", scheme=scheme, target=target)
    differences = compare(written.model, _evaluated(model, frozen), example) if verify else ()
    if path is not None:
        with replacing(Path(path), force=force) as temporary:
            save(written.model, temporary)
    return Exported(written.model, written.plan, written.notes, differences)


def _evaluated(model: nn.Module, frozen: nn.Module) -> nn.Module:
    """What the file is to compute: the model in evaluation mode; by PT2E, whose evaluation is float, ``frozen``."""
    return frozen if isinstance(model, fx.GraphModule) and not isinstance(model, PreparedGraph) else convert(model)


def _frozen(model: nn.Module) -> nn.Module:
    """By the flow that prepared it."""
    if isinstance(model, fx.GraphModule) and "wia_quant.torch.pt2e" in sys.modules:
        from wia_quant.torch import pt2e  # only who used it has torchao

        if pt2e.is_pt2e(model):
            return pt2e.freeze_pt2e(model)
    return freeze(model)


def scheme_of(model: nn.Module) -> str:
    """The scheme of ``policy.SCHEMES`` that a prepared model was trained in: its activations decide.

    Raises:
        ExportError: activations of two widths.
    """
    weights = {weight for weight, _ in SCHEMES.values()}
    kinds = {isinstance(m, HalfQuantize) for m in model.modules() if isinstance(m, FakeQuantize)}
    if True in kinds:
        if False in kinds:
            raise ExportError("float16 and integers in one model; one file has one scheme: use one qconfig")
        return HALF
    grids = {m.qtype for m in model.modules() if isinstance(m, FakeQuantize)} - weights
    widths = {np.dtype(grid.dtype).itemsize * 8 for grid in grids}
    if len(widths) > 1:
        raise ExportError(f"activations of {' and '.join(map(str, sorted(widths)))} bits in one model; use one qconfig")
    return f"w8a{widths.pop()}" if widths else "w8"


def to_onnx(
    model: nn.Module,
    example: Any,
    input_names: list[str] | None = None,
    output_names: list[str] | None = None,
    dynamic_batch: bool = True,
    opset: int = OPSET,
) -> onnx.ModelProto:
    """torch.onnx.export without its chatter; one error in our words when it fails."""
    opset = max(opset, OPSET)
    args, kwargs = arguments(example)
    dynamic = dynamic_shapes(args, kwargs) if dynamic_batch else None
    try:
        table = translations(opset)
    except ImportError as error:
        raise MissingExtraError(
            "onnxscript is not installed; install it with: pip install 'wia-quant[torch]'"
        ) from error
    returned = run_once(model, args, kwargs)
    _register_dataclasses(returned)
    output_names = output_names or _named(returned, inspect.signature(model.forward).parameters)

    def run(module: nn.Module, its_args: tuple[Any, ...], its_kwargs: dict[str, Any], **options: Any) -> Any:
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            return torch.onnx.export(
                module,
                its_args,
                kwargs=its_kwargs,
                dynamo=True,
                opset_version=opset,
                external_data=False,
                verbose=False,
                custom_translation_table=table,
                **options,
            )

    try:
        program = run(model, args, kwargs, input_names=input_names, output_names=output_names, dynamic_shapes=dynamic)
    except Exception as error:  # the exporter raises many kinds
        name, why = find_culprit(model, args, kwargs, run) or ("", error)
        kind = type(model.get_submodule(name)).__name__
        where = f"submodule '{name}' ({kind})" if name else kind
        raise ExportError(
            f"torch cannot export {where}: {reason_of(why)}; write it without branches on tensor values and with"
            " operators that torch.onnx.export knows, or leave it out of the exported model"
        ) from error
    assert program is not None
    refuse_divisors(program.exported_program)
    proto: onnx.ModelProto = program.model_proto
    pin_corners(proto)
    _require_names(proto, input_names, output_names)
    if dynamic is not None:
        _name_batch(proto.graph)
    for part in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]  # where torch traced what: other in every run, so that the digest would be, too
    return proto


def _name_batch(graph: onnx.GraphProto) -> None:
    """An open axis 0 has a name that says so, wherever torch's symbol of it is: batch for ``s77``, 2*batch."""
    values = [*graph.input, *graph.output, *graph.value_info]
    axes = [dim for value in values for dim in value.type.tensor_type.shape.dim if dim.dim_param]
    names: dict[str, str] = {}
    for value in graph.input:
        first = next(iter(value.type.tensor_type.shape.dim), None)
        if first is not None and first.dim_param:
            names.setdefault(first.dim_param, f"{value.name}_batch" if names else "batch")
    for dim in axes:
        dim.dim_param = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), dim.dim_param)


def _require_names(proto: onnx.ModelProto, inputs: list[str] | None, outputs: list[str] | None) -> None:
    """Nothing, where each input and output has the name that was asked for, and no other has it."""
    found = ([i.name for i in proto.graph.input], [o.name for o in proto.graph.output])
    for what, asked, names in (("input", inputs, found[0]), ("output", outputs, found[1])):
        if asked is not None and len(asked) != len(names):
            raise UsageError(
                f"{what}_names has {len(asked)} names, but the model has {len(names)} {what}s; give as many"
            )
    given = [*(inputs or ()), *(outputs or ())]
    bad = next((n for n in given if not n or (found[0] + found[1]).count(n) > 1 or given.count(n) > 1), None)
    if bad is not None:
        raise UsageError(f"input_names, output_names: {bad!r} is empty or taken twice; every name must be its own")


def float_onnx(model: nn.Module, example: Any) -> onnx.ModelProto:
    """A float model in evaluation mode as ONNX; the model is left as it is."""
    require_model(model)
    modes = {module: module.training for module in model.modules()}
    try:
        return to_onnx(model.eval(), example)
    finally:
        for module, training in modes.items():
            module.training = training


def dynamic_shapes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Axis 0 of each tensor named batch, in the structure that torch.export wants."""
    batch = torch.export.Dim.DYNAMIC

    def axes(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return {0: batch} if value.dim() else None
        if isinstance(value, tuple | list):
            return tuple(axes(v) for v in value)
        return {k: axes(v) for k, v in value.items()} if isinstance(value, Mapping) else None

    return {k: axes(v) for k, v in kwargs.items()} if kwargs else tuple(axes(a) for a in args)


@contextlib.contextmanager
def _quiet() -> Any:
    """torch's exporter logs packages it would like and prints its steps; errors still come as exceptions."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)


def _named(returned: Any, taken: Collection[str]) -> list[str] | None:
    """The keys, or fields, of what a model returns; None where it has none, or they are not names for a file."""
    if not isinstance(returned, Mapping) and not dataclasses.is_dataclass(returned):
        return None
    leaves, _ = pytree.tree_flatten_with_path(returned)
    names = [".".join(str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in p) for p, _ in leaves]
    plain = all(isinstance(leaf, torch.Tensor) for _, leaf in leaves) and len({*names}) == len(names)
    return names if plain and all(names) and not {*names} & {*taken} else None


def _register_dataclasses(returned: Any) -> None:
    """torch.export wants to be told of a dataclass that a model returns: those that this one does."""
    waiting = [returned]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, tuple | list):
            waiting += value
        elif dataclasses.is_dataclass(value):
            waiting += [getattr(value, f.name) for f in dataclasses.fields(value)]
            if type(value) not in pytree.SUPPORTED_NODES:
                torch.export.register_dataclass(type(value))
