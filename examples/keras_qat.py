# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training of a small Keras 3 net, and its export: python examples/keras_qat.py digits.wia.onnx.

KERAS_BACKEND chooses what it runs on: tensorflow, torch or jax. For tf_keras: ``import tf_keras as keras``, no more.
"""

import sys

import keras
import numpy as np
from keras import layers
from PIL import Image, ImageDraw, ImageFont

import wia_quant
from wia_quant.keras import export, freeze_batch_norm, from_calibration


def digits(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """n pictures of digits [n, 20, 20, 1], moved about and noisy, and what they show."""
    rng, font = np.random.default_rng(seed), ImageFont.load_default(14)
    labels, pictures = rng.integers(0, 10, n), np.zeros((n, 20, 20, 1), np.float32)
    for i, label in enumerate(labels):
        picture = Image.new("L", (20, 20))
        ImageDraw.Draw(picture).text(tuple(rng.integers(1, 9, 2).tolist()), str(label), fill=255, font=font)
        pictures[i, ..., 0] = np.asarray(picture, np.float32) / 255
    return pictures + rng.normal(0, 0.1, pictures.shape).astype(np.float32), labels


def train(model: keras.Model, x: np.ndarray, y: np.ndarray, epochs: int, rate: float) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=64, epochs=epochs, verbose=0)


def main(path: str) -> None:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([
        keras.Input((20, 20, 1), name="picture"),
        layers.Conv2D(16, 3, strides=2), layers.BatchNormalization(momentum=0.9), layers.ReLU(),
        layers.Conv2D(32, 3, strides=2), layers.BatchNormalization(momentum=0.9), layers.ReLU(),
        layers.Flatten(), layers.Dense(10, name="logits"),
    ])  # fmt: skip
    seen, unseen = digits(1024, seed=1), digits(512, seed=2)
    train(model, *seen, epochs=8, rate=3e-3)
    print(f"float     {model.evaluate(*unseen, verbose=0)[1]:.4f}")

    model = from_calibration(model, wia_quant.quantize(model, data={"picture": seen[0][:300]}))
    train(model, *seen, epochs=1, rate=1e-3)
    train(freeze_batch_norm(model), *seen, epochs=1, rate=3e-4)
    print(f"quantized {model.evaluate(*unseen, verbose=0)[1]:.4f}")
    for name, (largest, share) in export(model, path, verify=unseen[0]).differences.items():
        print(f"in libwia '{name}': {share:.2%} of the values differ, by at most {largest:.2%} of the largest")


if __name__ == "__main__":
    main(sys.argv[1])
