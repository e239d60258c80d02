# SPDX-License-Identifier: Apache-2.0
"""What `wia-quant doctor` says of wrong data and of right data, on real models and real pictures.

python -m benchmarks.doctor [CASE ...] [--json FILE]

Each wrong case is the right data of its model with one mistake that users make. It is caught when the check that it
belongs to speaks; right data must leave every check silent. Exit 1 when a wrong case is missed or a right one is not.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx

from benchmarks.models import TRAINED, digits
from wia_quant.data import open_data
from wia_quant.doctor import Symptom, examine

Array = npt.NDArray[np.float32]
Pictures = list[Array]

#: Samples a case, as the command takes them by default; fewer of the large pictures, to be done in minutes.
N = 100
FEWER = {"rec": 60, "rec others": 60, "det": 16, "det others": 16}

_MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
_STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)


@dataclass(frozen=True)
class Subject:
    """A model, its input, its right data, and the way between what it takes and pixels of 0 to 255."""

    name: str
    path: Callable[[], Path]
    input: str
    samples: Callable[[], Pictures]
    pixels: Callable[[Array], Array]
    values: Callable[[Array], Array]


@dataclass(frozen=True)
class Case:
    """A set of data; ``check`` is the one that must speak, empty for right data."""

    name: str
    subject: str
    make: Callable[[Subject], Iterable[Array]]
    check: str = ""


@dataclass
class Row:
    """What was said of a case."""

    name: str
    model: str
    samples: int
    wanted: str
    said: list[dict[str, object]] = field(default_factory=list)
    ok: bool = False


def _zoo(name: str, input_name: str, part: str) -> Callable[[], Pictures]:
    def samples() -> Pictures:
        found = getattr(TRAINED[name], part)()
        return [np.asarray(f[input_name], np.float32) for f in found]

    return samples


def _model(name: str) -> Callable[[], Path]:
    return lambda: TRAINED[name].path()


def _centred(x: Array) -> Array:
    return x / 127.5 - 1


def _uncentred(x: Array) -> Array:
    return (x + 1) * 127.5


def _lite0(name: str, part: str) -> Subject:
    return Subject(
        name,
        _model("efficientnet_lite0"),
        "image",
        _zoo("efficientnet_lite0", "image", part),
        lambda x: x * 128 + 127,
        lambda p: (p - 127) / 128,
    )


def _ocr(name: str, model: str, part: str) -> Subject:
    return Subject(name, _model(model), "x", _zoo(model, "x", part), _uncentred, _centred)


def _digits(name: str, part: str) -> Subject:
    return Subject(
        name,
        lambda: digits.MODEL.path(),
        "image",
        lambda: [np.asarray(f["image"]) for f in getattr(digits, part)()],
        lambda x: x * 255,
        lambda p: p / 255,
    )


SUBJECTS = {
    s.name: s
    for s in (
        _lite0("lite0", "evaluation"),
        _lite0("lite0 others", "calibration"),
        _ocr("rec", "ppocr_rec", "evaluation"),
        _ocr("rec others", "ppocr_rec", "calibration"),
        _ocr("det", "ppocr_det", "evaluation"),
        _ocr("det others", "ppocr_det", "calibration"),
        _digits("digits", "evaluation"),
        _digits("digits others", "calibration"),
    )
}


@cache
def right(name: str) -> tuple[Array, ...]:
    """The first samples of a subject, as they should be."""
    return tuple(SUBJECTS[name].samples()[: FEWER.get(name, N)])


def _each(change: Callable[[Array, Subject], Array]) -> Callable[[Subject], Iterable[Array]]:
    return lambda s: [np.ascontiguousarray(change(x, s), np.float32) for x in right(s.name)]


def _pixels(change: Callable[[Array], Array]) -> Callable[[Subject], Iterable[Array]]:
    """A mistake made with the pixels, scaled rightly afterwards."""
    return _each(lambda x, s: s.values(change(s.pixels(x))))


def _instead(values: Callable[[Array], Array]) -> Callable[[Subject], Iterable[Array]]:
    """Another scaling of the same pixels."""
    return _each(lambda x, s: values(s.pixels(x)))


def _as_bytes(p: Array) -> npt.NDArray[np.uint8]:
    return np.clip(np.round(p), 0, 255).astype(np.uint8)


def _letterboxed(p: Array) -> Array:
    """A picture of 16:9 whole between grey bars, as a detector takes it."""
    made = p.copy()
    bar = p.shape[2] * 7 // 32
    made[:, :, :bar] = made[:, :, -bar:] = 114
    return made


def _half_another(s: Subject) -> Iterable[Array]:
    """The second half was scaled to 0..1 by another program."""
    x = right(s.name)
    half = len(x) // 2
    return [*x[:half], *(s.pixels(v) / 255 for v in x[half:])]


CASES = (
    # Wrong.
    Case("ImageNet's mean and deviation", "lite0", _instead(lambda p: (p / 255 - _MEAN) / _STD), "confidence"),
    Case("0..1, mean and deviation forgotten", "lite0", _instead(lambda p: p / 255), "confidence"),
    Case("pixels of 0..255", "lite0", _instead(lambda p: p), "confidence"),
    Case("scaled twice", "lite0", _pixels(lambda p: p / 255), "values"),
    Case("BGR for RGB", "lite0", _pixels(lambda p: p[:, ::-1]), "confidence"),
    Case("NHWC bytes reshaped to NCHW", "lite0", _pixels(lambda p: p.transpose(0, 2, 3, 1).reshape(p.shape)), "layout"),
    Case("uint8 read as int8", "lite0", _pixels(lambda p: _as_bytes(p).view(np.int8).astype(np.float32)), "wrapped"),
    Case("upside down", "lite0", _pixels(lambda p: p[:, :, ::-1, ::-1]), "confidence"),
    Case("between bars, as for a detector", "lite0", _pixels(_letterboxed), "confidence"),
    Case("20 pictures five times each", "lite0", lambda s: list(right(s.name)[:20]) * 5, "amount"),
    Case("five pictures", "lite0", lambda s: right(s.name)[:5], "amount"),
    Case("all black", "lite0", _pixels(lambda p: p * 0), "values"),
    Case("halves scaled by two programs", "lite0", _half_another, "halves"),
    Case("pixels of 0..255", "rec", _instead(lambda p: p), "confidence"),
    Case("0..1, mean and deviation forgotten", "rec", _instead(lambda p: p / 255), "confidence"),
    Case("upside down", "rec", _pixels(lambda p: p[:, :, ::-1, ::-1]), "confidence"),
    Case("pixels of 0..255", "det", _instead(lambda p: p), "confidence"),
    Case("scaled twice", "det", _pixels(lambda p: p / 255), "values"),
    Case("dark on light for light on dark", "digits", _pixels(lambda p: 255 - p), "confidence"),
    Case("rows and columns exchanged", "digits", _pixels(lambda p: p.swapaxes(2, 3)), "confidence"),
    Case("divided by 255 twice", "digits", _instead(lambda p: p / 255 / 255), "values"),
    # Right.
    Case("photographs and ImageNet's", "lite0", lambda s: right(s.name)),
    Case("other photographs", "lite0 others", lambda s: right(s.name)),
    Case("mirrored", "lite0", _pixels(lambda p: p[:, :, :, ::-1])),
    Case("grey photographs", "lite0", _pixels(lambda p: np.broadcast_to(p.mean(axis=1, keepdims=True), p.shape))),
    Case("twilight: half as bright", "lite0", _pixels(lambda p: p / 2)),
    Case("scaled to -1..1, a hair off", "lite0", _instead(_centred)),
    Case("twenty photographs", "lite0 others", lambda s: right(s.name)[:20]),
    Case("lines of text", "rec", lambda s: right(s.name)),
    Case("other lines", "rec others", lambda s: right(s.name)),
    Case("light on dark", "rec", _pixels(lambda p: 255 - p)),
    Case("pages and scenes", "det", lambda s: right(s.name)),
    Case("other scenes", "det others", lambda s: right(s.name)),
    Case("digits never seen", "digits", lambda s: right(s.name)),
    Case("digits of the training", "digits others", lambda s: right(s.name)),
    Case("digits, fainter", "digits", _pixels(lambda p: p * 0.7)),
)


def measure(case: Case) -> Row:
    """Examines the data of one case."""
    subject = SUBJECTS[case.subject]
    samples = [np.ascontiguousarray(x, np.float32) for x in case.make(subject)]
    model = onnx.load(subject.path())
    data = open_data(({subject.input: x} for x in samples), model, samples=len(samples))
    said: list[Symptom] = examine(model.SerializeToString(), data)
    row = Row(case.name, case.subject, len(samples), case.check, [asdict(s) for s in said])
    row.ok = any(s.check == case.check for s in said) if case.check else not said
    return row


def markdown(rows: Sequence[Row]) -> str:
    """One line a case."""
    lines = ["| data | model | samples | should | said | ok |", "|---|---|---|---|---|---|"]
    for r in rows:
        said = "; ".join(f"{s['check']}: {s['message']}" for s in r.said) or "-"
        lines.append(
            f"| {r.name} | {r.model} | {r.samples} | {r.wanted or 'be silent'} | {said} | {'yes' if r.ok else 'NO'} |"
        )
    wrong, correct = [r for r in rows if r.wanted], [r for r in rows if not r.wanted]
    lines.append(
        f"\n{sum(r.ok for r in wrong)} of {len(wrong)} wrong cases caught, {sum(r.ok for r in correct)} of"
        f" {len(correct)} right ones silent."
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="words in the names or models of cases; default all")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    words = arguments.cases
    chosen = [c for c in CASES if not words or any(w in f"{c.name} {c.subject}" for w in words)]
    rows = []
    for case in chosen:
        rows.append(measure(case))
        print(markdown(rows).splitlines()[len(rows) + 1], flush=True)
    print(markdown(rows).splitlines()[-1])
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    if not all(r.ok for r in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
