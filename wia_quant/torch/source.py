# SPDX-License-Identifier: Apache-2.0
"""Torch models for post-training quantization: in memory with a loader, or named as module:factory."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

from wia_quant.errors import DataError, ExportError, ModelError, UsageError
from wia_quant.torch.culprit import reason_of
from wia_quant.torch.export import export, float_onnx
from wia_quant.torch.fake_quantize import FakeQuantize
from wia_quant.torch.usable import positional, require_model

#: Rows of an example that stands for data which only tells one shape.
_ROWS = 2


def model_to_onnx(model: nn.Module, data: object) -> onnx.ModelProto:
    """The float model in evaluation mode as ONNX with an open batch.

    Args:
        model: any module that torch can export; it is left as it is.
        data: a DataLoader or another iterable of batches: tensors, tuples of which the first are the arguments of
            ``forward`` (what follows, such as labels, is not read), or dicts by argument name.

    Raises:
        DataError: no first batch to take the shapes of.
        ExportError: torch cannot export the model, or the model is prepared for training already.
    """
    require_model(model)
    if _is_prepared(model):
        raise ExportError(
            f"{type(model).__name__} has fake quantizers: it is quantized already; wia_quant.torch.export writes it"
        )
    if any(t.device.type != "cpu" for t in (*model.parameters(), *model.buffers())):
        model = copy.deepcopy(model).cpu()  # batches are read on the CPU, too
    return float_onnx(model, _example(model, data))


def read_to_onnx(what: str, shapes: Sequence[str]) -> onnx.ModelProto:
    """The model that ``MODULE:FACTORY`` gives, as ONNX; a prepared (trained) one as it was trained.

    Raises:
        UsageError: not of that form, or a shape that is none.
        ModelError: the module cannot be imported, or what it gives is no torch model.
    """
    made = _made(what)
    model, example = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, nn.Module):
        raise ModelError(f"{what} gives a {type(model).__name__}; a torch.nn.Module, or (module, example), is needed")
    if shapes:
        example = tuple(_random(text) for text in shapes)
    if example is None:
        raise UsageError(
            f"{what} gives no example inputs; add --shape 1,3,224,224 for each input, or return (model, example)"
        )
    if _is_prepared(model):
        return export(model, example).model
    return float_onnx(model, example)


def _is_prepared(model: nn.Module) -> bool:
    return any(isinstance(module, FakeQuantize) for module in model.modules())


def _example(model: nn.Module, data: object) -> Any:
    """The first batch of ``data`` as arguments of the model."""
    if data is None or isinstance(data, str | os.PathLike) or not isinstance(data, Iterable):
        raise DataError(
            f"{type(model).__name__} is a torch model: data must be a DataLoader or another iterable of batches, whose"
            " first shows the shapes; for a folder or file, write it with `wia-quant export --torch` first"
        )
    if isinstance(data, np.ndarray | torch.Tensor):
        return torch.as_tensor(data[:_ROWS])
    if isinstance(data, Mapping):
        return {name: torch.as_tensor(np.asarray(value)[:_ROWS]) for name, value in data.items()}
    if iter(data) is data:
        raise DataError("data is an iterator, which can be read only once; give a DataLoader or a list of batches")
    first = next(iter(data), None)
    if first is None:
        raise DataError("data gives no batch")
    if isinstance(first, Mapping):
        names = inspect.signature(model.forward).parameters
        found = {name: _tensor(value) for name, value in first.items() if name in names}
        if not found:
            raise DataError(
                f"batches have {', '.join(map(str, first))}, but {type(model).__name__} takes {', '.join(names)}:"
                " name them by its arguments, or give tuples"
            )
        return found
    if isinstance(first, tuple | list):
        return tuple(_tensor(value) for value in first[: _n_arguments(model)])
    return _tensor(first)


def _n_arguments(model: nn.Module) -> int:
    """How many inputs ``forward`` needs; at least one."""
    return max(1, sum(p.default is inspect.Parameter.empty for p in positional(model)))


def _tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError):
        raise DataError(f"a batch holds a {type(value).__name__}; tensors or arrays of numbers are needed") from None


def _made(what: str) -> Any:
    """What ``MODULE:FACTORY`` stands for; the folder that the command runs in can be imported from."""
    module_name, colon, path = what.partition(":")
    if not (module_name and colon and path):
        raise UsageError(f"--torch {what}: MODULE:FACTORY is needed, such as my_package.nets:make_net")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module raises
        raise ModelError(f"{module_name} cannot be imported: {type(error).__name__}: {reason_of(error)}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise ModelError(f"{module_name} has no '{path}'")
        found = getattr(found, name)
    if isinstance(found, nn.Module):
        return found
    if not callable(found):
        raise ModelError(f"{what} is a {type(found).__name__}; a function, a class or a torch.nn.Module is needed")
    try:
        return found()
    except Exception as error:  # as above
        raise ModelError(f"{what}() failed: {type(error).__name__}: {reason_of(error)}") from error


def _random(text: str) -> torch.Tensor:
    """An example of "1,3,224,224" or "1,128:int64"."""
    lengths, _, kind = text.partition(":")
    dtype = getattr(torch, kind or "float32", None)
    try:
        shape = [int(n) for n in lengths.split(",")]
    except ValueError:
        shape = []
    if not shape or min(shape) < 1 or not isinstance(dtype, torch.dtype):
        raise UsageError(f"--shape {text}: lengths and a type of torch are needed, such as 1,3,224,224 or 1,128:int64")
    return torch.rand(shape, dtype=dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)
