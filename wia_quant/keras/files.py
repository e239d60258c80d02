# SPDX-License-Identifier: Apache-2.0
"""Files that Keras writes: .keras, .h5 and SavedModel folders, read with the Keras that wrote them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any, Final

import onnx

from wia_quant.errors import ModelError
from wia_quant.keras.frameworks import is_installed, require, require_any
from wia_quant.keras.trace import Keras
from wia_quant.keras.walk import to_onnx

#: Only what tf_keras saves into a SavedModel: its layers, so that they can be walked.
_KERAS_METADATA: Final = "keras_metadata.pb"


def read(path: str | Path, *, channels_first_io: bool = False) -> onnx.ModelProto:
    """The ONNX form of a saved Keras model.

    Raises:
        ModelError: the file cannot be read.
        MissingExtraError: Keras, or for a SavedModel without layers tf2onnx, is not installed.
    """
    path = Path(path)
    if path.is_dir() and not (path / _KERAS_METADATA).is_file():
        return _with_tf2onnx(path)
    return to_onnx(load(path), channels_first_io=channels_first_io)


def load(path: str | Path) -> Keras:
    """The model, by the Keras that wrote it; with our layers and those of tensorflow-model-optimization known.

    Raises:
        ModelError: the file cannot be read.
    """
    path = Path(path)
    require_any()
    if not path.exists():
        raise ModelError(f"{path} does not exist")
    name = _framework(path)
    module: Any = require(name)
    try:
        with _scope(name, path):
            model = module.models.load_model(path if name == "keras" else str(path), compile=False)
            return _evaluating_as_its_file(model) if name == "tf_keras" else model
    except Exception as error:  # Keras raises many kinds
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(f"{path}: {name} cannot load it: {reason[:300]}") from error


def _framework(path: Path) -> str:
    """Keras 2 files are tf_keras', where that is installed; Keras 3 reads many of them, too."""
    if path.is_dir():
        return "tf_keras"
    try:
        version = _version(path)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ModelError(f"{path} is no file that Keras wrote: {error}") from error
    if version.startswith("3") or not is_installed("tf_keras"):
        return "keras"
    return "tf_keras"


def _version(path: Path) -> str:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return str(json.loads(archive.read("metadata.json"))["keras_version"])
    h5py: Any = require("h5py")
    with h5py.File(path, "r") as file:
        found = file.attrs.get("keras_version", "2")
        return found.decode() if isinstance(found, bytes) else str(found)


@contextlib.contextmanager
def _scope(name: str, path: Path) -> Any:
    """Our layers, and the classes of tensorflow-model-optimization where the file has them."""
    if name == "keras":
        require("wia_quant.keras.keras3.prepare")
        yield
    elif _mentions_quantization(path) and is_installed("tensorflow_model_optimization"):
        scheme: Any = require("wia_quant.keras.tf_keras.scheme")
        with scheme.quantize_scope():
            yield
    else:
        yield


def _evaluating_as_its_file(model: Keras) -> Keras:
    """What was saved by a release that did not do so, too."""
    of_tfmot = sys.modules.get("wia_quant.keras.tf_keras.model")
    return of_tfmot.linked(model) if of_tfmot is not None and of_tfmot.is_ours(model) else model


def _mentions_quantization(path: Path) -> bool:
    if path.is_dir():
        return b"Quantize" in (path / _KERAS_METADATA).read_bytes()
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return b"Quantize" in archive.read("config.json")
    h5py: Any = require("h5py")
    with h5py.File(path, "r") as file:
        return "Quantize" in str(file.attrs.get("model_config", ""))


def _with_tf2onnx(path: Path) -> onnx.ModelProto:
    """A SavedModel of TensorFlow functions without layers."""
    require("tf2onnx")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model.onnx"
        command = [sys.executable, "-m", "tf2onnx.convert", "--saved-model", str(path), "--output", str(out)]
        done = subprocess.run([*command, "--opset", "18"], capture_output=True, text=True, check=False)
        if done.returncode or not out.is_file():
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise ModelError(f"{path}: tf2onnx cannot convert it: {last[:300]}")
        return onnx.load(out)
