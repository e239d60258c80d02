# SPDX-License-Identifier: Apache-2.0
"""One network with the same weights and ranges gives one graph, whichever framework trained it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.keras.models import framework
from wia_quant.digest import graph_digest
from wia_quant.keras import export, quantize_model

#: Of every quantized activation, in the order of the net; exact in float32.
RANGES = [(-1.0, 1.5), (0.0, 4.0), (0.0, 3.0), (0.0, 2.5)]


def weights() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(3, 3, 3, 8), (8,), (3, 3, 8, 8), (8,), (8 * 4 * 4, 5), (5,)]
    return [rng.normal(0, 0.3, s).astype(np.float32) for s in shapes]


def keras_net(keras: Any) -> Any:
    layers = keras.layers
    x = inputs = keras.Input((8, 8, 3), name="x")
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(2)(x)
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(x)
    model = keras.Model(inputs, layers.Dense(5)(layers.Flatten()(x)))
    model.set_weights(weights())
    return model


def in_keras_3() -> str:
    keras = framework("keras")
    model = quantize_model(keras_net(keras))
    quantizers = [layer for layer in model.layers if type(layer).__name__ == "FakeQuantize"]
    for layer, (lo, hi) in zip(quantizers, RANGES, strict=False):
        layer.lo.assign([lo])
        layer.hi.assign([hi])
        layer.seen.assign([1.0])
    return graph_digest(export(model, channels_first_io=True).model)


def in_tf_keras() -> str:
    keras = framework("tf_keras")
    model = quantize_model(keras_net(keras))
    ends = [w for w in model.weights if w.name.rpartition("/")[2].rpartition("_")[2] in ("min:0", "max:0")]
    for i, w in enumerate(ends):
        w.assign(RANGES[i // 2][i % 2])
    return graph_digest(export(model, channels_first_io=True).model)


def test_both_kerases_give_one_graph() -> None:
    assert in_keras_3() == in_tf_keras()
