# SPDX-License-Identifier: Apache-2.0
"""Whatever goes wrong: one line that says what, where and what to do; nothing overwritten, nothing half written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.conftest import Cli, snapshot
from wia_quant.cli.app import invoke

DEFAULT = ("calibrate", "model.onnx", "--data", "pictures")


def nothing(folder: Path) -> None:
    """The folder as it is."""


def no_pictures(folder: Path) -> None:
    for path in (folder / "pictures").iterdir():
        path.unlink()


def only_text(folder: Path) -> None:
    no_pictures(folder)
    (folder / "pictures" / "notes.txt").write_text("no picture")


def only_broken(folder: Path) -> None:
    no_pictures(folder)
    one_broken(folder)


def one_broken(folder: Path) -> None:
    (folder / "pictures" / "a.png").write_bytes(b"\x89PNG\r\n")


def wrong_shape(folder: Path) -> None:
    np.save(folder / "data.npy", np.zeros((4, 5, 16, 16), np.float32))


def wrong_name(folder: Path) -> None:
    np.savez(folder / "data.npz", other=np.zeros((4, 3, 16, 16), np.float32))


def not_a_number(folder: Path) -> None:
    np.save(folder / "data.npy", np.full((4, 3, 16, 16), np.nan, np.float32))


def truncated_model(folder: Path) -> None:
    model = folder / "model.onnx"
    model.write_bytes(model.read_bytes()[:200])


def empty_model(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"")


def text_model(folder: Path) -> None:
    (folder / "model.onnx").write_text("this is no model\n" * 10)


def no_model(folder: Path) -> None:
    (folder / "model.onnx").unlink()


def two_models(folder: Path) -> None:
    (folder / "second.onnx").write_bytes((folder / "model.onnx").read_bytes())


def output_there(folder: Path) -> None:
    (folder / "model.wia.onnx").write_text("precious")


def table_there(folder: Path) -> None:
    (folder / "model.calib.json").write_text("precious")


def broken_table(folder: Path) -> None:
    (folder / "table.json").write_text('{"version": 1, ')


def other_table(folder: Path) -> None:
    (folder / "table.json").write_text('{"what": "something else"}')


def broken_spec(folder: Path) -> None:
    (folder / "spec.json").write_text('{"colour": "RGB"}')


@dataclass(frozen=True)
class Mistake:
    """What the folder is, what is typed, and what must be said."""

    prepare: Callable[[Path], None]
    arguments: tuple[str, ...]
    code: int
    says: str


FROM_TABLE = ("calibrate", "model.onnx", "--table", "table.json")
FROM_ARRAY = ("calibrate", "model.onnx", "--data", "data.npy")
RUN = ("run", "model.onnx", "--data", "pictures")

MISTAKES = {
    "no data": Mistake(nothing, ("calibrate", "model.onnx"), 2, "--data"),
    "data and synthetic": Mistake(nothing, (*DEFAULT, "--synthetic"), 2, "--synthetic"),
    "data that is not there": Mistake(nothing, ("calibrate", "model.onnx", "--data", "nowhere"), 1, "nowhere"),
    "an empty folder": Mistake(no_pictures, DEFAULT, 1, "pictures"),
    "a folder without pictures": Mistake(only_text, DEFAULT, 1, "pictures"),
    "only broken pictures": Mistake(only_broken, DEFAULT, 1, "a.png"),
    "a broken picture with --strict": Mistake(one_broken, (*DEFAULT, "--strict"), 1, "a.png"),
    "a shape that cannot fit": Mistake(wrong_shape, FROM_ARRAY, 1, "x"),
    "an input of another name": Mistake(wrong_name, ("calibrate", "model.onnx", "--data", "data.npz"), 1, "other"),
    "not a number": Mistake(not_a_number, FROM_ARRAY, 1, "NaN"),
    "a truncated model": Mistake(truncated_model, DEFAULT, 1, "model.onnx"),
    "an empty model": Mistake(empty_model, DEFAULT, 1, "model.onnx"),
    "a model that is text": Mistake(text_model, DEFAULT, 1, "model.onnx"),
    "a model that is not there": Mistake(no_model, DEFAULT, 1, "model.onnx"),
    "a model that is a folder": Mistake(nothing, ("calibrate", "pictures", "--data", "pictures"), 1, "pictures"),
    "no model in the folder": Mistake(no_model, ("calibrate", "--data", "pictures"), 2, "no .onnx"),
    "two models in the folder": Mistake(two_models, ("calibrate", "--data", "pictures"), 2, "second.onnx"),
    "the output is there": Mistake(output_there, DEFAULT, 1, "--force"),
    "the table is there": Mistake(table_there, DEFAULT, 1, "--force"),
    "no such output folder": Mistake(nothing, (*DEFAULT, "-o", "no/such/out.onnx"), 1, "no/such"),
    "the output is the model": Mistake(nothing, (*DEFAULT, "-o", "model.onnx", "--force"), 2, "model.onnx"),
    "a broken table": Mistake(broken_table, FROM_TABLE, 1, "table.json"),
    "another kind of table": Mistake(other_table, FROM_TABLE, 1, "table.json"),
    "no such table": Mistake(nothing, FROM_TABLE, 1, "table.json"),
    "an unknown calibrator": Mistake(nothing, (*DEFAULT, "--calibrator", "magic"), 2, "moving_average"),
    "an unknown scheme": Mistake(nothing, (*DEFAULT, "--scheme", "w1a1"), 2, "w8a8"),
    "an unknown target": Mistake(nothing, (*DEFAULT, "--target", "toaster"), 2, "wia-cpu"),
    "an unknown preset": Mistake(nothing, (*DEFAULT, "--preprocess", "magic"), 2, "imagenet"),
    "an unknown field of a spec": Mistake(broken_spec, (*DEFAULT, "--preprocess", "spec.json"), 2, "colour"),
    "a rule that matches nothing": Mistake(nothing, (*DEFAULT, "--exclude", "type:Foo"), 1, "type:Foo"),
    "a regular expression that is none": Mistake(nothing, (*DEFAULT, "--exclude", "regex:("), 1, "regex:("),
    "no samples": Mistake(nothing, (*DEFAULT, "--samples", "0"), 2, "--samples"),
    "no workers": Mistake(nothing, (*DEFAULT, "--workers", "0"), 2, "--workers"),
    "an unknown option": Mistake(nothing, (*DEFAULT, "--fast"), 2, "--fast"),
    "an unknown command": Mistake(nothing, ("quantise",), 2, "quantise"),
    "run without data": Mistake(nothing, ("run", "model.onnx"), 2, "--data"),
    "run of no model": Mistake(no_model, RUN, 1, "model.onnx"),
    "run of a text": Mistake(text_model, RUN, 1, "model.onnx"),
    "run with an unknown instruction set": Mistake(nothing, (*RUN, "--isa", "abacus"), 2, "abacus"),
    "bench of no model": Mistake(no_model, ("bench", "model.onnx"), 1, "model.onnx"),
    "bench against no model": Mistake(nothing, ("bench", "model.onnx", "--against", "nowhere.onnx"), 1, "nowhere"),
    "a shape that is none": Mistake(nothing, ("bench", "model.onnx", "--shape", "x=1,a"), 2, "x=1,a"),
    "a shape of another input": Mistake(nothing, ("bench", "model.onnx", "--shape", "z=1"), 2, "z"),
    "a shape with too few axes": Mistake(nothing, ("bench", "model.onnx", "--shape", "x=1,3,16"), 2, "[N, 3, 16, 16]"),
    "a shape with other channels": Mistake(
        nothing, ("bench", "model.onnx", "--shape", "x=1,5,16,16"), 2, "x=1,3,16,16"
    ),
    "a shape of more memory than there is": Mistake(
        nothing, ("bench", "model.onnx", "--shape", "x=99999999999,3,16,16"), 2, "GiB"
    ),
    "inspect of no model": Mistake(no_model, ("inspect", "model.onnx"), 1, "model.onnx"),
    "inspect of a text": Mistake(text_model, ("inspect", "model.onnx"), 1, "model.onnx"),
    "inspect of an empty file": Mistake(empty_model, ("inspect", "model.onnx"), 1, "model.onnx"),
    "a demo folder that is there": Mistake(nothing, ("demo", "-o", "pictures"), 1, "--force"),
    "a demo over another folder": Mistake(nothing, ("demo", "-o", "pictures", "--force"), 1, "not made by the demo"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_line_and_harms_nothing(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    mistake = MISTAKES[name]
    mistake.prepare(folder)
    before = snapshot(folder)
    monkeypatch.chdir(folder)
    code = invoke(mistake.arguments)
    out, err = capfd.readouterr()
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, err
    assert mistake.says in errors[0]
    assert code == mistake.code, err
    assert out == ""
    assert snapshot(folder) == before


@pytest.mark.parametrize("name", ["no data", "a truncated model", "the output is there", "no samples"])
def test_the_shell_sees_the_same(cli: Cli, folder: Path, name: str) -> None:
    mistake = MISTAKES[name]
    mistake.prepare(folder)
    done = cli(*mistake.arguments)
    assert (done.code, done.out) == (mistake.code, "")
    assert "Traceback" not in done.err
    assert mistake.says in done.err


def test_debug_shows_the_traceback(cli: Cli) -> None:
    done = cli("inspect", "nowhere.onnx", "--debug")
    assert done.code == 1
    assert "Traceback" in done.err
