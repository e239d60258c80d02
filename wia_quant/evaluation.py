# SPDX-License-Identifier: Apache-2.0
"""The result of an evaluation: what was measured, on what, by what; a versioned JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from wia_quant.errors import WiaError
from wia_quant.evaluators.metric import Metric
from wia_quant.files import replacing

#: Raised when a reader of an older version would misread the file.
SCHEMA: Final = 2
#: Excess of error, in dB, from which on a layer is a suspect: ranges that suit other data than this come near it.
UNEXPLAINED_DB: Final = 5.0
_KIND: Final = "wia-quant/evaluation"


class EvaluationError(WiaError):
    """An evaluation file that cannot be read, or two that cannot be compared."""


@dataclass(frozen=True)
class SampleResult:
    """One sample's scores and the answer given, as ``evaluators.base.Scored``."""

    name: str
    scores: Mapping[str, float]
    prediction: str


@dataclass(frozen=True)
class LayerError:
    """How far one layer is from its float self.

    Attributes:
        node: the node's name.
        op_type: its operator.
        tensor: the output compared.
        local_sqnr_db: with float inputs: the error that this layer makes itself.
        expected_sqnr_db: what ``local_sqnr_db`` would be if the layer's error were no more than what rounding its
            weights, and its output to the best grid of that type, costs.
        seen_sqnr_db: the same of a layer that reads it, whose inputs alone have an error.
        excess_db: how much more error its weights or its grid make, and its readers see, than rounding explains: a
            wrong scale, axis or range.
        total_sqnr_db: with quantized inputs: its own error and all that came before.
        cosine: between the layer's output and the float one, with quantized inputs.
        clipped: share of the float output's values outside the quantized range, 0 to 1.
    """

    node: str
    op_type: str
    tensor: str
    local_sqnr_db: float
    expected_sqnr_db: float
    seen_sqnr_db: float
    excess_db: float
    total_sqnr_db: float
    cosine: float
    clipped: float

    @property
    def felt_sqnr_db(self) -> float:
        """Its own SQNR, or that of its readers where they do not see the error."""
        return max(self.local_sqnr_db, self.seen_sqnr_db)


def worst_first(layers: Iterable[LayerError]) -> list[LayerError]:
    """Layers whose error rounding does not explain, by how much; then the others, the largest error first."""
    return sorted(
        layers,
        key=lambda x: (0, -x.excess_db) if x.excess_db > UNEXPLAINED_DB else (1, x.felt_sqnr_db),
    )


@dataclass(frozen=True, repr=False)
class Evaluation:
    """Everything one evaluation found; equal runs give equal objects but for ``latency_ms``.

    Attributes:
        task: the evaluator's name.
        model: ``path``, ``sha256``, ``bytes``.
        reference: the same of the float model; empty without one.
        executor: ``name``, ``version``, ``isa``, ``threads``.
        data: ``source``, ``digest``, ``n_samples``, ``skipped``.
        metrics: the headline first.
        samples: in the order of the data.
        layers: in the order of the graph; empty unless asked for.
        details: the evaluator's own, for a report.
        latency_ms: ``median`` and ``p90`` of one sample; empty when not measured.
    """

    task: str
    model: Mapping[str, Any]
    reference: Mapping[str, Any]
    executor: Mapping[str, Any]
    data: Mapping[str, Any]
    metrics: tuple[Metric, ...]
    samples: tuple[SampleResult, ...] = ()
    layers: tuple[LayerError, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    latency_ms: Mapping[str, float] = field(default_factory=dict)

    def __repr__(self) -> str:
        metrics = ", ".join(f"{m.name} {m.value:.4g}{m.unit} ({m.lo:.4g} .. {m.hi:.4g})" for m in self.metrics)
        return f"<Evaluation {self.task} on {self.data['n_samples']} samples: {metrics}>"

    def to_json(self) -> str:
        """The file's text; keys in the order of the fields, so that two files diff line by line."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """The file as a dict."""
        found: dict[str, Any] = {"kind": _KIND, "schema": SCHEMA} | asdict(self)
        found["metrics"] = [{k: _number(v) for k, v in m.items()} for m in found["metrics"]]
        return found

    @staticmethod
    def from_json(text: str, name: str = "evaluation") -> Evaluation:
        """The object that ``to_json`` wrote.

        Raises:
            EvaluationError: not JSON, not an evaluation, or of another schema; names ``name``.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise EvaluationError(f"{name} is not JSON: {error}") from error
        if not isinstance(found, dict) or found.get("kind") != _KIND:
            raise EvaluationError(f"{name} is not an evaluation; make one with wia-quant evaluate -o")
        if found.get("schema") != SCHEMA:
            raise EvaluationError(f"{name} has schema {found.get('schema')}; this version reads {SCHEMA}")
        try:
            return Evaluation(
                task=found["task"],
                model=found["model"],
                reference=found["reference"],
                executor=found["executor"],
                data=found["data"],
                metrics=tuple(_metric(m) for m in found["metrics"]),
                samples=tuple(SampleResult(**s) for s in found["samples"]),
                layers=tuple(LayerError(**x) for x in found["layers"]),
                details=found["details"],
                latency_ms=found["latency_ms"],
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise EvaluationError(f"{name} lacks or has a field too many: {error}") from error

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Writes the JSON file at once or not at all."""
        with replacing(Path(path), force=force) as temporary:
            temporary.write_text(self.to_json(), encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Evaluation:
        """Reads a file that ``save`` wrote."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise EvaluationError(f"cannot read {path}: {error}") from error
        return Evaluation.from_json(text, str(path))


def _number(value: Any) -> Any:
    """JSON has no NaN: a metric without a value is null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _metric(found: Mapping[str, Any]) -> Metric:
    fields: dict[str, Any] = {k: math.nan if v is None else v for k, v in found.items()}
    return Metric(**fields)
