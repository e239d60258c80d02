# SPDX-License-Identifier: Apache-2.0
"""``import wia_quant`` brings no framework and takes hardly longer than numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: What importing the package may cost beyond numpy, in seconds of CPU time.
LIMIT_S = 0.5
FRAMEWORKS = {"torch", "tensorflow", "keras", "tf_keras", "onnx", "onnxruntime", "typer", "rich", "PIL", "scipy"}


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


def cost(module: str) -> float:
    code = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
    return min(float(fresh(code)) for _ in range(3))


def test_no_framework_is_loaded() -> None:
    loaded = set(json.loads(fresh("import wia_quant, sys, json; print(json.dumps(list(sys.modules)))")))
    assert not loaded & FRAMEWORKS


def test_the_import_costs_little_more_than_numpy() -> None:
    assert cost("numpy, wia_quant") < cost("numpy") + LIMIT_S


def test_every_public_name_is_there() -> None:
    assert fresh("import wia_quant; print([n for n in wia_quant.__all__ if not hasattr(wia_quant, n)])") == "[]\n"


def test_public_names_do_not_depend_on_the_order_of_imports() -> None:
    # A submodule of the same name would hide a function once something imports it.
    code = """
import wia_quant
from importlib import import_module
for module in set(wia_quant._PUBLIC.values()):
    import_module(module)
print([n for n in wia_quant._PUBLIC if type(getattr(wia_quant, n)).__name__ == "module"])
"""
    assert fresh(code) == "[]\n"
