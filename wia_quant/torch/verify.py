# SPDX-License-Identifier: Apache-2.0
"""Whether an exported file computes what was trained: libwia against the torch model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn
from torch.utils import _pytree as pytree

from wia_quant.affine import INT8, Range, place
from wia_quant.errors import ExportError
from wia_quant.runtime import Session

#: float32 sums in another order and int32 biases differ by less; more is a difference of levels.
_ROUNDING = 1e-4


@dataclass(frozen=True)
class Difference:
    """How far one output of the file is from the torch model's.

    Attributes:
        output: its name in the file.
        largest: the largest absolute difference.
        span: the largest magnitude of the torch model's output.
        share: of the values, those that differ by more than rounding of float32 (1e-4 of ``span``).
        step: what one level of the output is worth: its scale where the file quantizes it, else that of int8 levels
            on the range that the torch model's output has, 0 included.
    """

    output: str
    largest: float
    span: float
    share: float
    step: float

    @property
    def steps(self) -> float:
        """``largest`` in steps."""
        return self.largest / self.step

    def __str__(self) -> str:
        return (
            f"'{self.output}': {self.share:.2%} of the values differ, by at most {self.largest:.3g},"
            f" {self.steps:.2f} steps (largest magnitude {self.span:.3g})"
        )


def compare(file: onnx.ModelProto, model: nn.Module, example: Any) -> tuple[Difference, ...]:
    """Runs both on ``example``; one Difference an output.

    Raises:
        ExportError: other outputs than the torch model has, in number or shape, or one with NaN.
        RuntimeFault: libwia refuses the file.
    """
    args, kwargs = arguments(example)
    with torch.no_grad():
        wanted = [t.numpy() for t in _tensors(model(*args, **kwargs))]
    session = Session(file.SerializeToString())
    names = [i.name for i in session.get_inputs()]
    values = _tensors((args, kwargs))
    by_name = {k: v for k, v in kwargs.items() if k in names}
    feeds = by_name if len(by_name) == len(names) else dict(zip(names, values, strict=True))
    got = session.run(None, {name: value.numpy() for name, value in feeds.items()})
    if len(got) != len(wanted):
        raise ExportError(f"the file has {len(got)} outputs, the torch model {len(wanted)}")
    outputs, scales = [o.name for o in session.get_outputs()], _scales(file)
    return tuple(_difference(name, a, b, scales.get(name)) for name, a, b in zip(outputs, got, wanted, strict=True))


def _scales(file: onnx.ModelProto) -> dict[str, float]:
    """Dequantized tensor -> its scale, where it has one."""
    known = {t.name: onnx.numpy_helper.to_array(t) for t in file.graph.initializer}
    scale_of = {n.output[0]: known.get(n.input[1]) for n in file.graph.node if n.op_type == "DequantizeLinear"}
    return {name: float(scale) for name, scale in scale_of.items() if scale is not None and scale.ndim == 0}


def step_of(x: np.ndarray[Any, Any]) -> float:
    """The scale of int8 levels on the range of ``x``, equation (3)."""
    lo, hi = float(x.min(initial=0)), float(x.max(initial=0))
    return place(Range.around_zero(lo, hi), INT8)[0]


def _difference(name: str, got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], scale: float | None) -> Difference:
    if got.shape != wanted.shape:
        raise ExportError(f"output '{name}' has shape {got.shape}, in torch {wanted.shape}")
    if not np.isfinite(got).all():
        raise ExportError(f"output '{name}' has NaN or infinity on the example")
    apart = np.abs(got.astype(np.float64) - wanted.astype(np.float64))
    span = float(np.abs(wanted).max(initial=0))
    share = float((apart > _ROUNDING * span).mean())
    return Difference(name, float(apart.max(initial=0)), span, share, scale or step_of(wanted))


def arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An example as positional and named arguments: a dict names them, a tuple or list is all of them.

    Arrays become tensors.
    """
    example = pytree.tree_map(lambda v: torch.as_tensor(v) if isinstance(v, np.ndarray) else v, example)
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, tuple | list) else (example,)), {}


def _tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a nest of tuples, lists, dicts and registered dataclasses, in order."""
    return [leaf.detach().cpu() for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
