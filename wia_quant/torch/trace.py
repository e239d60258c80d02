# SPDX-License-Identifier: Apache-2.0
"""A model's forward as a torch.fx graph that serves training and evaluation alike."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from typing import Any, Final

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from wia_quant.errors import UsageError, WiaError
from wia_quant.torch.choice import Choice
from wia_quant.torch.in_place import name_results
from wia_quant.torch.product import QuantizedProduct
from wia_quant.torch.verify import arguments


class PrepareError(WiaError):
    """A torch model that cannot be prepared: it cannot be traced, or is prepared already."""


class ByMode(nn.Module):
    """An argument that the model's code made of ``self.training``, such as that of ``F.dropout``."""

    def __init__(self, in_training: Any, in_evaluation: Any) -> None:
        super().__init__()
        self.in_training, self.in_evaluation = in_training, in_evaluation

    def forward(self) -> Any:
        return self.in_training if self.training else self.in_evaluation


#: Names of the submodules that hold a ByMode.
BY_MODE: Final = "wia_by_mode_"

#: What torch.fx says -> what to say.
_REASONS: Final = (
    ("cannot be iterated", "a loop over an input, or over a result of unknown length: index it, as in x[0], x[1]"),
    ("control flow", "a branch on a tensor's values or shape"),
    ("len", "len() of a tensor: use x.shape[0]"),
)


def trace(model: nn.Module, choice: Choice, example: Any = None) -> fx.Graph:
    """The graph of ``model``; what stays float by ``choice`` is not looked into.

    Arguments that are no tensors (flags, None) are constants of the graph: as in ``example``, or their defaults.

    Raises:
        PrepareError: it cannot be traced, or its operators are others in evaluation; names the submodule.
    """
    constants = _constants(model, example)
    modes = {module: module.training for module in model.modules()}
    try:
        if any(modes.values()):
            graph = _trace_both(model, choice, constants)
        else:
            graph = _trace_evaluation(model, choice, constants)
    finally:
        for module, training in modes.items():
            module.training = training
    for module in model.modules():
        if isinstance(module, ByMode):
            module.training = model.training
    _place_inputs(model, graph)
    name_results(model, graph)
    return graph


def _trace_both(model: nn.Module, choice: Choice, constants: dict[str, Any]) -> fx.Graph:
    """The graph of the mode that the model is in; arguments that evaluation has otherwise follow the mode."""
    graph = _trace(model, choice, constants)
    known = set(vars(model))
    model.eval()
    try:
        _merge(model, graph, _trace(model, choice, constants))
    finally:
        for name in set(vars(model)) - known:  # constants of the second trace
            delattr(model, name)
    return graph


def _trace_evaluation(model: nn.Module, choice: Choice, constants: dict[str, Any]) -> fx.Graph:
    """Of evaluation; where training only has other arguments, as ``F.dropout`` has, they follow the mode."""
    attributes, parts = set(vars(model)), set(model._modules)
    try:
        model.train()
        return _trace_both(model, choice, constants)
    except PrepareError:
        for name in set(vars(model)) - attributes:
            delattr(model, name)
        for name in set(model._modules) - parts:
            delattr(model, name)
        model.eval()
        return _trace(model, choice, constants)


def _place_inputs(model: nn.Module, graph: fx.Graph) -> None:
    """``conv(input=x)`` becomes ``conv(x)``: the first argument is what a module computes of."""
    for node in graph.nodes:
        if node.op != "call_module" or node.args or not node.kwargs:
            continue
        module = model.get_submodule(str(node.target))
        first = next(iter(inspect.signature(module.forward).parameters), "")
        if type(module).__module__.startswith("torch.nn") and first in node.kwargs:
            node.args = (node.kwargs[first],)
            node.kwargs = {name: value for name, value in node.kwargs.items() if name != first}


def is_mover_in_evaluation(module: nn.Module) -> bool:
    """Whether ``module`` is stochastic depth or the like: of code outside torch, identity in evaluation."""
    code = getattr(type(module).forward, "__code__", None)
    if type(module).__module__.startswith("torch.nn") or code is None or "training" not in code.co_names:
        return False
    if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
        return False
    training = module.training
    try:
        module.eval()
        x = torch.arange(24.0).reshape(2, 3, 2, 2)
        found = module.forward(x)  # while tracing, a call would be traced
        return isinstance(found, torch.Tensor) and torch.equal(found, x)
    except Exception:  # it takes other inputs
        return False
    finally:
        module.train(training)


class _Tracer(fx.Tracer):
    """torch.nn modules are leaves, and so are ours and any submodule that stays float; knows where tracing failed."""

    def __init__(self, choice: Choice) -> None:
        super().__init__()
        self._choice = choice
        self.failed = ""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if self._choice.of_module(module_qualified_name) is None or isinstance(m, QuantizedProduct):
            return True
        return super().is_leaf_module(m, module_qualified_name) or is_mover_in_evaluation(m)

    def call_module(self, m: nn.Module, forward: Any, args: Any, kwargs: Any) -> Any:
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            self.failed = self.failed or self.path_of_module(m)  # the innermost is the first to know
            raise

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        n = _n_parts(obj.node)
        return super().iter(obj) if n is None else iter([operator.getitem(obj, i) for i in range(n)])


class _Proxy(fx.Proxy):
    """Has a length where ``iter`` knows it: ``list(x.chunk(2))`` asks for one."""

    def __len__(self) -> int:
        n = _n_parts(self.node)
        return super().__len__() if n is None else n


def require_default(given: Any, default: Any, name: str) -> None:
    """In place of torch.fx's assertion that an argument is what it was while tracing.

    Raises:
        UsageError: it is not.
    """
    if not (given is default or given == default):
        raise UsageError(
            f"argument '{name}' had its default, {default!r}, when the model was prepared: give"
            " prepare_qat(..., example=...) inputs that have it"
        )


def _constants(model: nn.Module, example: Any) -> dict[str, Any]:
    """The arguments of ``forward`` that are no tensors: what ``example`` has for them, else their defaults."""
    parameters = inspect.signature(model.forward).parameters.values()
    plain = (type(None), bool, int, float, str)
    found = {p.name: p.default for p in parameters if isinstance(p.default, plain)}
    if example is not None:
        args, kwargs = arguments(example)
        given = {**dict(zip((p.name for p in parameters), args, strict=False)), **kwargs}
        found.update({name: value for name, value in given.items() if isinstance(value, plain)})
        found = {name: value for name, value in found.items() if isinstance(given.get(name, value), plain)}
    return found


def _check_defaults(graph: fx.Graph, constants: dict[str, Any]) -> None:
    """torch.fx's assertions about ``constants`` become ours, which say what to do."""
    for node in list(graph.nodes):
        name = str(node.target).removesuffix("_1")  # as torch.fx renames them
        if node.op != "placeholder" or name not in constants:
            continue
        node.target = name
        for user in list(node.users):
            for last in list(user.users):
                graph.erase_node(last)
            graph.erase_node(user)
        with graph.inserting_after(node):
            graph.call_function(require_default, (node, constants[name], name))


def _n_parts(node: fx.Node) -> int | None:
    """How many tensors a chunk or split gives, where the code says it."""
    if node.target in (torch.chunk, "chunk"):
        parts = node.kwargs.get("chunks", node.args[1] if len(node.args) > 1 else None)
        return parts if isinstance(parts, int) else None
    if node.target in (torch.split, "split"):
        sizes = node.kwargs.get("split_size_or_sections", node.args[1] if len(node.args) > 1 else None)
        sizes = node.kwargs.get("split_size", sizes)
        return len(sizes) if isinstance(sizes, tuple | list) else None
    return None


def _trace(model: nn.Module, choice: Choice, constants: dict[str, Any]) -> fx.Graph:
    tracer = _Tracer(choice)
    try:
        graph = tracer.trace(model, constants)
        _check_defaults(graph, constants)
        return graph
    except Exception as error:  # whatever the user's forward raises under tracing
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        reason = next((ours for theirs, ours in _REASONS if theirs in reason), reason)
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


def _merge(model: nn.Module, training: fx.Graph, evaluation: fx.Graph) -> None:
    """Where arguments differ by mode, a ByMode gives them."""
    known: dict[fx.Node, fx.Node] = {}
    pairs = list(zip(training.nodes, evaluation.nodes, strict=False))
    same_length = len(training.nodes) == len(evaluation.nodes)
    n = 0
    for ours, theirs in pairs:
        if not (same_length and ours.op == theirs.op and _same_target(model, ours, theirs)):
            raise _differs(model, ours)
        known[theirs] = ours
        here = {**dict(enumerate(ours.args)), **ours.kwargs}
        args, kwargs = (fx.node.map_arg(part, known.__getitem__) for part in (theirs.args, theirs.kwargs))
        there = {**dict(enumerate(args)), **kwargs}
        for key, value in here.items():
            if key in there and there[key] == value:
                continue
            if any(isinstance(leaf, fx.Node) for leaf in pytree.tree_leaves((value, there.get(key)))):
                raise _differs(model, ours)
            name = f"{BY_MODE}{n}"
            n += 1
            model.add_module(name, ByMode(value, there.get(key)))
            with training.inserting_before(ours):
                chosen = training.call_module(name)
            if isinstance(key, int):
                ours.update_arg(key, chosen)
            else:
                ours.update_kwarg(key, chosen)


def _differs(model: nn.Module, node: fx.Node) -> PrepareError:
    return PrepareError(
        f"{type(model).__name__} does something else in training than in evaluation, from '{node.name}' on; evaluation"
        " is what is exported: call prepare_qat(model.eval()), which traces that, and model.train() afterwards"
    )


def _same_target(model: nn.Module, a: fx.Node, b: fx.Node) -> bool:
    if a.target == b.target:
        return True
    # Constants that the code makes anew in every pass.
    both = [getattr(model, str(n.target), None) if n.op == "get_attr" else None for n in (a, b)]
    return all(isinstance(t, torch.Tensor) for t in both) and torch.equal(*both)  # type: ignore[arg-type]
