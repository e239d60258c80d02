# SPDX-License-Identifier: Apache-2.0
"""Makes a float torch model train, or be calibrated, as the integers it will become.

The model is traced once (torch.fx). Every Conv, transposed Conv, Linear and Embedding, with the BatchNorm that follows
it, becomes a QuantizedProduct at the same path; a FakeQuantize is put on every tensor that the exported model
quantizes. Nothing has to be fused by hand, and functional code (``x + y``, ``F.relu``, ``torch.cat``) is quantized too.
"""

from __future__ import annotations

import copy
import operator
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import fx, nn
from torch.ao.quantization import QConfig, QConfigMapping
from torch.nn import functional

from wia_quant.errors import UsageError, WiaError
from wia_quant.torch.choice import Choice, by_attributes, by_mapping
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.functional_products import modularize
from wia_quant.torch.observers import CurrentMinMaxObserver
from wia_quant.torch.placement import place
from wia_quant.torch.product import CHANNEL_AXIS, BatchNorm, QuantizedProduct
from wia_quant.torch.qconfig import get_default_qat_qconfig, get_default_qconfig, get_qconfig
from wia_quant.torch.roles import FUNCTIONS, METHODS, MODULES, Role

#: The submodule that holds the activations' fake quantizers.
QUANTIZERS: Final = "wia_activation_quantizers"


class PrepareError(WiaError):
    """A torch model that cannot be prepared: it cannot be traced, or is prepared already."""


@dataclass
class Preparation:
    """What ``prepare_qat`` did; kept on the model as ``wia_preparation``.

    Attributes:
        quantized: node -> role, in the order of execution.
        left_float: node -> why.
    """

    quantized: dict[str, str] = field(default_factory=dict)
    left_float: dict[str, str] = field(default_factory=dict)


def prepare_qat(
    model: nn.Module, *, qconfig: QConfig | None = None, exclude: Iterable[str] = (), inplace: bool = False
) -> nn.Module:
    """The model ready for quantization-aware training.

    Args:
        model: in training mode. A submodule whose ``qconfig`` attribute is None stays float, as in torch.
        qconfig: for all; default the model's ``qconfig`` attribute, else ``get_default_qat_qconfig("wia")``.
        exclude: names of submodules that stay float, with all they hold.
        inplace: change ``model`` itself.

    Raises:
        PrepareError: the model cannot be traced, or is prepared already.
        UsageError: a name of ``exclude`` is no submodule.
    """
    chosen = qconfig or getattr(model, "qconfig", None) or get_default_qat_qconfig()
    return _prepare(model if inplace else copy.deepcopy(model), by_attributes(model, chosen, exclude))


def prepare(
    model: nn.Module, *, qconfig: QConfig | None = None, exclude: Iterable[str] = (), inplace: bool = False
) -> nn.Module:
    """The model ready for post-training calibration: run it on samples, then ``convert`` it.

    Activations pass unchanged while they are observed. Arguments and errors as ``prepare_qat``.
    """
    chosen = qconfig or getattr(model, "qconfig", None) or get_default_qconfig()
    choice = by_attributes(model, chosen, exclude)
    return _calibrating(_prepare((model if inplace else copy.deepcopy(model)).eval(), choice))


def prepare_qat_fx(
    model: nn.Module, qconfig_mapping: QConfigMapping, example_inputs: object = None, *args: object, **kwargs: object
) -> fx.GraphModule:
    """As torch.ao's function of this name, for a mapping of wia qconfigs: a GraphModule ready for training.

    Args:
        model: not changed.
        qconfig_mapping: global, by type, by name, by regular expression; None as a qconfig keeps float.
        example_inputs: accepted for torch's signature; nothing has to be run.
        args: as ``example_inputs``: torch's custom configs, which must be empty.
        kwargs: likewise.

    Raises:
        PrepareError: the model cannot be traced, or is prepared already.
        UsageError: a mapping or an argument that is not understood.
    """
    for value in (*args, *kwargs.values()):
        if value is not None:
            raise UsageError("custom and backend configs of torch.ao are not understood; use the mapping alone")
    own = _prepare(copy.deepcopy(model), by_mapping(model, qconfig_mapping))
    found = fx.GraphModule(own, own.wia_graph, type(model).__name__)  # type: ignore[arg-type]
    found.wia_preparation = own.wia_preparation
    found.train(model.training)
    return found


def prepare_fx(
    model: nn.Module, qconfig_mapping: QConfigMapping, example_inputs: object = None, *args: object, **kwargs: object
) -> fx.GraphModule:
    """As ``prepare_qat_fx``, for post-training calibration: run it on samples, then ``convert`` it."""
    found = prepare_qat_fx(model, qconfig_mapping, example_inputs, *args, **kwargs).eval()
    _calibrating(found)
    return found


def quantize_weights(model: nn.Module, *, scheme: str = "w8", exclude: Iterable[str] = ()) -> nn.Module:
    """A copy with integer weights and float activations, ready for ``export``; needs no data, as quantize_dynamic."""
    prepared = prepare(model, qconfig=get_qconfig(scheme), exclude=exclude)
    for module in prepared.modules():
        if isinstance(module, QuantizedProduct):
            module.weight_fake_quantize(module.folded()[0].detach())
    return convert(prepared, inplace=True)


def _calibrating(prepared: nn.Module) -> nn.Module:
    for module in prepared.modules():
        if isinstance(module, FakeQuantize) and module.axis is None:
            module.quantizing = False
            module.always_observe = True
    return prepared


def convert(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """A prepared model with its ranges fixed: it computes what the exported file computes."""
    found = model if inplace else copy.deepcopy(model)
    for module in found.modules():
        if isinstance(module, FakeQuantize):
            module.qparams() if module.axis is None else None
            module.quantizing = True
            module.always_observe = False
            module.observing = module.axis is not None
    return found.eval()


def _prepare(model: nn.Module, choice: Choice) -> nn.Module:
    """Changes ``model`` itself."""
    if any(isinstance(module, FakeQuantize) for module in model.modules()):
        raise PrepareError("the model is prepared already")
    graph = _trace(model, choice)
    made = Preparation()
    modularize(model, graph)
    _fuse_products(model, graph, choice)
    _insert_quantizers(model, graph, choice, made)
    graph.lint()
    traced = fx.GraphModule(model, graph)
    # The graph's forward on the user's own object: its class, attributes and references stay.
    model.forward = types.MethodType(type(traced).forward, model)
    model.wia_graph = graph  # type: ignore[assignment]
    model.wia_preparation = made  # type: ignore[assignment]
    return model


class _Tracer(fx.Tracer):
    """torch.nn modules are leaves, and so are ours and any submodule that stays float; knows where tracing failed."""

    def __init__(self, choice: Choice) -> None:
        super().__init__()
        self._choice = choice
        self.failed = ""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        stays_float = self._choice.of_module(module_qualified_name) is None
        return stays_float or isinstance(m, QuantizedProduct) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or self.path_of_module(m)  # the innermost is the first to know
            raise


def _trace(model: nn.Module, choice: Choice) -> fx.Graph:
    tracer = _Tracer(choice)
    try:
        return tracer.trace(model)
    except Exception as error:  # whatever the user's forward raises under tracing
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        if tracer.failed:
            kind = type(model.get_submodule(tracer.failed)).__name__
            raise PrepareError(
                f"submodule '{tracer.failed}' ({kind}) cannot be traced: {reason}; keep it float with"
                f" exclude=['{tracer.failed}'], or write its forward without branches on tensors"
            ) from error
        raise PrepareError(
            f"{type(model).__name__} cannot be traced: {reason}; branches on tensor values and *args defeat torch.fx:"
            " prepare the submodules that can be traced one by one, and leave the rest float"
        ) from error


def _fuse_products(model: nn.Module, graph: fx.Graph, choice: Choice) -> None:
    modules = dict(model.named_modules())
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "call_module":
            calls[node.target] = calls.get(node.target, 0) + 1
    done: set[str] = set()
    for node in list(graph.nodes):
        product = modules.get(str(node.target)) if node.op == "call_module" else None
        if product is None or type(product) not in CHANNEL_AXIS or node.target in done:
            continue
        qconfig = choice.of_module(str(node.target))
        if qconfig is None:
            continue
        after = next(iter(node.users)) if len(node.users) == 1 else None
        bn = modules.get(str(after.target)) if after is not None and after.op == "call_module" else None
        fold = (
            isinstance(bn, BatchNorm)
            and bn.track_running_stats
            and not isinstance(product, nn.Embedding)
            and calls[node.target] == 1
            and calls[str(after.target)] == 1  # type: ignore[union-attr]
        )
        weight = qconfig.weight()
        if weight.axis is not None:
            weight.axis = CHANNEL_AXIS[type(product)]
        replacement = QuantizedProduct(product, bn if fold else None, weight)
        _set_module(model, str(node.target), replacement)
        done.add(str(node.target))
        if fold and after is not None:
            _set_module(model, str(after.target), nn.Identity())
            after.replace_all_uses_with(node)
            graph.erase_node(after)


def _set_module(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def _insert_quantizers(model: nn.Module, graph: fx.Graph, choice: Choice, made: Preparation) -> None:
    roles = {node: _role(model, node, choice, made) for node in graph.nodes}
    made.quantized.update(
        {n.name: role.name.lower() for n, role in roles.items() if role not in (Role.FLOAT, Role.MOVER)}
    )
    placement = place(graph, roles, lambda node: _tensor_inputs(model, node))
    holder = nn.ModuleDict()
    model.add_module(QUANTIZERS, holder)
    for node in placement.wanted:
        qconfig = choice.of_node(node) or choice.default
        if not isinstance(qconfig.activation(), FakeQuantize):
            continue  # weights only
        key = placement.groups.find(node).name
        if key not in holder:
            holder[key] = _constant_quantizer(model, node, qconfig) if node.op == "get_attr" else qconfig.activation()
        readers = placement.readers(node)
        with graph.inserting_after(node):
            quantized = graph.call_module(f"{QUANTIZERS}.{key}", (node,))
        for reader in readers:
            reader.replace_input_with(node, quantized)
    for node, role in roles.items():
        if role is Role.PRODUCT:
            _tell_input_quantizer(model, node)


def _tell_input_quantizer(model: nn.Module, node: fx.Node) -> None:
    """A product learns which fake quantizer its input passed, unless it is called with several."""
    product = model.get_submodule(str(node.target))
    if not isinstance(product, QuantizedProduct) or isinstance(product.product, nn.Embedding):
        return
    found = _quantizer_before(model, node)
    calls = [n for n in node.graph.nodes if n.op == "call_module" and n.target == node.target]
    if found is not None and all(_quantizer_before(model, n) is found for n in calls):
        product.input_quantizer = (found,)


def _quantizer_before(model: nn.Module, node: fx.Node) -> FakeQuantize | None:
    """Of the first input; what only moves values is looked through."""
    before = node.all_input_nodes[0]
    while (module := _module_of(model, before)) is None or MODULES.get(type(module)) is Role.MOVER:
        table: Mapping[Any, Role] = METHODS if before.op == "call_method" else FUNCTIONS
        if module is None and (not before.op.startswith("call") or table.get(before.target) is not Role.MOVER):
            return None
        before = before.all_input_nodes[0]
    return module if isinstance(module, FakeQuantize) else None


def _constant_quantizer(model: nn.Module, node: fx.Node, qconfig: QConfig) -> FakeQuantize:
    """Of a parameter in the graph: a weight where it is multiplied as a matrix, else a range as it is now."""
    reader = next(iter(node.users))
    matrix = reader.target in _MATMULS and len(reader.args) > 1 and reader.args[1] is node
    if matrix and _attribute(model, node).dim() == 2:
        weight: FakeQuantize = qconfig.weight()
        if weight.axis is not None:
            weight.axis = 1
        return weight
    return FakeQuantize(CurrentMinMaxObserver, qconfig.activation().qtype)


#: Functions and methods whose second operand is a matrix of weights when it is a parameter.
_MATMULS: Final = frozenset({operator.matmul, torch.matmul, "matmul"})


def _attribute(model: nn.Module, node: fx.Node) -> torch.Tensor:
    owner, _, name = str(node.target).rpartition(".")
    found: torch.Tensor = getattr(model.get_submodule(owner), name)
    return found


def _module_of(model: nn.Module, node: fx.Node) -> nn.Module | None:
    return model.get_submodule(str(node.target)) if node.op == "call_module" else None


def _role(model: nn.Module, node: fx.Node, choice: Choice, made: Preparation) -> Role:
    role: Role | None
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        role = Role.PRODUCT if isinstance(module, QuantizedProduct) else MODULES.get(type(module))
        if choice.of_node(node) is None:
            made.left_float[node.name] = "excluded"
            return Role.FLOAT
        if role is None:
            made.left_float[node.name] = f"{type(module).__name__} has no integer form"
        return role or Role.FLOAT
    if _is_number(node):
        return Role.FLOAT
    if node.op == "call_function":
        role = FUNCTIONS.get(node.target)  # type: ignore[arg-type]
    elif node.op == "call_method":
        role = METHODS.get(str(node.target))
    else:
        return Role.FLOAT
    if choice.of_node(node) is None:
        made.left_float[node.name] = "excluded"
        return Role.FLOAT
    if node.target is functional.pad and _fill(node):
        made.left_float[node.name] = f"pads with {_fill(node)}, which may be no level"
        return Role.FLOAT
    if role is None:
        made.left_float[node.name] = f"{getattr(node.target, '__name__', node.target)} has no integer form"
    return role or Role.FLOAT


def _fill(node: fx.Node) -> Any:  # Any: a number of the traced code
    """What a pad fills with."""
    return node.kwargs.get("value", node.args[3] if len(node.args) > 3 else 0)


def _tensor_inputs(model: nn.Module, node: fx.Node) -> list[fx.Node]:
    """The inputs that hold reals: not the indices of an embedding, not the sizes of a view."""
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        indices = isinstance(module, QuantizedProduct) and isinstance(module.product, nn.Embedding)
        return [] if indices else [a for a in node.args if isinstance(a, fx.Node)][:1]
    return [n for n in node.all_input_nodes if not _is_number(n) and not _is_integer_buffer(model, n)]


def _is_integer_buffer(model: nn.Module, node: fx.Node) -> bool:
    """True for stored indices and masks."""
    return node.op == "get_attr" and not _attribute(model, node).is_floating_point()


def _is_number(node: fx.Node) -> bool:
    """True for sizes and what is computed of sizes alone."""
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    if node.op != "call_function":
        return False
    if node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device"):
        return True
    inputs = node.all_input_nodes
    return bool(inputs) and all(_is_number(n) for n in inputs)
