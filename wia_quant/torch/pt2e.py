# SPDX-License-Identifier: Apache-2.0
"""PT2E: programs that torch.export captured, prepared by torchao with our quantizer, exported to the one format.

::

    program = capture(model, example)
    prepared = prepare_qat_pt2e(program, WiaQuantizer())      # of torchao.quantization.pt2e.quantize_pt2e
    ...training...
    wia_quant.torch.export(prepared, example, "model.wia.onnx")
"""

from __future__ import annotations

import contextlib
import copy
import logging
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final

import torch
from torch import fx, nn
from torch.ao.quantization import QConfig

from wia_quant.errors import ExportError, MissingExtraError, UsageError
from wia_quant.policy import SMALL_EMBEDDING
from wia_quant.torch.fake_quantize import FakeQuantize, round_bias
from wia_quant.torch.freeze import FrozenQuantizer
from wia_quant.torch.half import HalfQuantize
from wia_quant.torch.observers import AbsMaxObserver, CurrentMinMaxObserver
from wia_quant.torch.paths import get, holder_of
from wia_quant.torch.placement import Placement, is_matrix_product, place
from wia_quant.torch.qconfig import get_default_qat_qconfig
from wia_quant.torch.roles import EXTREMES, OPERATORS, Role
from wia_quant.torch.verify import arguments


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """torchao tells of extensions for other hardware that it could not load; its errors still come as exceptions."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


try:
    with _quiet():
        import torchao.quantization.pt2e as _pt2e
        from torchao.quantization.pt2e import quantize_pt2e as _quantize_pt2e
        from torchao.quantization.pt2e import quantizer as _quantizer
except ImportError as _error:
    raise MissingExtraError("torchao is not installed; install it with: pip install 'wia-quant[pt2e]'") from _error

#: The axis of output channels of a weight, by operator; 0 for all others.
_CHANNEL_AXIS: Final = {"conv_transpose1d": 1, "conv_transpose2d": 1, "conv_transpose3d": 1}
_NORMALIZATIONS: Final = ("batch_norm",)
_RANDOM: Final = ("bernoulli", "rand", "normal", "uniform")


class Pt2eFakeQuantize(FakeQuantize, _pt2e.FakeQuantizeBase):  # type: ignore[misc]  # the base has no types
    """Our FakeQuantize under torchao's base class, by which its functions know a fake quantizer."""


class _Maker:
    """Makes one fake quantizer; torchao would pass it what the grid already says."""

    __name__ = "Wia"

    def __init__(self, make: Callable[[], FakeQuantize]) -> None:
        self._make = make

    def with_args(self, **kwargs: Any) -> _Maker:
        return self

    def __call__(self) -> FakeQuantize:
        made = self._make()
        found = Pt2eFakeQuantize(type(made.observer), made.qtype, made.axis)
        found.observer = made.observer
        found.always_observe = made.always_observe
        found.quantizing = made.quantizing
        return found


class WiaQuantizer(_quantizer.Quantizer):  # type: ignore[misc]  # as above
    """Annotates a captured program for the wia scheme; for ``prepare_qat_pt2e`` and ``prepare_pt2e`` of torchao.

    Args:
        qconfig: default ``get_default_qat_qconfig("wia")``; for ``prepare_pt2e`` give ``get_default_qconfig("wia")``.
        exclude: names of submodules of the captured model that stay float, with all they hold.
        calibrating: activations pass unchanged while they are observed, as ``prepare`` has it.
    """

    def __init__(
        self, qconfig: QConfig | None = None, *, exclude: Iterable[str] = (), calibrating: bool = False
    ) -> None:
        super().__init__()
        self._qconfig = qconfig or get_default_qat_qconfig()
        if isinstance(self._qconfig.weight(), HalfQuantize):
            raise UsageError("torchao has no form of scheme 'fp16'; use wia_quant.torch.prepare_qat or prepare")
        self._exclude = tuple(exclude)
        self._calibrating = calibrating

    def annotate(self, model: fx.GraphModule) -> fx.GraphModule:
        """Marks what is quantized; called by torchao."""
        _require_foldable(model)
        seen: set[str] = set()
        roles = {node: self._role(node, seen) for node in model.graph.nodes}
        for name in self._exclude:
            if name not in seen:
                raise UsageError(f"exclude '{name}': no operator of the program belongs to such a submodule")
        absorbed = set()
        for node in model.graph.nodes:
            if _aten(node) in _NORMALIZATIONS:
                product = node.all_input_nodes[0]
                if roles[product] is Role.PRODUCT and len(product.users) == 1:
                    roles[node] = Role.PRODUCT
                    absorbed.add(product)
        placement = place(model.graph, roles, _inputs, absorbed)
        self._annotate_weights(roles)
        if isinstance(self._qconfig.activation(), FakeQuantize):
            self._annotate_activations(model, placement)
        return model

    def validate(self, model: fx.GraphModule) -> None:
        """Nothing to refuse: what has no integer form stays float."""

    def _role(self, node: fx.Node, seen: set[str]) -> Role:
        if not _is_real(node):
            return Role.FLOAT
        owners = {path for path, _ in (node.meta.get("nn_module_stack") or {}).values()}
        found = [name for name in self._exclude if any(o == name or o.startswith(f"{name}.") for o in owners)]
        seen.update(found)
        return Role.FLOAT if found else _role_by_table(node)

    def _annotate_weights(self, roles: dict[fx.Node, Role]) -> None:
        for node, role in roles.items():
            if role not in (Role.PRODUCT, Role.LOOKUP) or _aten(node) in _NORMALIZATIONS:
                continue
            weight = node.args[0] if role is Role.LOOKUP else node.args[1]
            if isinstance(weight, fx.Node) and not (role is Role.LOOKUP and _is_small(weight)):
                axis = _CHANNEL_AXIS.get(_aten(node), 0)
                for value in _inputs(node):
                    _annotation(node).input_qspec_map[value] = (
                        None  # torchao wants the input's place before the weight's
                    )
                _annotation(node).input_qspec_map[weight] = _spec(partial(self._weight, axis))

    def _weight(self, axis: int) -> FakeQuantize:
        made: FakeQuantize = self._qconfig.weight()
        if made.axis is not None:
            made.axis = axis
        return made

    def _activation(self) -> FakeQuantize:
        made: FakeQuantize = self._qconfig.activation()
        return self._set(made)

    def _constant(self) -> FakeQuantize:
        return self._set(FakeQuantize(CurrentMinMaxObserver, self._qconfig.activation().qtype))

    def _set(self, made: FakeQuantize) -> FakeQuantize:
        made.always_observe, made.quantizing = self._calibrating, not self._calibrating
        return made

    def _annotate_activations(self, model: fx.GraphModule, placement: Placement) -> None:
        first: dict[fx.Node, Any] = {}  # Any: a node, or an edge of two
        order = {node: n for n, node in enumerate(model.graph.nodes)}
        places: list[tuple[int, fx.Node, fx.Node | None]] = []
        for node in placement.wanted:
            if placement.makes_reals(node):
                readers = [u for u in placement.readers(node) if u.op != "output"]
                places += [(order[reader], node, reader) for reader in readers]
            else:
                places.append((order[node], node, None))
        # As they run: torchao wants the first of a group before those that share with it.
        for _, node, reader in sorted(places, key=lambda place: place[0]):
            group = placement.groups.find(node)
            spec = _quantizer.SharedQuantizationSpec(first[group]) if group in first else self._spec_of(placement, node)
            if reader is None:
                _annotation(node).output_qspec = spec
            else:
                _annotation(reader).input_qspec_map[node] = spec
            first.setdefault(group, node if reader is None else (node, reader))

    def _spec_of(self, placement: Placement, node: fx.Node) -> Any:
        if any(n.op != "get_attr" for n in placement.members(node)):
            return _spec(self._activation)
        reader = placement.readers(node)[0]
        if is_matrix_product(reader) and reader.args[1] is node and node.meta["val"].dim() == 2:
            return _spec(lambda: self._weight(1))
        return _spec(self._constant)


def capture(model: nn.Module, example: Any, *, dynamic_batch: bool = True) -> fx.GraphModule:
    """``torch.export.export(model, ...).module()``, in the model's mode, with an open batch."""
    from wia_quant.torch.export import dynamic_shapes  # that module imports this one's functions lazily

    args, kwargs = arguments(example)
    with _quiet():
        shapes = dynamic_shapes(args, kwargs) if dynamic_batch else None
        found: Any = torch.export.export(model, args, kwargs, dynamic_shapes=shapes).module()
    _require_foldable(found)
    return found


def move_to_train(program: fx.GraphModule) -> fx.GraphModule:
    """torchao's ``move_exported_model_to_train``, and ranges move: what ``train()`` is to other models."""
    return _move(program, training=True)


def move_to_eval(program: fx.GraphModule) -> fx.GraphModule:
    """torchao's ``move_exported_model_to_eval``, and ranges rest: what ``eval()`` is to other models."""
    return _move(program, training=False)


def _move(program: fx.GraphModule, *, training: bool) -> fx.GraphModule:
    with _quiet():
        (_pt2e.move_exported_model_to_train if training else _pt2e.move_exported_model_to_eval)(program)
    for module in program.modules():
        if isinstance(module, FakeQuantize):
            module.train(training)
    return program


def _require_foldable(program: fx.GraphModule) -> None:
    """Nothing, unless torchao would fail to fold a BatchNorm, with a message about sizes.

    Raises:
        ExportError: a transposed convolution with groups, and a BatchNorm behind it.
    """
    for node in program.graph.nodes:
        product = node.all_input_nodes[0] if _aten(node) in _NORMALIZATIONS else None
        groups = 6  # its place among the arguments
        if product is None or not _aten(product).startswith("conv_transpose") or len(product.args) <= groups:
            continue
        if product.args[groups] != 1:
            owners = [path for path, _ in (product.meta.get("nn_module_stack") or {}).values()]
            raise ExportError(
                f"'{owners[-1] if owners else product.name}' is a transposed convolution with groups and a BatchNorm"
                " behind it, which torchao cannot fold; use wia_quant.torch.prepare_qat or prepare, which can"
            )


def freeze_pt2e(prepared: fx.GraphModule) -> fx.GraphModule:
    """A prepared program with BatchNorms folded and fake quantizers constant, for ``export``.

    Raises:
        CalibrationError: a fake quantizer saw no data.
        ExportError: a program that torchao cannot convert.
    """
    program = copy.deepcopy(prepared)
    for node in program.graph.nodes:
        if _aten(node).startswith(_RANDOM):
            raise ExportError(
                f"the program draws random numbers ('{node.name}'), as stochastic depth does when it is captured in"
                " training mode: capture model.eval(), or use prepare_qat, which knows training from evaluation"
            )
    grids = {}
    for name, module in program.named_modules():
        if isinstance(module, FakeQuantize):
            module.qparams()  # an error names what saw no data
            module.quantizing = True
            grids[name] = module.qtype
    weights = {m.qtype for m in program.modules() if isinstance(m, FakeQuantize) and m.axis is not None}
    per_tensor = {m.qtype for m in program.modules() if isinstance(m, FakeQuantize) and _is_weight(m)}
    try:
        with _quiet():
            _pt2e.move_exported_model_to_eval(program)
            program = _quantize_pt2e.convert_pt2e(program, fold_quantize=False)
    except Exception as error:  # torchao raises many kinds
        raise ExportError(f"torchao cannot convert the program: {str(error).splitlines()[0]}") from error
    _to_markers(program, weights | per_tensor)
    _round_biases(program)
    program.recompile()
    return program


def _is_weight(module: FakeQuantize) -> bool:
    return isinstance(module.observer, AbsMaxObserver)


def _to_markers(program: fx.GraphModule, weight_grids: set[Any]) -> None:
    """quantized_decomposed pairs become our operator; a weight's scale is that of the folded weight."""
    by_ends = {(g.qmin, g.qmax): g for g in weight_grids}
    graph = program.graph
    for n, quantize in enumerate(list(graph.nodes)):
        name = _decomposed(quantize)
        if not name.startswith("quantize_per"):
            continue
        x, ends = quantize.args[0], quantize.args[-3:-1]
        axis = quantize.args[3] if name == "quantize_per_channel" else None
        dtype = quantize.args[-1]
        parameter = _constant(program, x)
        if parameter is not None and tuple(ends) in by_ends:
            observer, grid = AbsMaxObserver(), by_ends[tuple(ends)]
            observer.observe(parameter.detach())
            marker = FrozenQuantizer(observer.qparams(grid, axis))
        else:
            marker = FrozenQuantizer.of(float(quantize.args[1]), int(quantize.args[2]), dtype, *ends)
        place_name = f"wia_quantizer_{n}"
        program.add_submodule(place_name, marker)
        with graph.inserting_before(quantize):
            call = graph.call_module(place_name, (x,))
        for dequantize in list(quantize.users):
            dequantize.replace_all_uses_with(call)
            graph.erase_node(dequantize)
        graph.erase_node(quantize)


def _round_biases(program: fx.GraphModule) -> None:
    """Biases of products on the grid of the accumulator, as the file has them, equation (18)."""
    for node in program.graph.nodes:
        operands = [a for a in node.args if isinstance(a, fx.Node)]
        if OPERATORS.get(_aten(node)) is not Role.PRODUCT or len(operands) < 3:
            continue
        of_input, of_weight = (_marker(program, n) for n in operands[:2])
        bias = _constant(program, operands[2])
        if of_input is None or of_weight is None or bias is None or len(operands[2].users) != 1:
            continue
        rounded = round_bias(bias.detach(), of_input.get_buffer("scale"), of_weight.get_buffer("scale"))
        owner, name = holder_of(program, str(operands[2].target))
        delattr(owner, name)
        owner.register_buffer(name, rounded)


def _marker(program: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    """The frozen quantizer that the value passed; what only moves values is looked through."""
    while _role_by_table(node) is Role.MOVER:
        node = node.all_input_nodes[0]
    module = program.get_submodule(str(node.target)) if node.op == "call_module" else None
    return module if isinstance(module, FrozenQuantizer) else None


def _constant(program: fx.GraphModule, node: Any) -> torch.Tensor | None:
    if not (isinstance(node, fx.Node) and node.op == "get_attr"):
        return None
    found = get(program, str(node.target))
    return found if isinstance(found, torch.Tensor) else None


def is_pt2e(model: nn.Module) -> bool:
    """Whether ``model`` is a captured program that ``WiaQuantizer`` prepared."""
    return isinstance(model, fx.GraphModule) and any(isinstance(m, Pt2eFakeQuantize) for m in model.modules())


def _spec(make: Callable[[], FakeQuantize]) -> Any:
    """What torchao wants to know of a quantizer; the module itself knows the rest."""
    return _quantizer.QuantizationSpec(dtype=torch.int8, observer_or_fake_quant_ctr=_Maker(make))


def _annotation(node: fx.Node) -> Any:
    key = "quantization_annotation"
    if key not in node.meta:
        node.meta[key] = _quantizer.QuantizationAnnotation(_annotated=True)
    return node.meta[key]


def _aten(node: fx.Node) -> str:
    return _operator(node, "aten")


def _decomposed(node: fx.Node) -> str:
    return _operator(node, "quantized_decomposed")


def _operator(node: fx.Node, namespace: str) -> str:
    """The name of an operator of ``namespace``; empty for another."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, torch._ops.OpOverload) or target.namespace != namespace:
        return ""
    return str(target._schema.name).rpartition("::")[2]


def _inputs(node: fx.Node) -> list[fx.Node]:
    """The inputs that hold reals; of a product only what is multiplied."""
    if _aten(node) == "embedding" or _aten(node) in _NORMALIZATIONS:
        return []
    if OPERATORS.get(_aten(node)) is Role.PRODUCT:
        return [node.all_input_nodes[0]]
    return [n for n in node.all_input_nodes if _is_real(n)]


def _role_by_table(node: fx.Node) -> Role:
    if node.target is operator.getitem:  # one of the parts of a split
        role = _role_by_table(node.all_input_nodes[0])
        return role if role is Role.MOVER else Role.FLOAT
    if _aten(node) in EXTREMES and len(node.all_input_nodes) > 1:
        return Role.FLOAT  # of two tensors
    fill = {"pad": 3, "constant_pad_nd": 2}.get(_aten(node))  # its place among the arguments
    if fill is not None and len(node.args) > fill and node.args[fill]:
        return Role.FLOAT  # what it fills with may be no level
    return OPERATORS.get(_aten(node), Role.FLOAT)


def _is_small(table: fx.Node) -> bool:
    """Whether a table of rows is not worth quantizing."""
    return bool(table.meta["val"].numel() < SMALL_EMBEDDING)


def _is_real(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if isinstance(value, tuple | list):
        value = value[0] if value else None
    return isinstance(value, torch.Tensor) and value.is_floating_point()
