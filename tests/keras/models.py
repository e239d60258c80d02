# SPDX-License-Identifier: Apache-2.0
"""Models of either Keras, and what they and their files compute."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

FRAMEWORKS = ("keras", "tf_keras")


def framework(name: str) -> Any:
    return importlib.import_module(name)


def randomize(model: Any, seed: int = 0) -> Any:
    """Weights and statistics as if it had been trained: nothing is 0 or 1."""
    rng = np.random.default_rng(seed)
    for w in model.weights:
        name, shape = getattr(w, "path", w.name), tuple(w.shape)
        values = rng.normal(0, 0.3, shape)
        if "variance" in name:
            values = rng.uniform(0.3, 2, shape)
        elif "gamma" in name:
            values = rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape)
        if np.issubdtype(np.dtype(str(getattr(w.dtype, "name", w.dtype))), np.floating):
            w.assign(values.astype(np.float32))
    return model


def in_onnxruntime(model: onnx.ModelProto, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return session.run(None, {i.name: x for i, x in zip(session.get_inputs(), inputs, strict=True)})


def predict(model: Any, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    found = model.predict(list(inputs) if len(inputs) > 1 else inputs[0], verbose=0)
    return found if isinstance(found, list) else [found]


def residual(keras: Any, size: int = 16, channels: int = 3, classes: int = 10) -> Any:
    """Conv, BatchNorm, depthwise, residual, separable, Dense: the blocks of small image classifiers."""
    layers = keras.layers
    x = inputs = keras.Input((size, size, channels), name="image")
    x = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.ReLU(6.0)(layers.BatchNormalization()(x))
    y = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
    y = layers.Activation("relu")(layers.BatchNormalization()(y))
    y = layers.BatchNormalization()(layers.Conv2D(8, 1)(y))
    x = layers.ReLU()(layers.Add()([x, y]))
    x = layers.SeparableConv2D(12, 3, strides=2, activation="relu")(x)
    x = layers.MaxPooling2D(2, 1)(x)
    x = layers.Dropout(0.1)(layers.Flatten()(x))
    x = layers.Dense(24, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x))


def train(keras: Any, model: Any, size: int = 16, channels: int = 3, classes: int = 10) -> np.ndarray:
    """A few steps on noise; the inputs it saw."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (64, size, size, channels)).astype(np.float32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    model.fit(x, rng.integers(0, classes, 64), batch_size=16, epochs=1, verbose=0)
    return x
