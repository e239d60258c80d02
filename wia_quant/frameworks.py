# SPDX-License-Identifier: Apache-2.0
"""Models of training frameworks as ONNX: which module of ours reads which, imported only when such a model is met.

A module named here has ``model_to_onnx(model, data)`` for a model in memory and ``read_to_onnx(what, shapes)`` for one
that a command line names; both give a ModelProto.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import onnx

#: The class that models of a framework derive from -> the module that reads them.
MODEL_CLASSES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torch.nn.modules.module.Module": "wia_quant.torch.source",
        "keras.src.models.model.Model": "wia_quant.keras.source",
        "tf_keras.src.engine.training.Model": "wia_quant.keras.source",
    }
)

#: What ``wia-quant export --NAME`` reads -> the module that reads it.
SOURCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "torch": "wia_quant.torch.source",
        "keras": "wia_quant.keras.source",
        "saved-model": "wia_quant.keras.source",
        "tflite": "wia_quant.tflite.source",
    }
)

#: Ending of a file's name -> the name in SOURCES of what reads it.
FILES: Final[Mapping[str, str]] = MappingProxyType(
    {".keras": "keras", ".h5": "keras", ".hdf5": "keras", ".tflite": "tflite"}
)

#: The file that makes a folder a SavedModel.
SAVED_MODEL: Final = "saved_model.pb"


def is_framework_model(model: object) -> bool:
    """Whether ``model`` is one of a framework in the table; imports nothing."""
    return _reader(model) is not None


def model_to_onnx(model: object, data: object) -> onnx.ModelProto:
    """A framework's float model in memory as ONNX; ``data`` (as for ``quantize``) shows the shapes of its inputs."""
    reader = _reader(model)
    assert reader is not None
    found: onnx.ModelProto = import_module(reader).model_to_onnx(model, data)
    return found


def source_of_file(path: object) -> str | None:
    """The name in SOURCES of what reads this file or folder; None for ONNX, and for what is no path."""
    if not isinstance(path, str | Path):
        return None
    if (Path(path) / SAVED_MODEL).is_file():
        return "saved-model"
    return FILES.get(Path(path).suffix.lower())


def read_to_onnx(source: str, what: str, shapes: Sequence[str]) -> onnx.ModelProto:
    """What a command line names, as ONNX.

    Args:
        source: a name of ``SOURCES``.
        what: a file, or a place in Python; the source's own.
        shapes: of the inputs in their order, "1,3,224,224" or "1,128:int64"; none where the source knows them.
    """
    found: onnx.ModelProto = import_module(SOURCES[source]).read_to_onnx(what, shapes)
    return found


def _reader(model: object) -> str | None:
    classes: Any = type(model).__mro__
    names = (f"{c.__module__}.{c.__qualname__}" for c in classes)
    return next((MODEL_CLASSES[name] for name in names if name in MODEL_CLASSES), None)
