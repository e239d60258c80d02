# SPDX-License-Identifier: Apache-2.0
"""Which of the two Keras packages is there, and the one error when the needed one is not."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Final

from wia_quant.errors import MissingExtraError

#: The packages of the extra, and what people call them.
NAMES: Final = {
    "keras": "Keras 3",
    "tf_keras": "tf_keras",
    "tensorflow": "TensorFlow",
    "tensorflow_model_optimization": "tensorflow-model-optimization",
    "tf2onnx": "tf2onnx",
}


def is_installed(name: str) -> bool:
    """Whether a package can be imported; it is not."""
    return find_spec(name) is not None


def require(name: str) -> ModuleType:
    """The package.

    Raises:
        MissingExtraError: it is not installed, or Keras finds no backend.
    """
    try:
        return import_module(name)
    except ImportError as error:
        missing = NAMES.get(str(error.name or name).partition(".")[0], str(error.name or name))
        raise MissingExtraError(
            f"{missing} is not installed; install it with: pip install 'wia-quant[keras]'"
        ) from error


def require_any() -> None:
    """Raises MissingExtraError when there is no Keras at all."""
    if not any(map(is_installed, ("keras", "tf_keras"))):
        raise MissingExtraError("Keras is not installed; install it with: pip install 'wia-quant[keras]'")
