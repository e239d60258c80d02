# SPDX-License-Identifier: Apache-2.0
"""Knowledge distillation: the quantized model learns to answer as the float one did (Hinton et al. 2015)."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

from wia_quant.errors import UsageError


class Teacher:
    """A float model as it is now, for a student to be measured against; made before ``prepare_qat(inplace=True)``.

    ``loss = Teacher(model)``; then in training ``loss(student(x), x).backward()``. No labels are needed.
    """

    def __init__(self, model: nn.Module, temperature: float = 1.0) -> None:
        if temperature <= 0:
            raise UsageError(f"temperature is {temperature}; it must be positive")
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self._t = temperature

    def __call__(self, answer: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        """How far the student's ``answer`` to these arguments is from the teacher's; a scalar.

        Logits [N, classes] by their divergence at the temperature, times its square (section 2.1); tensors of any
        other shape by the mean square of the difference over the mean square of the teacher's.
        """
        with torch.no_grad():
            wanted = _floats(self._model(*args, **kwargs))
        got = _floats(answer)
        if [t.shape for t in got] != [t.shape for t in wanted]:
            raise UsageError("student and teacher give tensors of other shapes")
        return torch.stack([self._distance(a, b) for a, b in zip(got, wanted, strict=True)]).sum()

    def _distance(self, got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        if wanted.dim() == 2 and wanted.shape[1] > 1:
            student, teacher = ((x / self._t).log_softmax(1) for x in (got, wanted))
            return functional.kl_div(student, teacher, reduction="batchmean", log_target=True) * self._t**2
        return (got - wanted).square().mean() / wanted.square().mean().clamp_min(torch.finfo(wanted.dtype).tiny)


def _floats(value: Any) -> list[torch.Tensor]:
    return [v for v in pytree.tree_leaves(value) if isinstance(v, torch.Tensor) and v.is_floating_point()]
