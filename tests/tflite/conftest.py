# SPDX-License-Identifier: Apache-2.0
"""Keras 3 runs on torch here, and TensorFlow on one thread without a GPU; the frameworks' own warnings are theirs."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore"))
            # One worker imports TensorFlow, not all.
            item.add_marker(pytest.mark.xdist_group("keras"))
