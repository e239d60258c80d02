# SPDX-License-Identifier: Apache-2.0
"""Is a QDQ model of the wia format? One file a rule, and the table of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from onnx import ModelProto

from wia_quant.qdq import view_model
from wia_quant.rules import (
    activation_grid,
    axis_size,
    bias,
    constant_parameters,
    dangling,
    float_copy,
    metadata,
    missing,
    moved,
    names,
    opset,
    overflow,
    repeated,
    scale_value,
    valid,
    weight_axis,
    weight_narrow,
    weight_zero_point,
)
from wia_quant.rules.base import Finding, Rule, Severity

__all__ = ["RULES", "Finding", "Rule", "Severity", "check_model", "fix_model"]

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "valid": valid.RULE,
        "opset": opset.RULE,
        "names": names.RULE,
        "constant-parameters": constant_parameters.RULE,
        "scale-value": scale_value.RULE,
        "axis-size": axis_size.RULE,
        "weight-axis": weight_axis.RULE,
        "weight-zero-point": weight_zero_point.RULE,
        "weight-narrow": weight_narrow.RULE,
        "float-copy": float_copy.RULE,
        "bias": bias.RULE,
        "overflow": overflow.RULE,
        "activation-grid": activation_grid.RULE,
        "moved": moved.RULE,
        "missing": missing.RULE,
        "repeated": repeated.RULE,
        "dangling": dangling.RULE,
        "metadata": metadata.RULE,
    }
)


def check_model(model: ModelProto) -> list[Finding]:
    """Every breach of every rule, in the order of RULES, then of the nodes."""
    return list(_findings(model))


def fix_model(model: ModelProto) -> dict[str, int]:
    """Mends in place what can be mended without changing any result; rule -> how many breaches."""
    fixed = {name: rule.fix(model) for name, rule in RULES.items() if rule.fix is not None}
    return {name: n for name, n in fixed.items() if n}


def _findings(model: ModelProto) -> Iterator[Finding]:
    view = view_model(model)
    for name, rule in RULES.items():
        for place in rule.find(view):
            yield Finding(name, rule.severity, place.node, place.tensor, place.message, place.remedy, place.fixable)
