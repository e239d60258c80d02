# SPDX-License-Identifier: Apache-2.0
"""Results are written whole or not at all, and never over another file unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from wia_quant.files import OutputError, check_writable, replacing


def interrupted_while_writing(path: Path) -> None:
    with replacing(path, force=True) as temporary:
        temporary.write_text("half of a n")
        raise KeyboardInterrupt


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "model.wia.onnx"
    path.write_text("old")
    with pytest.raises(OutputError, match="--force"):
        check_writable([path])
    with pytest.raises(OutputError, match="--force"), replacing(path):
        pass
    assert path.read_text() == "old"


def test_force_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "model.wia.onnx"
    path.write_text("old")
    with replacing(path, force=True) as temporary:
        temporary.write_text("new")
    assert path.read_text() == "new"


def test_an_interruption_leaves_the_old_file_and_no_half_of_a_new_one(tmp_path: Path) -> None:
    path = tmp_path / "model.wia.onnx"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        interrupted_while_writing(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("name", "says"),
    [("missing/out.onnx", "does not exist"), (".", "is a folder")],
    ids=["no such folder", "a folder"],
)
def test_a_place_that_cannot_be_written_is_said_before_the_work(tmp_path: Path, name: str, says: str) -> None:
    with pytest.raises(OutputError, match=says):
        check_writable([tmp_path / name])


def test_a_new_file_can_be_read_by_others_as_the_umask_says(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    with replacing(tmp_path / "out") as temporary:
        temporary.write_text("x")
    assert (tmp_path / "out").stat().st_mode == plain.stat().st_mode
