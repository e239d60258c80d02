# SPDX-License-Identifier: Apache-2.0
"""Mistakes with a model or its inputs, said before torch fails deep inside."""

from __future__ import annotations

import copy
import inspect
from typing import Any, Final

import torch
from torch import nn
from torch.utils import _pytree as pytree

from wia_quant.errors import UsageError
from wia_quant.torch.culprit import reason_of

_WRAPPERS: Final = (nn.DataParallel, nn.parallel.DistributedDataParallel, torch.optim.swa_utils.AveragedModel)


def require_model(model: Any) -> None:
    """Nothing, for a module of float32 parameters.

    Raises:
        UsageError: a class, TorchScript, a wrapper, another type of parameters, or none yet; says what to give instead.
    """
    kind = type(model).__name__
    if isinstance(model, type):
        raise UsageError(f"{model.__name__} is a class; give a model made of it, such as {model.__name__}()")
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(f"{kind} is TorchScript, which is not looked into; give the torch.nn.Module it was made of")
    if isinstance(model, torch.export.ExportedProgram):
        raise UsageError("an ExportedProgram was given; give the torch.nn.Module it was made of, or program.module()")
    if not isinstance(model, nn.Module):
        raise UsageError(f"a torch.nn.Module is needed, not a {kind}")
    if isinstance(model, _WRAPPERS):
        raise UsageError(f"{kind} only wraps a model; give the model in it: model.module")
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if value.is_meta:
            raise UsageError(f"parameter '{name}' is on the device 'meta' and has no values; load them first")
        if value.is_floating_point() and value.dtype != torch.float32:
            dtype = str(value.dtype).removeprefix("torch.")
            raise UsageError(f"parameter '{name}' is {dtype}; quantization starts from float32: call model.float()")


def require_own_weights(model: nn.Module) -> None:
    """Nothing, for a model whose parameters no hook makes of others.

    Raises:
        UsageError: the older ``weight_norm`` or ``spectral_norm``, or ``prune``; says what to do instead.
    """
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            made = {f"{name}_g", f"{name}_orig"} & {*module._parameters}
            if isinstance(value, torch.Tensor) and made:
                raise UsageError(
                    f"submodule '{path}' ({type(module).__name__}): a hook makes its '{name}' of '{min(made)}', and"
                    " training would not reach it: call torch.nn.utils.remove_weight_norm, remove_spectral_norm or"
                    " prune.remove first, or take torch.nn.utils.parametrizations"
                )


def copied(model: nn.Module) -> nn.Module:
    """A deep copy.

    Raises:
        UsageError: the model keeps a tensor that torch cannot copy.
    """
    require_own_weights(model)
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                where = f"{path}.{name}".removeprefix(".")
                raise UsageError(
                    f"'{where}' is a computed tensor with a gradient, which torch cannot copy; keep value.detach(), or"
                    " delete it before"
                )
    return copy.deepcopy(model)


def positional(model: nn.Module) -> list[inspect.Parameter]:
    """What ``forward`` takes by place, without ``*args``."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in inspect.signature(model.forward).parameters.values() if p.kind in kinds]


def run_once(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the model gives for its example inputs.

    Raises:
        UsageError: it does not run on them.
    """
    try:
        with torch.no_grad():
            return model(*args, **kwargs)
    except UsageError:
        raise
    except Exception as error:  # whatever the user's forward raises
        given = ", ".join(
            f"{list(t.shape)} {str(t.dtype).removeprefix('torch.')}"
            for t in pytree.tree_leaves((args, kwargs))
            if isinstance(t, torch.Tensor)
        )
        named = f" for {', '.join(kwargs)}" if kwargs else ""
        raise UsageError(
            f"{type(model).__name__} does not run on its example inputs, {given or 'no tensors'}{named}:"
            f" {reason_of(error)}; they must be what its forward takes, in float32 and on its device"
        ) from error
