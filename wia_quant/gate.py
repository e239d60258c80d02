# SPDX-License-Identifier: Apache-2.0
"""A gate that a team keeps: ``baseline`` records how good a model is, ``regress`` says whether another got worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Unpack

from onnx import ModelProto

from wia_quant.errors import UsageError
from wia_quant.evaluation import Evaluation
from wia_quant.graph import metadata_of, read_proto
from wia_quant.measurement import ALL_SAMPLES, AllOptions, Options, Source, evaluate
from wia_quant.preprocess import Preprocess, Recorded
from wia_quant.recipe import recorded_preprocess
from wia_quant.regression import Regression, compare

#: Samples that layers are measured on: a layer's error hardly moves with more.
LAYER_SAMPLES: Final = 16
#: Points that a metric may lose unless the caller says otherwise.
MAX_DROP: Final = 0.5
_EVALUATION: Final = ".json"


def baseline(
    model: Source,
    data: object,
    *,
    reference: Source | None = None,
    layers: int = LAYER_SAMPLES,
    **options: Unpack[AllOptions],
) -> Evaluation:
    """The evaluation to hold on to: as ``evaluate``, with each layer's error where there is a float model.

    ``baseline(...).save("base.json")``, then ``regress("base.json", ...)``. Arguments and errors as ``evaluate``.
    """
    return evaluate(model, data, reference=reference, layers=0 if reference is None else layers, **options)


def regress(
    baseline: Evaluation | Source,
    current: Evaluation | Source,
    data: object = None,
    *,
    max_drop: float = MAX_DROP,
    max_drop_of: Mapping[str, float] | None = None,
    reference: Source | None = None,
    layers: int = LAYER_SAMPLES,
    task: str | None = None,
    preprocess: str | Path | Mapping[str, Any] | Preprocess | None = None,
    samples: int | None = None,
    seed: int | None = None,
    **options: Unpack[Options],
) -> Regression:
    """Whether ``current`` is worse than ``baseline``, where, and by how much.

    In a test: ``assert wia_quant.regress("base.json", "model.onnx", "pictures").ok``.

    Each of the two is an evaluation, or its .json file, or a model, which is then measured on ``data`` the way that
    the other was.

    Args:
        baseline: what to hold on to.
        current: what is under test.
        data: what ``open_data`` takes; needed when a model is given.
        max_drop: points that any metric may lose: percent and dB as they are, other metrics times 100.
        max_drop_of: metric name -> points, for metrics with a limit of their own.
        reference: the float model that layers (and, without labels, answers) are compared with. None, with a model
            as the baseline: that model.
        layers: samples that layers are measured on; 0 names no layer.
        task: as ``evaluate``; None: that of the evaluation given.
        preprocess: as ``evaluate``; None: that of the evaluation given, or what either model records.
        samples: as ``evaluate``; None: those of the evaluation given, or all.
        seed: as ``evaluate``; None: that of the evaluation given, or 0.
        options: as ``evaluate``: labels, evaluator, executor, batch, workers, threads, strict, progress.

    Raises:
        EvaluationError: two that cannot be compared: of other tasks, data or preprocessing.
        UsageError: a model without ``data``.
    """
    sides = [_evaluation(side) for side in (baseline, current)]
    given = next((side for side in sides if isinstance(side, Evaluation)), None)
    models = [side for side in sides if not isinstance(side, Evaluation)]
    if models and data is None:
        raise UsageError("a model is measured before it is compared; give --data PATH (and --reference or --labels)")
    if reference is None and not isinstance(sides[0], Evaluation):
        reference = sides[0]

    def measured(side: Evaluation | Source) -> Evaluation:
        if isinstance(side, Evaluation):
            return side
        return evaluate(
            side,
            data,
            reference=reference,
            layers=0 if reference is None else layers,
            task=task or (None if given is None else given.task),
            preprocess=preprocess or _preprocess(given, models),
            samples=samples or (ALL_SAMPLES if given is None else int(given.data.get("requested", ALL_SAMPLES))),
            seed=seed if seed is not None else (0 if given is None else int(given.data.get("seed", 0))),
            **options,
        )

    before, after = (measured(side) for side in sides)
    return compare(before, after, max_drop=max_drop, max_drop_of=max_drop_of)


def _evaluation(side: Evaluation | Source) -> Evaluation | Source:
    """An evaluation's file as the evaluation; the rest as it is."""
    if isinstance(side, str | Path) and Path(side).suffix.lower() == _EVALUATION:
        return Evaluation.load(side)
    return side


def _preprocess(given: Evaluation | None, models: Sequence[Source]) -> Recorded | None:
    """How both sides prepare pictures: as the evaluation did, else as the first model that records it."""
    if given is not None and given.data.get("preprocess"):
        return Recorded(given.data["preprocess"])
    for model in models:
        proto = model if isinstance(model, ModelProto) else read_proto(model)
        found = recorded_preprocess(metadata_of(proto))
        if found is not None:
            return found
    return None
