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

EVALUATORS: Mapping[str, Callable[[], Evaluator]] = MappingProxyType(
    {
        "agreement": Agreement,
        "classification": Classification,
        "detection": Detection,
        "embedding": Embedding,
        "ocr": Ocr,
        "regression": Regression,
        "segmentation": Segmentation,
    }
)


def make_evaluator(task: str) -> Evaluator:
    """The evaluator of a task's name, or of a user's ``module:function``."""
    if ":" in task:
        return User(load_scorer(task), task)
    if task not in EVALUATORS:
        known = ", ".join(EVALUATORS)
        raise UsageError(f"task '{task}' is not known; use one of {known}, or your own module:function")
    return EVALUATORS[task]()
