# SPDX-License-Identifier: Apache-2.0
"""Is a QDQ model of the wia format? One file a rule, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
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
    quantized,
    repeated,
    scale_value,
    target_activation,
    target_granularity,
    target_operator,
    target_size,
    target_weight,
    valid,
    weight_axis,
    weight_narrow,
    weight_zero_point,
)
from wia_quant.rules.base import Finding, Place, Rule, Severity
from wia_quant.rules.target_case import TargetCase, TargetRule
from wia_quant.targets.target import Target, load_target

__all__ = ["RULES", "TARGET_RULES", "Finding", "Rule", "Severity", "check_model", "fix_model"]

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "valid": valid.RULE,
        "quantized": quantized.RULE,
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


#: What else is verified where a target is given.
TARGET_RULES: Mapping[str, TargetRule] = MappingProxyType(
    {
        "target-operator": target_operator.RULE,
        "target-activation": target_activation.RULE,
        "target-weight": target_weight.RULE,
        "target-granularity": target_granularity.RULE,
        "target-size": target_size.RULE,
    }
)


def check_model(model: ModelProto, target: str | Path | Target | None = None) -> list[Finding]:
    """Every breach of every rule, in the order of RULES and TARGET_RULES, then of the nodes.

    Args:
        model: a QDQ model; not changed.
        target: a built-in target, a JSON file, or None to look at the format alone.
    """
    view = view_model(model)
    found = [_finding(name, rule, place) for name, rule in RULES.items() for place in rule.find(view)]
    if target is not None:
        case = TargetCase(view, load_target(target))
        found += [_finding(name, rule, place) for name, rule in TARGET_RULES.items() for place in rule.find(case)]
    return found


def fix_model(model: ModelProto) -> dict[str, int]:
    """Mends in place what can be mended without changing any result; rule -> how many breaches."""
    total: dict[str, int] = {}
    while True:  # what one rule drops may leave something for another
        fixed = {name: rule.fix(model) for name, rule in RULES.items() if rule.fix is not None}
        if not any(fixed.values()):
            return total
        for name, n in fixed.items():
            if n:
                total[name] = total.get(name, 0) + n


def _finding(name: str, rule: Rule | TargetRule, place: Place) -> Finding:
    severity = place.severity or rule.severity
    return Finding(name, severity, place.node, place.tensor, place.message, place.remedy, place.fixable)
