# SPDX-License-Identifier: Apache-2.0
"""Exclusion rules: what they match, and that one that matches nothing is never silent."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.quantizing import conv, conv_constants, decisions, model, quantized
from wia_quant.errors import PolicyError
from wia_quant.exclude import resolve
from wia_quant.graph import Model, load


def diamond() -> Model:
    nodes = [
        conv("stem", "x", "a"),
        helper.make_node("Relu", ["a"], ["b"], "left"),
        helper.make_node("Neg", ["a"], ["c"], "right"),
        helper.make_node("Add", ["b", "c"], ["d"], "join"),
        helper.make_node("Relu", ["d"], ["y"], "tail"),
    ]
    return load(model(nodes, {"x": [1, 3, 4, 4]}, ["y"], conv_constants("stem", (4, 3, 1, 1))))


@pytest.mark.parametrize(
    ("rule", "matched"),
    [
        ("join", ["join"]),
        ("regex:^(le|ri)", ["left", "right"]),
        ("type:Relu", ["left", "tail"]),
        ("between:stem..join", ["stem", "left", "right", "join"]),
        ("between:left..tail", ["left", "join", "tail"]),
    ],
)
def test_a_rule_matches_what_it_says(rule: str, matched: list[str]) -> None:
    assert list(resolve(diamond(), [rule])) == matched


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("jion", "did you mean 'join'"),
        ("regex:^$", "matches no node"),
        ("regex:(", "not a regular expression"),
        ("type:Conv2D", "the model has Add, Conv, Neg, Relu"),
        ("between:stem", "write between:FIRST..LAST"),
        ("between:stem..tial", "no node 'tial'; did you mean 'tail'"),
        ("between:tail..stem", "no path leads"),
    ],
)
def test_a_rule_that_matches_nothing_is_an_error_that_helps(rule: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message.replace("(", r"\(").replace(".", r"\.")):
        resolve(diamond(), [rule])


def test_the_first_rule_that_matches_is_the_reason() -> None:
    assert resolve(diamond(), ["tail", "type:Relu"]) == {"tail": "tail", "left": "type:Relu"}


def test_rules_speak_of_the_nodes_of_the_users_model_even_if_they_would_be_folded() -> None:
    """A BatchNormalization that would vanish into its Conv stays when it is excluded, and is float."""
    constants = conv_constants("c", (32, 3, 1, 1)) | conv_constants("d", (32, 32, 1, 1))
    constants |= {k: np.ones(32, np.float32) for k in ("s", "b", "m", "v")}
    nodes = [
        conv("c", "x", "a"),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"], "bn"),
        conv("d", "n", "y"),
    ]
    proto = model(nodes, {"x": [1, 3, 4, 4]}, ["y"], constants)
    samples = [{"x": np.ones((1, 3, 4, 4), np.float32)}]
    assert decisions(quantized(proto, samples, exclude=["bn"])) == {"c": True, "bn": False, "d": True}
    assert decisions(quantized(proto, samples)) == {"c": True, "d": True}


def test_an_excluded_product_computes_in_float_between_integers() -> None:
    constants = {
        **conv_constants("c", (4, 3, 1, 1)),
        **conv_constants("d", (4, 4, 1, 1)),
        **conv_constants("e", (4, 4, 1, 1)),
    }
    proto = model(
        [conv("c", "x", "a"), conv("d", "a", "b"), conv("e", "b", "y")], {"x": [1, 3, 4, 4]}, ["y"], constants
    )
    written = quantized(proto, [{"x": np.ones((1, 3, 4, 4), np.float32)}], exclude=["d"])
    assert "d.w" in {t.name for t in written.model.graph.initializer}
    reason = next(d.reason for d in written.plan.decisions if d.node == "d")
    assert reason == "excluded by 'd'"
