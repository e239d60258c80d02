# SPDX-License-Identifier: Apache-2.0
"""The frameworks' surroundings; see tests/keras_environment.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.keras_environment import ignore_warnings


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ignore_warnings(items, Path(__file__).parent)
