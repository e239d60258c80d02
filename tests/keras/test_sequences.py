# SPDX-License-Identifier: Apache-2.0
"""Attention is trained on integers in Keras 3 and stays float in tf_keras; recurrent layers stay float in both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.keras.models import FRAMEWORKS, framework, in_onnxruntime, predict
from wia_quant import Session
from wia_quant.keras import export, observe, quantize_model

#: A level more or less, of 255.
STEP = 0.01


def transformer(keras: Any) -> Any:
    layers = keras.layers
    inputs = keras.Input((12, 32), name="x")
    y = layers.MultiHeadAttention(4, 8, name="attention")(inputs, inputs, use_causal_mask=True)
    x = layers.LayerNormalization()(layers.Add()([inputs, y]))
    y = layers.Dense(32)(layers.Dense(64, activation="gelu")(x))
    x = layers.LayerNormalization()(layers.Add()([x, y]))
    return keras.Model(inputs, layers.Dense(10, name="logits")(layers.GlobalAveragePooling1D()(x)))


def reader(kind: str) -> Any:
    def make(keras: Any) -> Any:
        layers = keras.layers
        inputs = keras.Input((12, 32), name="x")
        x = layers.Conv1D(48, 3, activation="relu", padding="same")(inputs)
        x = layers.Bidirectional(getattr(layers, kind)(24, return_sequences=True))(x)
        x = getattr(layers, kind)(32, name="memory")(x)
        return keras.Model(inputs, layers.Dense(10, name="logits")(layers.Dense(64, activation="relu")(x)))

    return make


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("make", [transformer, *map(reader, ("LSTM", "GRU", "SimpleRNN"))],
                         ids=["attention", "LSTM", "GRU", "SimpleRNN"])  # fmt: skip
def test_a_model_of_sequences_computes_what_was_trained(name: str, make: Any) -> None:
    keras = framework(name)
    keras.utils.set_random_seed(0)
    model = quantize_model(make(keras))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, 12, 32)).astype(np.float32)
    observe(model, [x[:16], x[16:]])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, rng.integers(0, 10, 32), batch_size=16, epochs=1, verbose=0)
    (want,) = predict(model, [x])
    exported = export(model)
    span = float(np.abs(want).max())
    for got in (
        in_onnxruntime(exported.model, [x])[0],
        Session(exported.model.SerializeToString()).run(None, {"x": x})[0],
    ):
        apart = np.abs(got - want)
        assert apart.max() <= 3 * STEP * span
        assert (apart > 1e-4 * span).mean() <= 0.3
    products = {d.node: d.quantized for d in exported.plan.decisions if d.op_type in ("MatMul", "Gemm", "Conv")}
    assert sum(products.values()) >= 2
    if make is transformer:
        of_attention = [quantized for node, quantized in products.items() if node.startswith("attention")]
        assert set(of_attention) == {name == "keras"}
    else:
        float_ones = {d.op_type: d.reason for d in exported.plan.decisions if not d.quantized}
        assert any("recurrent" in reason for reason in float_ones.values())
