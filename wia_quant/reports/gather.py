# SPDX-License-Identifier: Apache-2.0
"""Measures everything that a report shows: a quantized model against its float one, on data."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from wia_quant.data import Batch, open_data
from wia_quant.doctor import Symptom, examine
from wia_quant.evaluation import Evaluation, worst_first
from wia_quant.graph import metadata_of, read_proto
from wia_quant.labels import labels_of_folders
from wia_quant.layers import LayerProbe, probe_layers
from wia_quant.measurement import ALL_SAMPLES, Source, evaluate
from wia_quant.preprocess import Preprocess
from wia_quant.qdq import view_model
from wia_quant.recipe import recorded_preprocess
from wia_quant.rules import Finding, check_model
from wia_quant.runtime import Session
from wia_quant.sensitivity import Sensitivity, sensitivities

Progress = Callable[[int, int | None, str], None]

#: Layers whose histograms and sensitivity are shown: those with the largest error of their own.
N_WORST: Final = 12
#: Samples that layers are measured on, and sensitivities, unless the caller asks for more.
LAYER_SAMPLES: Final = 16
SENSITIVITY_SAMPLES: Final = 4
#: Samples that the data is examined on.
DOCTOR_SAMPLES: Final = 64
#: The report's schema, raised when a reader of an older version would misread it.
SCHEMA: Final = 1


@dataclass(frozen=True)
class Histogram:
    """How one tensor's values lie on the grid chosen for them.

    Attributes:
        node: the layer.
        counts: in each bin.
        edges: of the bins, one more than bins.
        lo: smallest real on the grid.
        hi: largest real on the grid.
    """

    node: str
    counts: tuple[int, ...]
    edges: tuple[float, ...]
    lo: float
    hi: float


@dataclass(frozen=True)
class Flip:
    """A sample whose answer changed: name, the float model's answer, the quantized one's, the file if a picture."""

    name: str
    before: str
    after: str
    picture: str = ""


@dataclass(frozen=True)
class Report:
    """Everything that was measured.

    Attributes:
        reference: the float model, by the task's metrics; None without labels.
        quantized: the quantized model: metrics, samples, layers.
        agreement: the two compared output by output.
        activations: histograms of the worst layers.
        weights: histograms of their weights' levels.
        sensitivity: what each of the worst layers costs.
        flips: samples whose answer changed.
        findings: breaches of the format.
        symptoms: of the data.
        runtime: nodes, kernels, memory as libwia has them.
        recipe: the quantizer's choices, as the file records them.
    """

    reference: Evaluation | None
    quantized: Evaluation
    agreement: Evaluation
    activations: tuple[Histogram, ...]
    weights: tuple[Histogram, ...]
    sensitivity: tuple[Sensitivity, ...]
    flips: tuple[Flip, ...]
    findings: tuple[Finding, ...]
    symptoms: tuple[Symptom, ...]
    runtime: Mapping[str, Any]
    recipe: Mapping[str, Any]
    edges: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def to_dict(self) -> dict[str, Any]:
        """report.json."""
        return {
            "kind": "wia-quant/report",
            "schema": SCHEMA,
            "reference": None if self.reference is None else self.reference.to_dict(),
            "quantized": self.quantized.to_dict(),
            "agreement": self.agreement.to_dict(),
            "activations": [asdict(h) for h in self.activations],
            "weights": [asdict(h) for h in self.weights],
            "sensitivity": [asdict(s) for s in self.sensitivity],
            "flips": [asdict(f) for f in self.flips],
            "findings": [asdict(f) | {"severity": f.severity.value} for f in self.findings],
            "symptoms": [asdict(s) for s in self.symptoms],
            "runtime": dict(self.runtime),
            "recipe": dict(self.recipe),
        }

    def to_json(self) -> str:
        """report.json as text."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"

    def to_html(self) -> str:
        """report.html as text: one page that shows everything and needs nothing else."""
        from wia_quant.reports.html import render_html  # drawing needs an extra, and knows this module

        return render_html(self)

    def to_markdown(self) -> str:
        """The summary for a pull request."""
        from wia_quant.reports.summary import render_markdown  # as above

        return render_markdown(self)

    def save(self, folder: str | Path, *, force: bool = False) -> tuple[Path, ...]:
        """Writes report.html, report.json and report.md into the folder, which is made; their paths.

        Raises:
            OutputError: one of them is there (and not ``force``) or cannot be written.
        """
        from wia_quant.reports.write import write_report  # as above

        return write_report(self, folder, force=force)

    def show(self) -> None:
        """Shows the page in a notebook's cell; as the last value of a cell a report shows itself.

        Raises:
            MissingExtraError: there is no notebook.
        """
        from wia_quant.reports.notebook import show  # as above

        show(self)

    def _repr_html_(self) -> str:
        from wia_quant.reports.notebook import frame  # as above

        return frame(self)


def report(
    model: Source,
    reference: Source,
    data: object,
    *,
    labels: str | Path | Mapping[str, object] | None = None,
    task: str | None = None,
    preprocess: str | Path | Mapping[str, Any] | Preprocess | None = None,
    samples: int = ALL_SAMPLES,
    layer_samples: int = LAYER_SAMPLES,
    seed: int = 0,
    batch: int = 1,
    workers: int = 1,
    threads: int = 1,
    strict: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Measures everything there is to say about ``model`` against its float model ``reference``.

    ``report(...).save("folder")`` writes the page; in a notebook a report shows itself. Arguments and errors as
    ``evaluate``; ``layer_samples`` are those that layers are measured on.
    """
    quantized, floats = read_proto(model), read_proto(reference)
    spec = preprocess or recorded_preprocess(metadata_of(quantized))
    common: dict[str, Any] = {
        "preprocess": spec,
        "samples": samples,
        "seed": seed,
        "batch": batch,
        "workers": workers,
        "threads": threads,
        "strict": strict,
        "progress": progress,
    }
    agreement = evaluate(model, data, reference=reference, task="agreement", **common)
    before: Evaluation | None = None
    after = agreement
    labelled = task not in (None, "agreement") or labels is not None or _has_class_folders(data)
    if labelled:
        before = evaluate(reference, data, labels=labels, task=task, executor="onnxruntime", **common)
        after = evaluate(model, data, labels=labels, task=task, **common)

    def batches(n: int) -> Iterator[Batch]:
        return iter(open_data(data, floats, preprocess=spec, samples=n, seed=seed, strict=strict))

    probe = probe_layers(quantized, floats, batches(layer_samples), progress, threads)
    layers = probe.errors()
    worst = [x.node for x in worst_first(layers)[:N_WORST]]
    found = sensitivities(quantized, floats, worst, batches(SENSITIVITY_SAMPLES), progress, threads)
    session = Session(quantized.SerializeToString(), threads=threads)
    session.run(None, dict(next(batches(1))))
    return Report(
        reference=before,
        quantized=replace(after, layers=layers),
        agreement=agreement,
        activations=tuple(_activation_histograms(probe, worst)),
        weights=tuple(_weight_histograms(quantized, worst)),
        sensitivity=found,
        flips=tuple(_flips(before, after, agreement, data)),
        findings=tuple(check_model(quantized)),
        symptoms=tuple(examine(floats.SerializeToString(), batches(DOCTOR_SAMPLES))),
        runtime=session.describe(),
        recipe=_recipe(quantized),
        edges=tuple(_edges(quantized, {x.node for x in layers})),
    )


def _has_class_folders(data: object) -> bool:
    return isinstance(data, str | Path) and labels_of_folders(data) is not None


def _activation_histograms(probe: LayerProbe, nodes: list[str]) -> Iterator[Histogram]:
    found = probe.histograms()
    reach = {layer.node: (layer.lo, layer.hi) for layer in probe.layers}
    for node in nodes:
        if node in found:
            counts, edges = found[node]
            yield Histogram(node, tuple(counts.tolist()), tuple(edges.tolist()), *reach[node])


def _weight_histograms(quantized: ModelProto, nodes: list[str]) -> Iterator[Histogram]:
    for view, node in view_model(quantized).nodes():
        if node.name not in nodes or len(node.input) < 2:
            continue
        w = view.dequantized.get(node.input[1])
        if w is None or w.levels is None:
            continue
        lo, hi = int(w.levels.min(initial=0)), int(w.levels.max(initial=0))
        edges = np.linspace(-128, 128, 65)
        counts: npt.NDArray[np.int64] = np.histogram(w.levels, edges)[0]
        yield Histogram(node.name, tuple(counts.tolist()), tuple(edges.tolist()), float(lo), float(hi))


def _flips(before: Evaluation | None, after: Evaluation, agreement: Evaluation, data: object) -> Iterator[Flip]:
    root = Path(data) if isinstance(data, str | Path) else None
    if before is not None:
        old = {s.name: s.prediction for s in before.samples}
        changed = [(s.name, old[s.name], s.prediction) for s in after.samples if old.get(s.name) != s.prediction]
    else:
        changed = [
            (s.name, "", s.prediction)
            for s in agreement.samples
            if any(k.startswith("top1_agreement/") and v < 1 for k, v in s.scores.items())
        ]
    for name, was, now in changed:
        file = "" if root is None else str(root / name if root.is_dir() else root)
        yield Flip(name, was, now, file if file and Path(file).is_file() else "")


def _recipe(quantized: ModelProto) -> dict[str, Any]:
    found = metadata_of(quantized)
    kept: dict[str, Any] = {k: found[k] for k in ("wia.tool", "wia.target") if k in found}
    for key in ("wia.recipe", "wia.calibration"):
        try:
            kept[key] = json.loads(found.get(key, "{}"))
        except ValueError:
            kept[key] = found[key]
    return kept


def _edges(quantized: ModelProto, layers: set[str]) -> Iterator[tuple[str, str]]:
    """Which layer reads which: nodes between two layers are passed through."""
    view = view_model(quantized).graphs[0]
    source: dict[str, set[str]] = {v.name: {v.name} & layers for v in view.graph.input}
    for node in view.graph.node:
        before = set().union(*(source.get(name, set()) for name in node.input)) if node.input else set()
        if node.name in layers:
            for other in sorted(before):
                yield other, node.name
            before = {node.name}
        for name in node.output:
            source[name] = before
