# SPDX-License-Identifier: Apache-2.0
"""An int8 .tflite file computes the same in libwia as in the LiteRT interpreter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.keras.models import framework, randomize, residual, train
from tests.tflite.litert import packed
from wia_quant import Session
from wia_quant.cli.app import invoke
from wia_quant.errors import ExportError, ModelError, UnsupportedError, WiaError
from wia_quant.rules import Severity, check_model
from wia_quant.tflite import to_onnx

SIZE = 16


def branches(keras: Any) -> Any:
    """Concat, resizing, average pooling, padding, a gate, softmax."""
    layers = keras.layers
    x = inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu6")(x)
    y = layers.UpSampling2D(2)(layers.MaxPooling2D(2)(x))
    z = layers.Conv2D(4, 3, activation="tanh")(layers.ZeroPadding2D(1)(x))
    x = layers.Concatenate()([x, y, z])
    gate = layers.Conv2D(16 + 4, 1, activation="sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = layers.LeakyReLU(0.1)(layers.Multiply()([x, gate]))
    return keras.Model(inputs, layers.Softmax()(layers.Dense(5)(layers.Flatten()(x))))


def decoder(keras: Any) -> Any:
    """Transposed convolutions; the output is a picture."""
    layers = keras.layers
    x = inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
    x = layers.Conv2DTranspose(6, 3, strides=2, padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv2D(2, 1)(x))


def trained(keras: Any) -> Any:
    """Made by tensorflow-model-optimization and trained."""
    tfmot = framework("tensorflow_model_optimization").quantization.keras
    model = tfmot.quantize_model(residual(keras))
    train(keras, model)
    return model


MODELS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "residual, float ends": (residual, False),
    "residual, int8 ends": (residual, True),
    "branches": (branches, False),
    "decoder": (decoder, True),
    "trained": (trained, False),
}

#: The share of its outputs that a whole model may have apart from LiteRT's, by one level. Its transposed convolution is
#: of the optimized kernels, which round twice: LiteRT's default ones need a constant output shape.
APART = {"decoder": 0.01}


@cache
def converted(name: str) -> bytes:
    tf, keras = framework("tensorflow"), framework("tf_keras")
    make, int8_ends = MODELS[name]
    keras.utils.set_random_seed(0)
    model = make(keras) if make is trained else randomize(make(keras))
    rng = np.random.default_rng(0)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: (
        [rng.uniform(0, 1, (1, SIZE, SIZE, 3)).astype(np.float32)] for _ in range(20)
    )
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    if int8_ends:
        converter.inference_input_type = converter.inference_output_type = tf.int8
    found: bytes = converter.convert()
    return found


def in_litert(content: bytes, x: np.ndarray) -> tuple[np.ndarray, float]:
    """What LiteRT makes of reals, as reals; and the step of its output."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content, num_threads=1)
    (given,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(given["index"], x.shape)
    interpreter.allocate_tensors()
    scale, zero_point = given["quantization"]
    levels = np.clip(np.rint(x / np.float32(scale or 1)) + zero_point, -128, 127).astype(given["dtype"])
    interpreter.set_tensor(given["index"], x if given["dtype"] == np.float32 else levels)
    interpreter.invoke()
    (made,) = interpreter.get_output_details()
    y = interpreter.get_tensor(made["index"])
    if y.dtype == np.float32:
        steps = np.diff(np.unique(y))
        return y, float(steps[steps > 1e-9].min())
    scale, zero_point = made["quantization"]
    return (y.astype(np.float32) - zero_point) * np.float32(scale), float(scale)


@pytest.mark.parametrize("name", MODELS)
def test_libwia_computes_what_litert_does(name: str) -> None:
    content = converted(name)
    model = to_onnx(content)
    assert [str(f) for f in check_model(model) if f.severity is not Severity.NOTE] == []
    x = np.random.default_rng(1).uniform(0, 1, (64, SIZE, SIZE, 3)).astype(np.float32)
    (got,) = Session(model.SerializeToString()).run(None, {model.graph.input[0].name: x})
    want, step = in_litert(content, x)
    apart = np.abs(got - want) / step
    assert apart.max() <= (1.01 if name in APART else 0.01), f"{(apart > 0.5).mean():.4f} of the outputs differ"
    assert (apart > 0.5).mean() <= APART.get(name, 0)


def test_the_command_line_exports_a_tflite_file(tmp_path: Path) -> None:
    (tmp_path / "net.tflite").write_bytes(converted("residual, float ends"))
    out = tmp_path / "net.wia.onnx"
    assert invoke(["export", str(tmp_path / "net.tflite"), "-o", str(out)]) == 0
    assert [list(i.shape[1:]) for i in Session(out).get_inputs()] == [[SIZE, SIZE, 3]]


def a_float_model(converter: Any, tf: Any) -> None:
    pass


def weights_alone(converter: Any, tf: Any) -> None:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]


def int16_activations(converter: Any, tf: Any) -> None:
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([np.ones((1, SIZE, SIZE, 3), np.float32)] for _ in range(2))
    converter.target_spec.supported_ops = [
        tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("made", "says"),
    [(a_float_model, "a float model"), (weights_alone, "its weights alone"), (int16_activations, "are int16")],
)
def test_a_model_without_int8_activations_says_what_it_has(made: Callable[[Any, Any], None], says: str) -> None:
    tf, keras = framework("tensorflow"), framework("tf_keras")
    converter = tf.lite.TFLiteConverter.from_keras_model(residual(keras))
    made(converter, tf)
    with pytest.raises(ExportError, match=says):
        to_onnx(converter.convert())


def test_a_sparse_weight_is_named() -> None:
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(converted("decoder"), 0)
    tensor = next(t for t in model.subgraphs[0].tensors if model.buffers[t.buffer].data is not None)
    tensor.sparsity = schema.SparsityParametersT()
    with pytest.raises(UnsupportedError, match="is stored sparse"):
        to_onnx(packed(model))


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    path = tmp_path / "half.tflite"
    path.write_bytes(converted("decoder")[:2000])
    with pytest.raises(ModelError, match=r"half\.tflite is broken or cut off"):
        to_onnx(path)


def test_an_operator_that_is_not_read_is_named() -> None:
    from ai_edge_litert import schema_py_generated as schema

    content = bytearray(converted("decoder"))
    model = schema.ModelT.InitFromPackedBuf(bytes(content), 0)
    model.operatorCodes[0].builtinCode = schema.BuiltinOperator.FLOOR_DIV
    with pytest.raises(UnsupportedError, match=r"FLOOR_DIV \(\d\)"):
        to_onnx(packed(model))


def test_what_is_no_tflite_file_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"no \.tflite file"):
        to_onnx(b"not a model")


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("name", ["decoder", "branches"])
def test_a_broken_file_is_an_error_and_no_crash(name: str, seed: int) -> None:
    content = bytearray(converted(name))
    rng = np.random.default_rng(seed)
    for _ in range(1 + seed % 8):
        content[int(rng.integers(8, len(content)))] = int(rng.integers(0, 256))
    if seed % 3 == 0:
        content = content[: int(rng.integers(9, len(content)))]
    with suppress(WiaError):  # anything else fails the test; some changes leave a valid file
        to_onnx(bytes(content))


def test_options_that_contradict_the_tensors_are_named() -> None:
    from ai_edge_litert import schema_py_generated as schema

    model = schema.ModelT.InitFromPackedBuf(converted("decoder"), 0)
    convolution = next(
        op for op in model.subgraphs[0].operators if type(op.builtinOptions).__name__ == "Conv2DOptionsT"
    )
    convolution.builtinOptions.padding = 97
    with pytest.raises(ModelError, match=r"CONV_2D '.*contradict each other"):
        to_onnx(packed(model))
