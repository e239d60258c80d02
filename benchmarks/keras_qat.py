# SPDX-License-Identifier: Apache-2.0
"""Float, post-training and trained-quantized Keras models on MNIST, and how exactly their files follow them.

    python -m benchmarks.keras_qat MNIST_FOLDER RESULTS.json keras|tf_keras [hard]

MNIST_FOLDER holds the four uncompressed IDX files. "hard" puts coloured digits on photographs, as MNIST-M.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import onnxruntime

import wia_quant
import wia_quant.keras as wq
from benchmarks.torch_data import SETS

N_TRAIN, N_TEST, BATCH = 20_000, 10_000, 64


def data(folder: Path, part: str, n: int, hard: bool) -> tuple[np.ndarray, np.ndarray]:
    """Pictures [n, 28, 28, channels] in 0..1, and what they show."""
    x, y = SETS["mnist on photographs" if hard else "mnist"](folder, part, n)
    return np.ascontiguousarray(x.numpy().transpose(0, 2, 3, 1)), y.numpy()


def net(keras: Any, channels: int, width: int) -> Any:
    """Conv, BatchNorm, ReLU; depthwise; residual."""
    layers = keras.layers

    def block(x: Any, layer: Any) -> Any:
        return layers.ReLU()(layers.BatchNormalization(momentum=0.9)(layer(x)))

    x = inputs = keras.Input((28, 28, channels), name="image")
    x = block(x, layers.Conv2D(width, 3, strides=2, padding="same", use_bias=False))
    for _ in range(2):
        y = block(x, layers.DepthwiseConv2D(3, padding="same", use_bias=False))
        y = layers.BatchNormalization(momentum=0.9)(layers.Conv2D(width, 1, use_bias=False)(y))
        x = layers.ReLU()(layers.Add()([x, y]))
    x = block(x, layers.Conv2D(2 * width, 3, strides=2, padding="same", use_bias=False))
    x = layers.GlobalAveragePooling2D()(block(x, layers.DepthwiseConv2D(3, use_bias=False)))
    return keras.Model(inputs, layers.Dense(10, name="logits")(x))


def fit(keras: Any, model: Any, x: np.ndarray, y: np.ndarray, rate: float, epochs: int) -> None:
    """With a rate that falls to nothing."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    falling = keras.optimizers.schedules.CosineDecay(rate, epochs * -(-len(x) // BATCH))
    model.compile(keras.optimizers.Adam(falling), loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0)


def metric(model: Any, x: np.ndarray, y: np.ndarray) -> float:
    """What Keras' own metric says, in percent."""
    return round(100 * float(model.evaluate(x, y, batch_size=200, verbose=0)[1]), 3)


def run_ort(file: Any, x: np.ndarray) -> np.ndarray:
    """The first output, by onnxruntime without graph optimizations."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return _in_batches(onnxruntime.InferenceSession(file.SerializeToString(), options), x)


def run_wia(file: Any, x: np.ndarray) -> np.ndarray:
    """The first output, by libwia."""
    return _in_batches(wia_quant.Session(file.SerializeToString()), x)


def _in_batches(session: Any, x: np.ndarray) -> np.ndarray:
    name = session.get_inputs()[0].name
    return np.concatenate([session.run(None, {name: x[i : i + 50]})[0] for i in range(0, len(x), 50)])


def compare(got: np.ndarray, want: np.ndarray) -> dict[str, Any]:
    """Mismatches: beyond rounding of float32; and in levels of 1/255 of the outputs' range, as int8 would hold them."""
    step = float(want.max() - want.min()) / 255
    apart = np.abs(got - want)
    return {
        "outputs": got.size,
        "beyond 1e-5 of the span": int((apart > 1e-5 * np.abs(want).max()).sum()),
        "beyond one step of 1/255": int((apart > step).sum()),
        "largest, in steps of 1/255": round(float(apart.max()) / step, 3),
        "answers that differ": int((got.argmax(1) != want.argmax(1)).sum()),
    }


def add_result(out: str, found: dict[str, Any]) -> None:
    """Appends to the list in a .json file, and says it."""
    path = Path(out)
    results = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*results, found], indent=1) + "\n")
    print(json.dumps(found, indent=1))


def main(folder: str, out: str, name: str, *options: str) -> None:
    keras = importlib.import_module(name)
    keras.utils.set_random_seed(0)
    hard = "hard" in options
    (x, y), (x_test, y_test) = (data(Path(folder), p, n, hard) for p, n in (("training", N_TRAIN), ("test", N_TEST)))

    def accuracy(logits: np.ndarray) -> float:
        return round(100 * float((logits.argmax(1) == y_test).mean()), 3)

    def predict(model: Any) -> np.ndarray:
        return np.asarray(model.predict(x_test, batch_size=200, verbose=0))

    start = time.process_time()
    model = net(keras, x.shape[-1], 32 if hard else 16)
    fit(keras, model, x, y, 3e-3, 10 if hard else 5)
    floats = predict(model)
    walked = run_ort(wq.to_onnx(model), x_test)
    ptq = wia_quant.quantize(model, data={"image": x[:300]})
    quantized = wq.from_calibration(model, ptq)
    fit(keras, quantized, x, y, 3e-4, 2)
    wq.freeze_batch_norm(quantized)
    fit(keras, quantized, x, y, 1e-4, 2)
    trained, said = predict(quantized), metric(quantized, x_test, y_test)
    file = wq.export(quantized).model
    in_ort, in_wia = run_ort(file, x_test), run_wia(file, x_test)
    found = {
        "framework": f"{name} {keras.__version__}",
        "set": "MNIST on photographs" if hard else "MNIST",
        "samples": {"train": len(x), "test": len(x_test)},
        "accuracy": {
            "float": accuracy(floats),
            "float in ONNX": accuracy(walked),
            "post-training, libwia": accuracy(run_wia(ptq.model, x_test)),
            "trained, Keras": said,
            "trained, onnxruntime without optimizations": accuracy(in_ort),
            "trained, libwia": accuracy(in_wia),
        },
        "float ONNX against Keras, largest difference": float(np.abs(walked - floats).max()),
        "onnxruntime without optimizations against training": compare(in_ort, trained),
        "libwia against training": compare(in_wia, trained),
        "cpu seconds": round(time.process_time() - start),
    }
    add_result(out, found)


if __name__ == "__main__":
    main(*sys.argv[1:])
