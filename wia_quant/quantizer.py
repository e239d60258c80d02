# SPDX-License-Identifier: Apache-2.0
"""The whole of post-training quantization: ``quantize(model, data)``."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import onnx

from wia_quant.affine import Range
from wia_quant.algorithms import ALGORITHMS, Draft
from wia_quant.calibration import calibrate
from wia_quant.calibrators import CALIBRATORS
from wia_quant.data import open_data
from wia_quant.doctor import Case, LazyRun, Notebook, Symptom, diagnose
from wia_quant.errors import CalibrationError, DataError, ModelError, UsageError
from wia_quant.exporters.base import verify
from wia_quant.exporters.onnx_ptq import export
from wia_quant.files import check_writable, replacing
from wia_quant.frameworks import is_framework_model, model_to_onnx, read_to_onnx, source_of_file
from wia_quant.graph import Model, metadata_of
from wia_quant.graph import save as save_proto
from wia_quant.grids import Rounded, Scales, WeightKey, choose_grids, group_ranges
from wia_quant.halves import too_large, write_halves
from wia_quant.keep import Kept
from wia_quant.policy import Plan, decide, mixed_ranges, scheme_named
from wia_quant.prepare import Prepared, Source, prepare
from wia_quant.recipe import metadata, to_json
from wia_quant.table import CalibrationTable
from wia_quant.targets.target import DEFAULT, Target, load_target

if TYPE_CHECKING:
    from wia_quant.runtime import Session

Progress = Callable[[int, int | None, str], None]

MODEL_SUFFIX: Final = ".onnx"
WIA_SUFFIX: Final = ".wia"
TABLE_SUFFIX: Final = ".calib.json"
#: Kept batches that the doctor may run the model on.
EXAMINED: Final = 48


@dataclass(frozen=True)
class QuantizedModel:
    """What ``quantize`` gives.

    Attributes:
        model: the QDQ model, in the wia-quantized ONNX format.
        plan: the decision for every node.
        table: the ranges it rests on.
        notes: what else a user should know, one sentence each.
        symptoms: what is suspicious about the data (doctor); empty when nothing is.
    """

    model: onnx.ModelProto = field(repr=False)
    plan: Plan
    table: CalibrationTable
    notes: tuple[str, ...] = ()
    symptoms: tuple[Symptom, ...] = ()

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the model and, beside it, its calibration table (``model.wia.onnx``: ``model.calib.json``).

        Raises:
            OutputError: a file exists (and not ``force``) or cannot be written.
        """
        path = Path(path)
        table_path = path.with_name(path.name.removesuffix(MODEL_SUFFIX).removesuffix(WIA_SUFFIX) + TABLE_SUFFIX)
        check_writable([path, table_path], force=force)
        with replacing(path, force=force) as temporary:
            save_proto(self.model, temporary, name=path.name)
        self.table.save(table_path, force=force)

    def require_made_of(self, sha256: str) -> None:
        """Nothing, where it was made of the model with this ``graph.source_sha256``.

        Raises:
            CalibrationError: it was made of another one.
        """
        if metadata_of(self.model)["wia.source_sha256"] != sha256:
            raise CalibrationError(
                "the quantized model was made of another one, or this one's weights have changed since: quantize it"
                " again"
            )

    def ranges_in(self, folded: Model) -> dict[str, Range]:
        """Tensor of the float model -> the range of its grid, which spans all tensors that share it."""
        groups = group_ranges(folded, self.plan, self.table.ranges)
        return {name: groups[activation.group] for name, activation in self.plan.activations.items()}

    def session(self, *, threads: int = 1, isa: str | None = None) -> Session:
        """The model in libwia."""
        from wia_quant.runtime import Session  # the native module is needed only here

        return Session(self.model.SerializeToString(), threads=threads, isa=isa)


def quantize(
    model: Source | object,
    data: object = None,
    *,
    calibrator: str = "moving_average",
    scheme: str = "w8a8",
    samples: int = 300,
    seed: int = 0,
    preprocess: object = None,
    table: str | Path | CalibrationTable | None = None,
    target: str | Path | Target = DEFAULT,
    exclude: Iterable[str] = (),
    workers: int = 1,
    synthetic: bool = False,
    strict: bool = False,
    examine: bool = True,
    progress: Progress | None = None,
    checkpoint: Callable[[CalibrationTable], None] | None = None,
) -> QuantizedModel:
    """Quantize a float model after training, with ranges taken from data.

    Args:
        model: a path, the bytes of a file, a ModelProto, or a framework's model (a torch module, a Keras
            model or its file); never changed.
        data: what ``open_data`` takes: a folder of pictures, .npy/.npz, an iterable of feeds ... None with a
            complete ``table``, or with ``synthetic``.
        calibrator: a name of ``CALIBRATORS``.
        scheme: a name of ``SCHEMES``.
        samples: how many samples to use at most.
        seed: of the choice of samples.
        preprocess: for pictures: a preset, a .json file or a specification.
        table: ranges from before: used as they are when complete, gone on from when interrupted.
        target: a built-in target or a .json file.
        exclude: rules that keep nodes float (exclude.py).
        workers: processes that observe.
        synthetic: random data; the ranges mean nothing for accuracy.
        strict: an unreadable picture is an error.
        examine: look for wrong preprocessing and the like in passing; see ``symptoms`` of the result.
        progress: called as ``progress(done, total, what)``.
        checkpoint: called now and then with the unfinished table, so that a crash does not lose it.

    Raises:
        WiaError: every mistake a user can make, in one line.
        InterruptedCalibration: Ctrl-C; has the table so far.
    """
    if calibrator not in CALIBRATORS:
        raise UsageError(f"unknown calibrator {calibrator!r}; there are {', '.join(CALIBRATORS)}")
    if workers < 1:
        raise UsageError(f"workers is {workers}; at least 1 is needed")
    device, rules = load_target(target), tuple(exclude)
    source = _source(model, data)
    prepared = prepare(source, opset=scheme_named(scheme).opset, exclude=rules)
    plan = decide(prepared.model, scheme, prepared.excluded, device)
    found = _given_table(table, prepared.sha256)
    ready = found is not None and found.complete
    kept: Kept | None = None
    symptoms: tuple[Symptom, ...] = ()
    if found is None or not found.complete or data is not None:
        dataset = open_data(
            data,
            prepared.model.interface(),
            preprocess=preprocess,  # type: ignore[arg-type]
            samples=samples,
            seed=seed,
            strict=strict,
            synthetic=synthetic,
        )
        notebook = Notebook()
        kept = Kept(dataset, notebook.add)
    if kept is not None and (found is None or not found.complete):
        found = calibrate(
            prepared.model.to_proto(),
            plan.observe,
            kept,
            calibrator,
            model_sha256=prepared.sha256,
            begun=found,
            save=checkpoint,
            workers=workers,
            progress=progress,
        )
        if examine and not synthetic:
            symptoms = _examined(prepared, kept, notebook)
    assert found is not None  # data without a table is an error of open_data
    choices: dict[str, Any] = {
        "calibrator": found.calibrator,
        "calibrator_parameters": dict(found.parameters),
        "seed": seed,
    }
    draft = Draft(prepared.model, plan, found.ranges, extremes=_extremes(found), finished=ready)
    draft.keep_float.update(mixed_ranges(draft.model, plan, draft.ranges))
    draft.keep_float.update(too_large(draft.model, plan.halves, draft.ranges | draft.extremes))

    def decided() -> Plan:
        return decide(draft.model, scheme, prepared.excluded, device, keep_float=draft.keep_float)

    draft.plan = decided()
    choices["algorithms"] = {}
    if kept is not None and not plan.halves:
        for name, algorithm in ALGORITHMS.items():
            choices["algorithms"][name] = algorithm(draft, kept.batches(), progress)
            draft.plan = decided()
    plan = draft.plan
    written = write(
        prepared,
        plan,
        draft.ranges,
        device,
        weights=draft.weights,
        rounded=draft.rounded,
        choices=choices,
        calibration={"data": dict(found.data), "n_batches": found.n_batches},
    )
    # The table has the ranges of the file, so that it gives the same ones without the data.
    notes = written.notes
    if kept is None and not plan.halves:
        notes += ("the table was used without data: weights and biases were not corrected on data; give the data too",)
    return QuantizedModel(written.model, plan, found.with_ranges(draft.ranges), notes, symptoms)


def _examined(prepared: Prepared, kept: Kept, notebook: Notebook) -> tuple[Symptom, ...]:
    """What the doctor says: notes of all samples, taken as they went by, and runs on the kept ones.

    A model that it cannot run is quantized all the same, and that is said.
    """
    batches = tuple(dict(batch) for batch in kept.batches()[:EXAMINED])

    def serialized() -> bytes:
        try:
            return bytes(prepared.model.to_proto().SerializeToString())
        except ValueError:  # protobuf's limit
            raise ModelError("a model above 2 GB") from None

    try:
        return tuple(diagnose(Case(LazyRun(serialized), notebook.input_name, batches, tuple(notebook.notes))))
    except (ModelError, DataError) as error:
        message = f"the data could not be examined: {error}"
        return (Symptom("confidence", message, "look at the preprocessing yourself", sure=False),)


def _source(model: object, data: object) -> Source:
    """What a framework holds or wrote, as ONNX; anything else as it is."""
    if is_framework_model(model):
        return model_to_onnx(model, data)
    file = source_of_file(model)
    return cast(Source, model) if file is None else read_to_onnx(file, str(model), ())


def _extremes(table: CalibrationTable) -> dict[str, Range]:
    """What the calibrators saw at most, where their states are in the table."""
    return {
        name: Range.around_zero(state["lo"], state["hi"])
        for name, state in table.states.items()
        if "lo" in state and "hi" in state
    }


def _given_table(table: str | Path | CalibrationTable | None, sha256: str) -> CalibrationTable | None:
    if table is None:
        return None
    if isinstance(table, CalibrationTable):
        table.require_model(sha256)
        return table
    return CalibrationTable.load(table, model_sha256=sha256)


@dataclass(frozen=True)
class Written:
    """A finished model and what was noted on the way."""

    model: onnx.ModelProto = field(repr=False)
    plan: Plan
    notes: tuple[str, ...]


def write(
    prepared: Prepared,
    plan: Plan,
    ranges: Mapping[str, Range],
    target: Target,
    *,
    weights: Mapping[WeightKey, Scales] | None = None,
    rounded: Mapping[WeightKey, Rounded] | None = None,
    choices: Mapping[str, Any] | None = None,  # Any: JSON
    calibration: Mapping[str, Any] | None = None,
) -> Written:
    """The QDQ model for known ranges. ``prepared.model`` is used up.

    Args:
        prepared: the folded model.
        plan: made for it.
        ranges: of the tensors in ``plan.observe``.
        target: recorded.
        weights: scales that an algorithm chose.
        rounded: levels that an algorithm chose.
        choices: further entries of ``wia.recipe``.
        calibration: ``wia.calibration``.
    """
    write_halves(prepared.model, plan.halves)
    exported = export(prepared.model, plan, choose_grids(prepared.model, plan, ranges, weights, rounded))
    recipe = {
        "scheme": plan.scheme,
        "folds": prepared.folds,
        "exclusions": dict(sorted(prepared.excluded.items())),
        "float": dict(sorted(Counter(d.reason for d in plan.decisions if not d.quantized).items())),
        "notes": [*plan.notes, *exported.notes],
        **(choices or {}),
    }
    stamped = exported.model
    own = metadata(
        source_sha256=prepared.sha256,
        target=target.name,
        recipe=recipe,
        calibration=calibration or {},
        tensors_sha256=ranges_sha256(ranges),
    )
    for entry in [p for p in stamped.metadata_props if p.key in own]:
        stamped.metadata_props.remove(entry)
    for key, value in own.items():
        stamped.metadata_props.add(key=key, value=value)
    verify(stamped)
    return Written(stamped, plan, tuple(recipe["notes"]))


def quantize_with_ranges(
    source: Source,
    ranges: Mapping[str, Range],
    *,
    scheme: str = "w8a8",
    exclude: Iterable[str] = (),
    target: str = DEFAULT,
) -> Written:
    """Quantize with ranges from elsewhere, by names of the folded model (``planned_tensors``)."""
    device = load_target(target)
    prepared = prepare(source, opset=scheme_named(scheme).opset, exclude=exclude)
    plan = decide(prepared.model, scheme, prepared.excluded, device)
    mixed = mixed_ranges(prepared.model, plan, ranges)
    if mixed:
        plan = decide(prepared.model, scheme, prepared.excluded, device, keep_float=mixed)
    return write(prepared, plan, ranges, device)


def ranges_sha256(ranges: Mapping[str, Range]) -> str:
    """Digest of a table of ranges."""
    table = {name: [r.lo.hex(), r.hi.hex()] for name, r in ranges.items()}
    return hashlib.sha256(to_json(table).encode()).hexdigest()
