# SPDX-License-Identifier: Apache-2.0
"""CalibrationTable: tensor -> range and what it rests on; versioned JSON (docs/calibration-table.md)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from wia_quant.affine import Range
from wia_quant.calibrators import CALIBRATORS, Calibrator
from wia_quant.errors import CalibrationError, TableError, UsageError
from wia_quant.files import replacing

FORMAT: Final = "wia-quant calibration table"
VERSION: Final = 1


@dataclass(frozen=True)
class TensorRange:
    """What calibration says of one tensor.

    Attributes:
        range: the real interval to keep.
        n_values: how many values it was taken from; 0 if it was written by hand.
        clipped: the share of these outside the range, 0 to 1; None if not known.
    """

    range: Range
    n_values: int = 0
    clipped: float | None = None


@dataclass(frozen=True)
class CalibrationTable:
    """The result of a calibration, or of a part of one.

    Attributes:
        model_sha256: of the float model that was calibrated.
        calibrator: its name in CALIBRATORS.
        parameters: the calibrator's.
        tensors: tensor name -> range. What is here counts, also where it was edited by hand.
        data: ``Summary.to_json()`` of the data: source, digest, counts, preprocessing, notes.
        n_batches: batches observed so far.
        complete: False while, or if, the calibration was interrupted.
        states: tensor name -> state of its calibrator, to go on from or to merge; may be left out.
        skipped: tensor name -> why it has no range.
    """

    model_sha256: str
    calibrator: str
    tensors: Mapping[str, TensorRange]
    parameters: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    n_batches: int = 0
    complete: bool = True
    states: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"CalibrationTable({len(self.tensors)} tensors, {self.calibrator}, {self.n_batches} batches)"

    @classmethod
    def of(
        cls,
        calibrators: Mapping[str, Calibrator],
        *,
        model_sha256: str,
        calibrator: str,
        data: Mapping[str, Any],
        n_batches: int,
        complete: bool = True,
        skipped: Mapping[str, str] | None = None,
    ) -> CalibrationTable:
        """The table of what ``calibrators`` observed; those without a value are ``skipped``."""
        reasons = dict(skipped or {})
        tensors = {}
        parameters: dict[str, float] = {}
        for name in sorted(calibrators):
            one = calibrators[name]
            parameters = one.parameters()
            try:
                tensors[name] = TensorRange(one.range(), one.n_values, one.clipped())
            except CalibrationError as e:
                if one.n_values:
                    raise CalibrationError(f"tensor {name!r}: {e}") from e
                reasons[name] = "it never held a value while the model ran on the data"
        return cls(
            model_sha256,
            calibrator,
            tensors,
            parameters,
            dict(data),
            n_batches,
            complete,
            {name: calibrators[name].state() for name in tensors},
            reasons,
        )

    @property
    def ranges(self) -> dict[str, Range]:
        """Tensor name -> range."""
        return {name: t.range for name, t in self.tensors.items()}

    def restored(self) -> dict[str, Calibrator]:
        """The calibrators as they were; TableError if the table was saved without their states."""
        if missing := set(self.tensors) - set(self.states):
            raise TableError(
                f"the table has no calibrator state of tensor {min(missing)!r}, so a calibration cannot go on from it"
            )
        make = CALIBRATORS[self.calibrator]
        restored = {}
        for name, state in self.states.items():
            try:
                restored[name] = make.from_state(dict(state))
            except (CalibrationError, UsageError, KeyError, TypeError, ValueError, OverflowError) as e:
                raise TableError(f"the calibrator state of tensor {name!r} is broken ({e})") from e
        return restored

    def with_ranges(self, ranges: Mapping[str, Range]) -> CalibrationTable:
        """These ranges in place of the calibrator's, where they differ; what is clipped is then not known."""
        known = self.tensors
        changed = {
            name: TensorRange(r, known[name].n_values if name in known else 0)
            for name, r in ranges.items()
            if name not in known or r != known[name].range
        }
        return replace(self, tensors={**self.tensors, **changed})

    def without_states(self) -> CalibrationTable:
        """The ranges alone: small, but a calibration cannot go on from it."""
        return replace(self, states={})

    def require_model(self, sha256: str) -> None:
        """TableError unless the table is of the model with that digest."""
        if sha256 != self.model_sha256:
            raise TableError(
                f"the table belongs to another model (sha256 {self.model_sha256[:12]}..., this one is "
                f"{sha256[:12]}...); calibrate this model, or give the table of it"
            )

    def to_json(self) -> str:
        """The text of the file: sorted, one line per tensor, the same bytes for the same table."""
        head = {
            "format": FORMAT,
            "version": VERSION,
            "model_sha256": self.model_sha256,
            "calibrator": self.calibrator,
            "parameters": dict(self.parameters),
            "n_batches": self.n_batches,
            "complete": self.complete,
            "data": dict(self.data),
            "skipped": dict(self.skipped),
        }
        parts = [f"{json.dumps(k)}: {_text(v, indent=2)}" for k, v in head.items()]
        tensors = {
            name: {"lo": t.range.lo, "hi": t.range.hi, "n_values": t.n_values, "clipped": t.clipped}
            for name, t in self.tensors.items()
        }
        parts += [f'"tensors": {_lines(tensors)}', f'"states": {_lines(self.states)}']
        return "{\n  " + ",\n  ".join(parts) + "\n}\n"

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the file in one step: it is there whole or not at all.

        Raises:
            OutputError: the file exists (and not ``force``) or cannot be written.
        """
        with replacing(Path(path), force=force) as temporary:
            temporary.write_text(self.to_json(), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path, *, model_sha256: str | None = None) -> CalibrationTable:
        """The table in the file, of that model if ``model_sha256`` is given.

        Raises:
            TableError: the file cannot be read, is no table of this version, or is of another model.
        """
        try:
            table = cls.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as e:
            raise TableError(f"{path}: cannot be read ({e.strerror})") from e
        except UnicodeDecodeError as e:
            raise TableError(f"{path}: not a calibration table (not text)") from e
        except TableError as e:
            raise TableError(f"{path}: {e}") from e
        if model_sha256 is not None:
            try:
                table.require_model(model_sha256)
            except TableError as e:
                raise TableError(f"{path}: {e}") from e
        return table

    @classmethod
    def from_json(cls, text: str) -> CalibrationTable:
        """The table that the text is of; TableError saying which part is wrong."""
        try:
            root = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as e:
            raise TableError(f"not JSON ({e})") from e
        if not isinstance(root, dict) or root.get("format") != FORMAT:
            raise TableError(f'not a calibration table (no "format": "{FORMAT}")')
        if root.get("version") != VERSION:
            raise TableError(
                f"version {root.get('version')!r} of the table; this program reads version {VERSION}: calibrate again"
            )
        calibrator = _get(root, "calibrator", str)
        if calibrator not in CALIBRATORS:
            raise TableError(f"calibrator {calibrator!r} is none of {', '.join(CALIBRATORS)}")
        tensors = {name: _tensor(name, entry) for name, entry in _get(root, "tensors", dict).items()}
        n_batches = _get(root, "n_batches", int, 0)
        if n_batches < 0:
            raise TableError(f"n_batches is {n_batches}, not a count")
        parameters = _get(root, "parameters", dict, {})
        for name, value in parameters.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TableError(f"parameter {name!r} is {value!r}, not a number")
        states, skipped = _get(root, "states", dict, {}), _get(root, "skipped", dict, {})
        for name, state in states.items():
            if not isinstance(state, dict):
                raise TableError(f"states of {name!r} is {state!r:.40}, not an object")
        for name, reason in skipped.items():
            if not isinstance(reason, str):
                raise TableError(f"skipped of {name!r} is {reason!r}, not a reason")
        return cls(
            _get(root, "model_sha256", str),
            calibrator,
            tensors,
            parameters,
            _get(root, "data", dict, {}),
            n_batches,
            _get(root, "complete", bool, True),
            states,
            skipped,
        )


def _tensor(name: str, entry: object) -> TensorRange:
    if not isinstance(entry, dict):
        raise TableError(f'tensor {name!r}: must be an object with "lo" and "hi"')
    ends = {}
    for end in ("lo", "hi"):
        value = entry.get(end)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise TableError(f"tensor {name!r}: {end} is {value!r:.40}, not a finite number")
        ends[end] = float(value)
    n_values, clipped = entry.get("n_values", 0), entry.get("clipped")
    if not isinstance(n_values, int) or n_values < 0:
        raise TableError(f"tensor {name!r}: n_values is {n_values!r}, not a count")
    if clipped is not None and not (isinstance(clipped, int | float) and 0.0 <= clipped <= 1.0):
        raise TableError(f"tensor {name!r}: clipped is {clipped!r}, not a share from 0 to 1")
    try:
        return TensorRange(Range(ends["lo"], ends["hi"]), n_values, clipped)
    except CalibrationError as e:
        raise TableError(f"tensor {name!r}: {e}") from e


def _get(root: Mapping[str, Any], key: str, kind: type, default: Any = None) -> Any:  # Any: JSON
    value = root.get(key, default)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TableError(f"{key} is {'missing' if value is None else repr(value)[:40]}, not {kind.__name__}")
    return value


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _text(value: object, indent: int) -> str:
    """JSON, sorted and indented, as a value that starts at column ``indent``."""
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False, allow_nan=False)
    return text.replace("\n", "\n" + " " * indent)


def _lines(entries: Mapping[str, object]) -> str:
    """JSON of a mapping, one line per entry."""
    if not entries:
        return "{}"
    lines = [
        f"    {json.dumps(k, ensure_ascii=False)}: {json.dumps(v, ensure_ascii=False, allow_nan=False)}"
        for k, v in sorted(entries.items())
    ]
    return "{\n" + ",\n".join(lines) + "\n  }"
