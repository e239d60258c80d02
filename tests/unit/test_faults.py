# SPDX-License-Identifier: Apache-2.0
"""A fault in one layer of a small net is blamed on that layer; benchmarks/faults.py does the same to real models."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto

import wia_quant
from benchmarks.faults import ACTIVATION_FAULTS, WEIGHT_FAULTS, Verdict, judge
from tests.tiny import small_net

N_FAULTS = 21


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    """Of faults of every kind that the net has a place for."""
    rng = np.random.default_rng(11)
    samples = [{"x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)} for _ in range(16)]
    reference: ModelProto = small_net()
    quantized = wia_quant.quantize(reference, samples).model
    return list(judge("small net", quantized, reference, samples[:6], N_FAULTS))


def test_the_first_layer_named_is_the_guilty_one(verdicts: list[Verdict]) -> None:
    assert [v for v in verdicts if not v.right] == []


def test_faults_of_every_kind_were_seeded(verdicts: list[Verdict]) -> None:
    weights = {f"weight: {kind}" for kind in WEIGHT_FAULTS} - {"weight: wrong axis", "weight: permuted channel scales"}
    assert {v.kind for v in verdicts} >= weights | {f"activation: {kind}" for kind in ACTIVATION_FAULTS}
