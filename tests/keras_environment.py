# SPDX-License-Identifier: Apache-2.0
"""Keras 3 runs on torch here, and TensorFlow on one thread without a GPU; the frameworks' own warnings are theirs.

Imported by the conftest of every folder whose tests load them, before they are loaded.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest


def ignore_warnings(items: list[pytest.Item], folder: Path) -> None:
    """Of the tests in ``folder``."""
    for item in items:
        if folder in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
