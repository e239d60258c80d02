# SPDX-License-Identifier: Apache-2.0
"""Task metrics: one file each, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from wia_quant.errors import UsageError
from wia_quant.evaluators.agreement import Agreement
from wia_quant.evaluators.base import Evaluator
from wia_quant.evaluators.classification import Classification
from wia_quant.evaluators.detection import Detection
from wia_quant.evaluators.embedding import Embedding
from wia_quant.evaluators.ocr import Ocr
from wia_quant.evaluators.regression import Regression
from wia_quant.evaluators.segmentation import Segmentation
from wia_quant.evaluators.user import User, load_scorer

#: Task -> what makes its evaluator for a model with such metadata.
EVALUATORS: Mapping[str, Callable[[Mapping[str, str]], Evaluator]] = MappingProxyType(
    {
        "agreement": lambda _: Agreement(),
        "classification": lambda _: Classification(),
        "detection": lambda _: Detection(),
        "embedding": lambda _: Embedding(),
        "ocr": Ocr.for_model,
        "regression": lambda _: Regression(),
        "segmentation": lambda _: Segmentation(),
    }
)


def make_evaluator(task: str, metadata: Mapping[str, str] = MappingProxyType({})) -> Evaluator:
    """The evaluator of a task's name, or of a user's ``module:function``; ``metadata`` is the model's."""
    if ":" in task:
        return User(load_scorer(task), task)
    if task not in EVALUATORS:
        known = ", ".join(EVALUATORS)
        raise UsageError(f"task '{task}' is not known; use one of {known}, or your own module:function")
    return EVALUATORS[task](metadata)
