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
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from torch import fx, nn
from torch.ao.quantization import QConfig, QConfigMapping
from torch.nn import functional

from wia_quant.errors import UsageError
from wia_quant.policy import SMALL_EMBEDDING
from wia_quant.torch.choice import Choice, by_attributes, by_mapping
from wia_quant.torch.constants import is_constant, value_of
from wia_quant.torch.evaluation import PreparedGraph, annotate, evaluating
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.functional_products import modularize
from wia_quant.torch.half import HalfQuantize
from wia_quant.torch.observers import CurrentMinMaxObserver
from wia_quant.torch.paths import get, put
from wia_quant.torch.placement import is_matrix_product, place
from wia_quant.torch.product import (
    CHANNEL_AXIS,
    POINTWISE,
    BatchNorm,
    QuantizedProduct,
    is_product,
    pointwise_of_ones,
    type_of,
)
from wia_quant.torch.qconfig import get_default_qat_qconfig, get_default_qconfig, get_qconfig
from wia_quant.torch.roles import EXTREMES, FUNCTIONS, HALVES, MODULES, OPERATORS, Role
from wia_quant.torch.trace import ByMode, PrepareError, is_mover_in_evaluation, require_default, trace
from wia_quant.torch.usable import copied, require_model, require_own_weights

#: The submodule that holds the activations' fake quantizers.
QUANTIZERS: Final = "wia_activation_quantizers"


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
    model: nn.Module,
    *,
    qconfig: QConfig | None = None,
    exclude: Iterable[str] = (),
    inplace: bool = False,
    example: Any = None,
) -> nn.Module:
    """The model ready for quantization-aware training.

    Args:
        model: in training mode. A submodule whose ``qconfig`` attribute is None stays float, as in torch.
        qconfig: for all; default the model's ``qconfig`` attribute, else ``get_default_qat_qconfig("wia")``.
        exclude: names of submodules that stay float, with all they hold.
        inplace: change ``model`` itself.
        example: inputs as ``export`` takes them; needed only where arguments of ``forward`` with a default (a mask, a
            flag) do not have it.

    Raises:
        PrepareError: the model cannot be traced, or is prepared already.
        UsageError: a name of ``exclude`` is no submodule.
    """
    require_model(model)
    chosen = _ours(qconfig or getattr(model, "qconfig", None) or get_default_qat_qconfig())
    return _prepare(model if inplace else copied(model), by_attributes(model, chosen, exclude), example)


def prepare(
    model: nn.Module,
    *,
    qconfig: QConfig | None = None,
    exclude: Iterable[str] = (),
    inplace: bool = False,
    example: Any = None,
) -> nn.Module:
    """The model ready for post-training calibration: run it on samples, then ``convert`` it.

    Activations pass unchanged while they are observed. Arguments and errors as ``prepare_qat``.
    """
    require_model(model)
    chosen = _ours(qconfig or getattr(model, "qconfig", None) or get_default_qconfig())
    choice = by_attributes(model, chosen, exclude)
    return _calibrating(_prepare((model if inplace else copied(model)).eval(), choice, example))


def prepare_qat_fx(
    model: nn.Module, qconfig_mapping: QConfigMapping, example_inputs: object = None, *args: object, **kwargs: object
) -> fx.GraphModule:
    """As torch.ao's function of this name, for a mapping of wia qconfigs: a GraphModule ready for training.

    Args:
        model: not changed.
        qconfig_mapping: global, by type, by name, by regular expression; None as a qconfig keeps float.
        example_inputs: a tuple of arguments, or None; nothing is run.
        args: as ``example_inputs``: torch's custom configs, which must be empty.
        kwargs: likewise.

    Raises:
        PrepareError: the model cannot be traced, or is prepared already.
        UsageError: a mapping or an argument that is not understood.
    """
    for value in (*args, *kwargs.values()):
        if value is not None:
            raise UsageError("custom and backend configs of torch.ao are not understood; use the mapping alone")
    require_model(model)
    own = _prepare(copied(model), by_mapping(model, qconfig_mapping), example_inputs)
    found = PreparedGraph(own, own.wia_graph, type(model).__name__)  # type: ignore[arg-type]
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


def _ours(qconfig: Any) -> QConfig:
    """``qconfig``, which must be one of this package."""
    if isinstance(qconfig, QConfig) and isinstance(qconfig.weight(), FakeQuantize):
        return qconfig
    raise UsageError(
        f"{qconfig!r:.60} is no qconfig of wia_quant; take get_default_qat_qconfig('wia') or get_qconfig(...)"
    )


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
            rests = module.observer.has_history  # weights go on having the range that they have now
            module.qparams() if rests else None
            module.quantizing = True
            module.always_observe = False
            module.observing = not rests
    return found.eval()


def _prepare(model: nn.Module, choice: Choice, example: Any = None) -> nn.Module:
    """Changes ``model`` itself."""
    if any(isinstance(module, FakeQuantize) for module in model.modules()):
        raise PrepareError("the model is prepared already")
    require_own_weights(model)
    graph = trace(model, choice, example)
    made = Preparation()
    modularize(model, graph)
    _fuse_products(model, graph, choice)
    _insert_quantizers(model, graph, choice, made)
    for path, module in model.named_modules():
        if isinstance(module, FakeQuantize):
            module.path = path
    graph.lint()
    traced = fx.GraphModule(model, graph)
    # The graph's forward on the user's own object: its class, attributes and references stay.
    model.forward = types.MethodType(evaluating(type(traced).forward, _graph_of), model)
    model.wia_graph = graph  # type: ignore[assignment]
    model.wia_preparation = made  # type: ignore[assignment]
    return model


def _graph_of(model: Any) -> fx.Graph:
    graph: fx.Graph = model.wia_graph
    return graph


def _fuse_products(model: nn.Module, graph: fx.Graph, choice: Choice) -> None:
    modules = dict(model.named_modules())
    halves = isinstance(choice.default.activation(), HalfQuantize)
    calls = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for node in list(graph.nodes):
        product = model.get_submodule(str(node.target)) if node.op == "call_module" else None
        qconfig = choice.of_module(str(node.target))
        if product is None or isinstance(product, QuantizedProduct) or not is_product(product) or qconfig is None:
            continue
        if _has_hooks(product) or _takes_more(graph, node.target) or (_is_small_table(product) and not halves):
            continue
        bn_node = next(iter(node.users)) if len(node.users) == 1 and calls[node.target] == 1 else None
        bn = modules.get(str(bn_node.target)) if bn_node is not None and calls[bn_node.target] == 1 else None
        # One behind a Linear may be excluded, as it may be along another axis: product.py refuses that.
        apart = bn_node is not None and isinstance(product, nn.Linear) and choice.of_node(bn_node) is None
        if not _is_foldable(bn) or isinstance(product, nn.Embedding) or apart:
            bn = bn_node = None
        _set_product(model, str(node.target), product, bn, qconfig)
        if bn_node is not None:
            model.get_submodule(str(node.target)).bn_path = str(bn_node.target)  # type: ignore[assignment]
            put(model, str(bn_node.target), nn.Identity())
            bn_node.replace_all_uses_with(node)
            graph.erase_node(bn_node)
    behind_float = {
        node.target
        for node in graph.nodes
        if node.op == "call_module" and node.args and _is_float_product(model, node.args[0])
    }
    for path, n in calls.items():
        norm, qconfig = modules[path], choice.of_module(path)
        left = _is_foldable(norm) and model.get_submodule(path) is norm and path not in behind_float
        if left and type(norm) in POINTWISE and n == 1 and qconfig is not None:
            _set_product(model, path, pointwise_of_ones(norm), norm, qconfig)


def _is_foldable(module: nn.Module | None) -> bool:
    return isinstance(module, BatchNorm) and module.track_running_stats and not _has_hooks(module)


def _is_float_product(model: nn.Module, node: Any) -> bool:
    """Whether it is a product that stays float; a BatchNorm behind it is folded into it in the file."""
    if not (isinstance(node, fx.Node) and node.op == "call_module"):
        return False
    module = model.get_submodule(str(node.target))
    return is_product(module) and not isinstance(module, QuantizedProduct)


def _has_hooks(module: nn.Module) -> bool:
    """True where calling the module does more than its own forward."""
    return bool(module._forward_pre_hooks or module._forward_hooks)


def _takes_more(graph: fx.Graph, path: Any) -> bool:
    """Whether a call gives the product more than its input, as the ``output_size`` of a transposed convolution."""
    calls = [node for node in graph.nodes if node.op == "call_module" and node.target == path]
    return any(node.kwargs or len(node.args) != 1 for node in calls)


def _is_small_table(product: nn.Module) -> bool:
    return isinstance(product, nn.Embedding) and product.weight.numel() < SMALL_EMBEDDING


def _set_product(model: nn.Module, path: str, product: nn.Module, bn: nn.Module | None, qconfig: QConfig) -> None:
    if getattr(product, "padding_mode", "") == "circular":
        raise PrepareError(
            f"'{path}' has padding_mode='circular', which the file cannot hold; take 'zeros', 'reflect' or 'replicate'"
        )
    weight = qconfig.weight()
    if weight.axis is not None:
        weight.axis = CHANNEL_AXIS[type_of(product)]
    put(model, path, QuantizedProduct(product, bn, weight))


def _insert_quantizers(model: nn.Module, graph: fx.Graph, choice: Choice, made: Preparation) -> None:
    halves = isinstance(choice.default.activation(), HalfQuantize)
    roles = _roles(model, graph, choice, made, halves)
    placement = place(graph, roles, lambda node: _tensor_inputs(model, node), halves=halves)
    for node, role in placement.roles.items():
        if role not in (Role.FLOAT, Role.MOVER):
            made.quantized[node.name] = role.name.lower()
        elif role is not roles[node]:
            made.left_float[node.name] = "no integers reach it"
    holder = nn.ModuleDict()
    model.add_module(QUANTIZERS, holder)
    for node in placement.wanted:
        qconfig = choice.of_node(node) or choice.default
        if not isinstance(qconfig.activation(), FakeQuantize):
            continue  # weights only
        key = placement.groups.find(node).name
        if key not in holder:
            constant = all(is_constant(n) for n in placement.members(node))
            holder[key] = _constant_quantizer(model, node, qconfig) if constant else qconfig.activation()
        readers = placement.readers(node)
        with graph.inserting_after(node):
            quantized = graph.call_module(f"{QUANTIZERS}.{key}", (node,))
        for reader in readers:
            reader.replace_input_with(node, quantized)
    for node, role in roles.items():
        if role is Role.PRODUCT:
            _tell_input_quantizer(model, node, roles)
    annotate(model, graph, placement.roles)


def _tell_input_quantizer(model: nn.Module, node: fx.Node, roles: Mapping[fx.Node, Role]) -> None:
    """A product learns which fake quantizer its input passed, unless it is called with several."""
    product = model.get_submodule(str(node.target))
    assert isinstance(product, QuantizedProduct)
    found = _quantizer_before(model, node, roles)
    calls = [n for n in node.graph.nodes if n.op == "call_module" and n.target == node.target]
    if found is not None and all(_quantizer_before(model, n, roles) is found for n in calls):
        product.input_quantizer = (found,)


def _quantizer_before(model: nn.Module, node: fx.Node, roles: Mapping[fx.Node, Role]) -> FakeQuantize | None:
    """Of the first input; what only moves values is looked through."""
    before = node.all_input_nodes[0]
    while roles.get(before) is Role.MOVER:
        before = before.all_input_nodes[0]
    module = model.get_submodule(str(before.target)) if before.op == "call_module" else None
    return module if isinstance(module, FakeQuantize) else None


def _constant_quantizer(model: nn.Module, node: fx.Node, qconfig: QConfig) -> FakeQuantize:
    """Of a parameter in the graph: a weight where it is multiplied as a matrix, else a range as it is now."""
    weight: FakeQuantize = qconfig.weight()
    if isinstance(weight, HalfQuantize):
        return weight
    reader = next(iter(node.users))
    matrix = is_matrix_product(reader) and len(reader.args) > 1 and reader.args[1] is node
    if matrix and value_of(model, node).dim() == 2:
        if weight.axis is not None:
            weight.axis = 1
        return weight
    return FakeQuantize(CurrentMinMaxObserver, qconfig.activation().qtype)


def _roles(model: nn.Module, graph: fx.Graph, choice: Choice, made: Preparation, halves: bool) -> dict[fx.Node, Role]:
    """Of every node; why a call stays float is noted."""
    roles: dict[fx.Node, Role] = {}
    for node in graph.nodes:
        roles[node] = Role.FLOAT
        if not node.op.startswith("call") or node.target is require_default or _is_number(model, node):
            continue
        if _is_part(node) and (roles[node.all_input_nodes[0]] is Role.FLOAT or _is_index(node)):
            continue  # one of several results or inputs: a source
        role = _role_by_table(model, node)
        if is_constant(node) and role is not Role.MOVER and not halves:
            continue  # one constant of the file
        if role is None and halves and node.target in HALVES:
            role = Role.ARITHMETIC
        if choice.of_node(node) is None:
            made.left_float[node.name] = "excluded"
        elif node.target is functional.pad and _fill(node):
            made.left_float[node.name] = f"pads with {_fill(node)}, which may be no level"
        elif role is None:
            made.left_float[node.name] = _why_float(model, node)
        else:
            roles[node] = role
    return roles


def _role_by_table(model: nn.Module, node: fx.Node) -> Role | None:
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        if isinstance(module, QuantizedProduct):
            return MODULES[type_of(module.product)]
        if is_product(module) or _has_hooks(module):
            return None  # _why_float knows
        if isinstance(module, nn.Upsample):
            return Role.MOVER if module.mode == "nearest" else Role.ARITHMETIC
        return Role.MOVER if is_mover_in_evaluation(module) else MODULES.get(type(module))
    if node.target is functional.interpolate:
        mode = node.kwargs.get("mode", node.args[3] if len(node.args) > 3 else "nearest")
        return Role.MOVER if mode == "nearest" else Role.ARITHMETIC
    if node.target in EXTREMES and len(node.all_input_nodes) > 1:
        return None  # of two tensors
    if node.target is getattr:
        return Role.MOVER if node.args[1] in _VIEWS else None
    if node.op == "call_method":
        return OPERATORS.get(str(node.target))
    return FUNCTIONS.get(node.target)  # type: ignore[arg-type]


def _why_float(model: nn.Module, node: fx.Node) -> str:
    if node.op != "call_module":
        return f"{getattr(node.target, '__name__', node.target)} has no integer form"
    module = model.get_submodule(str(node.target))
    if _is_small_table(module):
        return f"a table of fewer than {SMALL_EMBEDDING} values is not worth quantizing"
    if _has_hooks(module):
        return f"{type(module).__name__} has forward hooks, which may change its values; remove them before preparing"
    if is_product(module):
        return f"{type(module).__name__} is called with more than its input"
    return f"{type(module).__name__} has no integer form"


def _is_part(node: fx.Node) -> bool:
    """True for pair[0], features["pixels"] and x.max(1).values, False for x[:, 0]."""
    if node.target is getattr:
        return node.args[1] in ("values", "indices")
    return node.target is operator.getitem and isinstance(node.args[1], int | str)


def _is_index(node: fx.Node) -> bool:
    """True for x.max(1).indices and x.max(1)[1]."""
    return node.args[1] in (1, "indices") and node.all_input_nodes[0].target in EXTREMES


#: Attributes that are values of their owner.
_VIEWS: Final = ("values",)


def _fill(node: fx.Node) -> Any:  # Any: a number of the traced code
    """What a pad fills with."""
    return node.kwargs.get("value", node.args[3] if len(node.args) > 3 else 0)


def _tensor_inputs(model: nn.Module, node: fx.Node) -> list[fx.Node]:
    """The inputs that hold reals: not the indices of an embedding, not the sizes of a view."""
    if node.op == "call_module":
        module = model.get_submodule(str(node.target))
        indices = isinstance(module, QuantizedProduct) and isinstance(module.product, nn.Embedding)
        return [] if indices else [a for a in node.args if isinstance(a, fx.Node)][:1]
    return [n for n in node.all_input_nodes if not _is_number(model, n) and not _is_integer_buffer(model, n)]


def _is_integer_buffer(model: nn.Module, node: fx.Node) -> bool:
    """True for stored indices and masks."""
    return node.op == "get_attr" and not get(model, str(node.target)).is_floating_point()


def _is_number(model: nn.Module, node: fx.Node) -> bool:
    """True for sizes, for what is computed of sizes alone, and for arguments that depend on the mode."""
    if node.op == "call_module":
        return isinstance(model.get_submodule(str(node.target)), ByMode)
    if node.op == "call_method":
        return node.target in ("size", "dim", "numel")
    if node.op != "call_function":
        return False
    if node.target is getattr and node.args[1] in ("shape", "ndim", "dtype", "device"):
        return True
    inputs = node.all_input_nodes
    return bool(inputs) and all(_is_number(model, n) for n in inputs)
