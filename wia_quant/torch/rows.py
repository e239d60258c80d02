# SPDX-License-Identifier: Apache-2.0
"""LayerNorm and softmax in evaluation: float operators whose sums and exponentials are libwia's own, (16), (17).

They are run by libwia itself, where the tensors are on the CPU; elsewhere by torch, which may round the last bit
otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.nn import functional

from wia_quant.runtime import Session
from wia_quant.torch.levels import Grid, Levels, Pending, Value, real

_OPSET = 18
_IR = 9
_FULL = 255


def row_operator(target: Any, args: Any, kwargs: Any, on_reals: Callable[[], Any]) -> Value:
    """What a LayerNorm or a softmax gives; None where ``target`` is neither, or it is torch's to compute."""
    normalizes, axis = _layer_norm(target, args, kwargs), _softmax_axis(target, args, kwargs)
    if not args or (normalizes is None and axis is None):
        return None
    x = args[0].q if isinstance(args[0], Levels) else real(args[0])
    if not isinstance(x, torch.Tensor) or x.device.type != "cpu" or x.dtype is not torch.float32 or not x.numel():
        return None
    if normalizes is not None:
        return _normalized(real(args[0]), *normalizes)
    return _softmax(args[0], (axis or 0) % x.dim(), on_reals) if x.dim() else None


def _layer_norm(target: Any, args: Any, kwargs: Any) -> tuple[int, Any, Any, float] | None:
    """How many axes, the scale, the bias and epsilon."""
    if type(target) is nn.LayerNorm:
        return len(target.normalized_shape), target.weight, target.bias, target.eps
    if target is not functional.layer_norm:
        return None
    names = ("normalized_shape", "weight", "bias", "eps")
    given: Mapping[str, Any] = {"eps": 1e-5} | dict(zip(names, args[1:], strict=False)) | kwargs
    affine = [real(given.get(name)) for name in ("weight", "bias")]
    return len(given["normalized_shape"]), *affine, given["eps"]


def _normalized(x: torch.Tensor, n_axes: int, scale: Any, bias: Any, epsilon: float) -> torch.Tensor:
    shape = x.shape[x.dim() - n_axes :]
    feeds = {"x": x, "scale": torch.ones(shape) if scale is None else scale}
    if bias is not None:
        feeds["bias"] = bias
    node = helper.make_node("LayerNormalization", [*feeds], ["y"], axis=-n_axes, epsilon=epsilon)
    ranks = tuple((name, tensor.dim()) for name, tensor in feeds.items())
    return _run(_session((node.SerializeToString(),), ranks, x.dim()), feeds)


def _softmax_axis(target: Any, args: Any, kwargs: Any) -> int | None:
    if type(target) is nn.Softmax:
        return target.dim
    if target not in (torch.softmax, functional.softmax, "softmax") or kwargs.get("dtype") is not None:
        return None
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    return axis if isinstance(axis, int) and len(args) <= 2 else None


def _softmax(x: Value, axis: int, on_reals: Callable[[], Any]) -> Pending:
    """(25) where a grid follows; of levels, their differences are taken as integers."""
    of_levels = x.grid if isinstance(x, Levels) and x.grid.hi - x.grid.lo == _FULL else None
    values = x.q if of_levels is not None else real(x)

    def run(to: Grid | None) -> torch.Tensor:
        before, behind = _parameters("x", of_levels), _parameters("y", to)
        nodes = [
            helper.make_node("Softmax", ["real" if before else "x"], ["probability" if behind else "y"], axis=axis)
        ]
        if before:
            nodes.insert(0, helper.make_node("DequantizeLinear", ["x", *before], ["real"]))
        if behind:
            nodes.append(helper.make_node("QuantizeLinear", ["probability", *behind], ["y"]))
        texts = tuple(node.SerializeToString() for node in nodes)
        session = _session(texts, (("x", values.dim()),), values.dim(), tuple(_numbers({"x": of_levels, "y": to})))
        fed = values if of_levels is None else (values - of_levels.lo).to(torch.uint8)
        found = _run(session, {"x": fed})
        return found if to is None else found.float().add_(to.lo)

    return Pending(lambda grid: run(grid) if grid.hi - grid.lo == _FULL else on_reals() / grid.scale, lambda: run(None))


def _parameters(name: str, grid: Grid | None) -> list[str]:
    return [] if grid is None else [f"{name}_scale", f"{name}_zero_point"]


def _numbers(grids: Mapping[str, Grid | None]) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, grid in grids.items():
        if grid is not None:
            found += [(f"{name}_scale", grid.step), (f"{name}_zero_point", float(-grid.lo))]
    return found


@lru_cache(maxsize=1024)
def _session(
    nodes: tuple[bytes, ...],
    inputs: tuple[tuple[str, int], ...],
    rank: int,
    numbers: tuple[tuple[str, float], ...] = (),
) -> Session:
    """A model of these nodes, of inputs by name and rank, and of scales and zero points."""
    given = dict(numbers)

    def kind(name: str) -> int:
        return int(TensorProto.UINT8 if f"{name}_scale" in given else TensorProto.FLOAT)

    constants = [
        onnx.numpy_helper.from_array(np.array(v, np.uint8 if name.endswith("zero_point") else np.float32), name)
        for name, v in numbers
    ]
    graph = helper.make_graph(
        [onnx.NodeProto.FromString(node) for node in nodes],
        "rows",
        [helper.make_tensor_value_info(name, kind(name), [None] * r) for name, r in inputs],
        [helper.make_tensor_value_info("y", kind("y"), [None] * rank)],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR)
    return Session(model.SerializeToString())


def _run(session: Session, feeds: Mapping[str, torch.Tensor]) -> torch.Tensor:
    arrays = {name: np.ascontiguousarray(tensor.detach().numpy()) for name, tensor in feeds.items()}
    return torch.from_numpy(session.run(None, arrays)[0])
