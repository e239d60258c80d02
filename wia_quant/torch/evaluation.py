# SPDX-License-Identifier: Apache-2.0
"""What a prepared model computes in evaluation mode: the levels that its file computes in libwia.

The traced graph is run node by node. A value that passed a fake quantizer of 8 bits is kept as its levels; products,
sums and averages of such are rounded once, to the grid that follows, as ``levels.py`` has it. All else runs as it is
written, on reals.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import fx, nn
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.nn import functional
from torch.nn.modules import module as torch_module
from torch.utils import _pytree as pytree

from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.levels import (
    Columns,
    Grid,
    Levels,
    Pending,
    Value,
    added,
    averaged,
    has_levels,
    matrix_product,
    multiplied,
    product,
    quantized,
    real,
    window_sums,
)
from wia_quant.torch.paths import get
from wia_quant.torch.product import QuantizedProduct
from wia_quant.torch.roles import MATRIX_PRODUCTS, Role
from wia_quant.torch.rows import row_operator

#: Of a node's ``meta``: its role, and the name of the node whose levels alone it is a function of.
ROLE: Final = "wia_role"
SOURCE: Final = "wia_source"

_SIGNS: Final[Mapping[Any, int]] = MappingProxyType(
    {
        **dict.fromkeys((operator.add, operator.iadd, torch.add, "add", "add_"), 1),
        **dict.fromkeys((operator.sub, operator.isub, torch.sub, "sub", "sub_"), -1),
    }
)
_FACTORS: Final = frozenset({operator.mul, operator.imul, torch.mul, "mul", "mul_"})
#: Further elementwise operators, which stay float or are a table.
_ELEMENTWISE: Final = frozenset(
    {
        operator.truediv,
        torch.div,
        "div",
        operator.neg,
        torch.neg,
        "neg",
        torch.abs,
        "abs",
        operator.pow,
        "pow",
        torch.exp,
    }
    | {"exp", "sqrt", torch.sqrt, "clamp", torch.clamp}
)

_RELU: Final = (0.0, float("inf"))
#: A clip -> its bounds; those of a Hardtanh are its arguments.
_CLIPS: Final[Mapping[Any, tuple[float, float]]] = MappingProxyType(
    {
        **dict.fromkeys((nn.ReLU, functional.relu, torch.relu, "relu", "relu_"), _RELU),
        **dict.fromkeys((nn.ReLU6, functional.relu6, "relu6", "relu6_"), (0.0, 6.0)),
    }
)
#: What asks for no values.
_SIZES: Final = frozenset({"size", "dim", "numel", getattr})
_POOLS: Final = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")


def annotate(model: nn.Module, graph: fx.Graph, roles: Mapping[fx.Node, Role]) -> None:
    """Writes on every node what evaluation needs to know of it."""
    for node in graph.nodes:
        if node in roles:
            node.meta[ROLE] = roles[node]
        node.meta[SOURCE] = _source(model, node)


def _source(model: nn.Module, node: fx.Node) -> str:
    """The node whose levels alone ``node`` is a function of, element by element; "" where there is none.

    libwia makes a table of such a function, (11), whatever it is written with: reals inside, rounded as they stand.
    """
    inputs = node.all_input_nodes
    sources = {n.meta.get(SOURCE, "") for n in inputs if not _is_one_number(model, n)}
    before = sources.pop() if len(sources) == 1 else ""
    if node.op == "call_module" and isinstance(module := model.get_submodule(str(node.target)), FakeQuantize):
        return before or (node.name if module.axis is None else "")
    role, target = node.meta.get(ROLE), None if node.op == "call_module" else node.target
    elementwise = role in (Role.CLIP, Role.TABLE) or target in _ELEMENTWISE
    if elementwise or target in _SIGNS or target in _FACTORS:
        return before
    if role is Role.MOVER:
        # What drops out moves nothing in evaluation.
        still = node.op == "call_module" and isinstance(module, nn.Identity | nn.modules.dropout._DropoutNd)
        return before if still or target is functional.dropout else node.name
    return ""


def _is_one_number(model: nn.Module, node: fx.Node) -> bool:
    """A parameter of one element, on a grid or not."""
    if node.op == "call_module" and len(node.all_input_nodes) == 1:
        module = model.get_submodule(str(node.target))
        return isinstance(module, FakeQuantize) and _is_one_number(model, node.all_input_nodes[0])
    return node.op == "get_attr" and get(model, str(node.target)).numel() == 1


def evaluating(forward: Callable[..., Any], graph_of: Callable[[nn.Module], fx.Graph]) -> Callable[..., Any]:
    """``forward``, and in evaluation mode what the file computes.

    Where a gradient is asked for it is that of ``forward``, straight through. Where modules inside have hooks, which
    may change what passes, it is ``forward`` alone.
    """
    signature = inspect.signature(forward)

    @functools.wraps(forward)
    def either(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        signature.bind(self, *args, **kwargs)  # TypeError, as a call of ``forward`` gives it
        quantizers = [] if self.training else [m for m in self.modules() if isinstance(m, FakeQuantize)]
        if not _are_in_force(quantizers) or _is_traced(args, kwargs) or _is_watched(self):
            return forward(self, *args, **kwargs)
        if any(q.observer.has_history and not q.observer.seen for q in quantizers):
            with torch.no_grad():
                forward(self, *args, **kwargs)  # finds their ranges
        with torch.no_grad(), _in_float32(self):
            exact = evaluate(self, graph_of(self), args, kwargs)
        if _wants_gradient(self, args, kwargs):
            return _straight_through(forward(self, *args, **kwargs), exact)
        return exact

    return either


def evaluate(model: nn.Module, graph: fx.Graph, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What ``graph`` gives for these arguments, by levels where it has them."""
    values: dict[fx.Node, Value] = {}
    given, named = iter(args), dict(kwargs)
    left = {node: len(node.users) for node in graph.nodes}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = _argument(node, given, named)
            continue
        if node.op == "output":
            return _plain(fx.node.map_arg(node.args[0], lambda n: pytree.tree_map(real, values[n], is_leaf=_is_value)))
        values[node] = _run(model, node, values)
        for used in node.all_input_nodes:
            left[used] -= 1
            if not left[used]:
                del values[used]
    raise AssertionError("a graph ends in its output")


def _plain(returned: Any) -> Any:
    """``returned`` with the lists and dicts of Python instead of those of torch.fx."""
    if isinstance(returned, immutable_list):
        return [_plain(v) for v in returned]
    if isinstance(returned, immutable_dict):
        return {k: _plain(v) for k, v in returned.items()}
    return tuple(map(_plain, returned)) if type(returned) is tuple else returned


def _argument(node: fx.Node, given: Any, named: dict[str, Any]) -> Any:
    name = str(node.target)
    if name.startswith("**"):
        return named
    if name.startswith("*"):
        return tuple(given)
    found = next(given, _ABSENT)
    if found is _ABSENT:
        found = named.pop(name, node.args[0] if node.args else _ABSENT)
    if found is _ABSENT:
        raise TypeError(f"forward() missing a required argument: '{name}'")
    return found


_ABSENT: Final = object()


def _is_value(x: Any) -> bool:
    return isinstance(x, Levels | Columns | Pending)


def _run(model: nn.Module, node: fx.Node, values: Mapping[fx.Node, Value]) -> Value:
    if node.op == "get_attr":
        return get(model, str(node.target))
    target: Any = model.get_submodule(str(node.target)) if node.op == "call_module" else node.target
    args: Any = fx.node.map_arg(node.args, values.__getitem__)
    kwargs: Any = fx.node.map_arg(node.kwargs, values.__getitem__)

    def on_reals() -> Any:
        args_, kwargs_ = pytree.tree_map(real, (args, kwargs), is_leaf=_is_value)
        return _call(node, target, args_, kwargs_)

    if isinstance(target, FakeQuantize):
        return _quantize(node, target, args[0], on_reals)
    found: Value = None
    rule = _RULES.get(node.meta.get(ROLE, Role.FLOAT))
    if rule is not None:
        found = rule(node, target, args, kwargs, on_reals)
    return on_reals() if found is None else found


def _call(node: fx.Node, target: Any, args: Any, kwargs: Any) -> Any:
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    return target(*args, **kwargs)


def _quantize(node: fx.Node, quantizer: FakeQuantize, x: Value, on_reals: Callable[[], Any]) -> Value:
    if isinstance(x, torch.Tensor) and x.dtype is not torch.float32:
        return on_reals()
    if not quantizer.observer.has_history:  # a parameter's: its range is that of now
        return _levels_of(on_reals(), quantizer)
    grid = Grid.of(quantizer)
    if grid is None:
        return on_reals()
    if isinstance(x, Levels) and x.grid.same(grid):
        return x
    if isinstance(x, Pending) and len(node.all_input_nodes[0].users) == 1:
        return x.on(grid)
    return quantized(real(x), grid)


def _levels_of(rounded: torch.Tensor, quantizer: FakeQuantize) -> Value:
    """The levels of what passed ``quantizer``."""
    grid = Grid.of(quantizer)
    if grid is not None:
        return Levels(torch.div(rounded, grid.scale).round_(), grid)
    scale, _ = quantizer.calculate_qparams()
    is_matrix = quantizer.axis == 1 and rounded.dim() == 2 and quantizer.qtype.symmetric
    return Columns(torch.div(rounded, scale).round_(), scale) if is_matrix else rounded


def _product(node: fx.Node, module: Any, args: Any, kwargs: Any, on_reals: Callable[[], Any]) -> Value:
    moves = isinstance(module, QuantizedProduct) and module.training and not module.batch_norm_frozen
    if not isinstance(module, QuantizedProduct) or moves or len(args) != 1 or not isinstance(args[0], Levels):
        return None
    return product(module, args[0])


def _arithmetic(node: fx.Node, target: Any, args: Any, kwargs: Any, on_reals: Callable[[], Any]) -> Value:
    if target in MATRIX_PRODUCTS:
        fits = len(args) == 2 and isinstance(args[0], Levels) and isinstance(args[1], Levels | Columns)
        return matrix_product(*args) if fits else None
    if target in _SIGNS or target in _FACTORS:
        return _binary(node, target, args, kwargs)
    if args and isinstance(args[0], Levels):
        return _average(node, target, args, kwargs, on_reals)
    return None


def _binary(node: fx.Node, target: Any, args: Any, kwargs: Any) -> Value:
    if kwargs or len(args) != 2 or not all(isinstance(a, Levels) for a in args):
        return None
    a, b = args
    if node.meta.get(SOURCE):
        return None  # a table
    return added(a, b, _SIGNS[target]) if target in _SIGNS else multiplied(a, b)


def _average(node: fx.Node, target: Any, args: Any, kwargs: Any, on_reals: Callable[[], Any]) -> Value:
    x: Levels = args[0]
    module = isinstance(target, nn.Module)
    if isinstance(target, nn.AvgPool1d | nn.AvgPool2d) or target is functional.avg_pool2d:
        given = dict(zip(_POOLS, args[1:], strict=False)) | kwargs
        if module:
            given = {name: getattr(target, name) for name in _POOLS}
        if kwargs.get("divisor_override", getattr(target, "divisor_override", None)) or len(args) > len(_POOLS) + 1:
            return None
        return _pooled(x, given, on_reals)
    averages = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d)
    adaptive = isinstance(target, averages) or target in (functional.adaptive_avg_pool2d, "adaptive_avg_pool2d")
    if not adaptive and target not in (torch.mean, "mean"):
        return None
    mean = _call(node, target, (x.q, *args[1:]), kwargs)
    if adaptive and any(a % b for a, b in zip(x.q.shape[-2:], mean.shape[-2:], strict=True)):
        return None
    if not adaptive and not _is_one_block(x.q.dim(), kwargs.get("dim", args[1] if len(args) > 1 else None)):
        return None
    # (sum / n) * n is off by less than one half: the sum.
    n = x.q.numel() // max(1, mean.numel())
    return averaged(mean.mul_(n).round_(), n, x.grid, on_reals) if 0 < n <= _LARGEST_MEAN else None


def _is_one_block(n_axes: int, dim: Any) -> bool:
    """Whether the axes of a mean are neighbours: others stay float."""
    axes = sorted({d % n_axes for d in ((dim,) if isinstance(dim, int) else dim or range(n_axes))})
    return axes[-1] - axes[0] + 1 == len(axes)


#: 255 times as much is below 2^22.
_LARGEST_MEAN: Final = 2**14


def _pooled(x: Levels, given: Mapping[str, Any], on_reals: Callable[[], Any]) -> Value:
    """Average pooling along two axes, or along one as along two of which the first has one place."""
    flat = isinstance(given["kernel_size"], tuple) and len(given["kernel_size"]) == 1

    def pair(value: Any, of_the_first: int) -> Any:
        return (of_the_first, *value) if flat else value

    kernel = given["kernel_size"]
    stride, padding = given.get("stride") or kernel, given.get("padding", 0)
    windows = (pair(kernel, 1), pair(stride, 1), pair(padding, 0), bool(given.get("ceil_mode", False)))
    q = x.q.unsqueeze(-2) if flat else x.q
    ones = torch.ones_like(q[:1])
    # How many are inside, over their share.
    share = functional.avg_pool2d(ones, *windows, bool(given.get("count_include_pad", True)))
    sums, n = window_sums(q, *windows), (window_sums(ones, *windows) / share).round_()
    if flat:
        sums, n = sums.squeeze(-2), n.squeeze(-2)
    return averaged(sums, n, x.grid, on_reals)


def _clip(node: fx.Node, target: Any, args: Any, kwargs: Any, on_reals: Callable[[], Any]) -> Value:
    if not args or not isinstance(args[0], Pending) or len(node.all_input_nodes[0].users) != 1:
        return None
    if not args[0].takes_clips:
        return None
    bounds = _CLIPS.get(type(target) if isinstance(target, nn.Module) else target)
    if bounds is None:
        names = ("min_val", "max_val")
        given = dict(zip(names, args[1:], strict=False)) | kwargs
        if isinstance(target, nn.Module):
            given = {name: getattr(target, name) for name in names}
        bounds = (given.get("min_val", -1.0), given.get("max_val", 1.0))
    return args[0].clipped(*bounds, on_reals)


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _move(node: fx.Node, target: Any, args: Any, kwargs: Any, on_reals: Callable[[], Any]) -> Value:
    """On levels as on reals, (21); what joins tensors needs one grid."""
    leaves = pytree.tree_leaves((args, kwargs), is_leaf=_is_value)
    on_grids = [v for v in leaves if isinstance(v, Levels)]
    others = any(isinstance(v, Columns | Pending) or _is_float(v) for v in leaves)  # but for indices
    if not on_grids or others:
        return None
    grid = on_grids[0].grid
    if not all(v.grid.same(grid) for v in on_grids):
        return None
    args, kwargs = pytree.tree_map(lambda v: v.q if isinstance(v, Levels) else v, (args, kwargs), is_leaf=_is_value)
    moved = _call(node, target, args, kwargs)
    return pytree.tree_map(lambda q: Levels(q, grid) if _is_float(q) else q, moved)  # but for indices


def _float(node: fx.Node, target: Any, args: Any, kwargs: Any, on_reals: Callable[[], Any]) -> Value:
    if target in _SIZES and isinstance(args[0], Levels):
        return _call(node, target, (args[0].q, *args[1:]), kwargs)
    return row_operator(target, args, kwargs, on_reals)


#: How a node of each role computes where its inputs are levels; None from it: on reals.
_RULES: Final[Mapping[Role, Callable[..., Value]]] = MappingProxyType(
    {
        Role.PRODUCT: _product,
        Role.ARITHMETIC: _arithmetic,
        Role.CONCAT: _move,
        Role.CLIP: _clip,
        Role.MOVER: _move,
        Role.FLOAT: _float,
    }
)


def _are_in_force(quantizers: list[FakeQuantize]) -> bool:
    """Whether all are, none of them calibrating, and one is of an activation on 8 bits."""
    if any(q.always_observe or not q.quantizing for q in quantizers):
        return False
    return any(q.observer.has_history and has_levels(q) for q in quantizers)


def _is_traced(args: Any, kwargs: Any) -> bool:
    """By torch.export, torch.compile, torch.jit or torch.fx: the graph is to be what it was."""
    compiling = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    return compiling or any(isinstance(v, fx.Proxy) for v in pytree.tree_leaves((args, kwargs)))


def _in_float32(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Integers beyond 256 are no bfloat16: no autocast."""
    device = next((t.device.type for t in itertools.chain(model.parameters(), model.buffers())), "cpu")
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else contextlib.nullcontext()


def _wants_gradient(model: nn.Module, args: Any, kwargs: Any) -> bool:
    if not torch.is_grad_enabled():
        return False
    tensors = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
    return any(t.requires_grad for t in (*tensors, *model.parameters()))


def _is_watched(model: nn.Module) -> bool:
    """Whether a module inside has hooks."""
    inside = (m for m in model.modules() if m is not model)
    return torch_module._has_any_global_hook() or any(m._forward_hooks or m._forward_pre_hooks for m in inside)


def _own_graph(model: Any) -> fx.Graph:
    graph: fx.Graph = model.graph
    return graph


class PreparedGraph(fx.GraphModule):
    """A GraphModule that computes in evaluation mode what its file computes."""

    def recompile(self) -> Any:
        code = super().recompile()
        type(self).forward = evaluating(type(self).forward, _own_graph)
        return code


class _StraightThrough(torch.autograd.Function):
    """The exact value, with the gradient of the float one."""

    @staticmethod
    def forward(ctx: Any, floating: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
        return exact.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad, None


def _straight_through(floating: Any, exact: Any) -> Any:
    """``exact``, tensor by tensor with the gradients of ``floating``."""
    if isinstance(exact, torch.Tensor):
        wanted = exact.is_floating_point() and floating.requires_grad
        return _StraightThrough.apply(floating, exact) if wanted else exact
    if dataclasses.is_dataclass(exact) and not isinstance(exact, type):
        fields = [f.name for f in dataclasses.fields(exact)]
        parts = {name: _straight_through(getattr(floating, name), getattr(exact, name)) for name in fields}
        return dataclasses.replace(exact, **parts)
    leaves, shape = pytree.tree_flatten(exact)
    if len(leaves) == 1 and leaves[0] is exact:
        return exact
    return pytree.tree_unflatten(map(_straight_through, pytree.tree_leaves(floating), leaves), shape)
