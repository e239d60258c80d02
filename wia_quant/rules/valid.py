# SPDX-License-Identifier: Apache-2.0
"""The ONNX checker accepts the model, types and shapes included."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from wia_quant.qdq import ModelView
from wia_quant.rules.base import Place, Rule, Severity


def find(model: ModelView) -> Iterator[Place]:
    """At most one breach: the checker stops at the first."""
    try:
        onnx.checker.check_model(model.model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())
        yield Place(f"onnx.checker: {reason[:400]}", "repair the model in the tool that wrote it")
    except ValueError:
        # Serialized models end at 2 GB; the checker then wants a path. Everything else here still applies.
        return


RULE = Rule("passes onnx.checker.check_model(full_check=True)", Severity.ERROR, find)
