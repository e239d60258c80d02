# SPDX-License-Identifier: Apache-2.0
"""Architectures of keras.applications: one step of quantization-aware training, and the file follows it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.keras.models import framework, in_onnxruntime, predict
from wia_quant import Session
from wia_quant.errors import ExportError
from wia_quant.keras import export, freeze_batch_norm, observe, quantize_model, to_onnx

#: Pictures that fit the smallest input that an architecture takes; 0 to 255 where it scales them itself.
SIZE, SIZES = 64, {"InceptionV3": 75, "Xception": 71}
SCALES_ITSELF = ("MobileNetV3Small", "EfficientNetB0", "ConvNeXtTiny")

#: A float sum on the edge of two levels may fall to either side. Nets of hundreds of layers with random weights carry
#: that on to all of their outputs, which lie close together: this share of their span.
CARRIED_ON = 0.12

KERAS_3 = ("MobileNetV2", "MobileNetV3Small", "EfficientNetB0", "ConvNeXtTiny", "ResNet50V2", "DenseNet121", "Xception",
           "InceptionV3")  # fmt: skip
#: Whose normalizations are float: the last bit of one may be a level of what follows.
NORMALIZES = ("ConvNeXtTiny",)
TF_KERAS = ("MobileNetV2", "ResNet50V2", "InceptionV3")


def made(name: str, architecture: str) -> tuple[Any, np.ndarray]:
    keras = framework(name)
    keras.utils.set_random_seed(0)
    size = SIZES.get(architecture, SIZE)
    model = getattr(keras.applications, architecture)(
        weights=None, input_shape=(size, size, 3), classes=10, classifier_activation=None
    )
    x = np.random.default_rng(0).uniform(-1, 1, (8, size, size, 3)).astype(np.float32)
    return model, (x + 1) * 127.5 if architecture in SCALES_ITSELF else x


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "architecture"), [*itertools.product(["keras"], KERAS_3), *itertools.product(["tf_keras"], TF_KERAS)]
)
def test_an_architecture_is_trained_and_exported(name: str, architecture: str) -> None:
    keras = framework(name)
    model, x = made(name, architecture)
    (want,) = predict(model, [x])
    np.testing.assert_allclose(in_onnxruntime(to_onnx(model), [x])[0], want, atol=1e-4 * float(np.abs(want).max()))

    quantized = freeze_batch_norm(observe(quantize_model(model), [x[:4], x[4:]]))
    quantized.compile(keras.optimizers.Adam(1e-5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    quantized.fit(x[:4], np.arange(4), batch_size=4, epochs=1, verbose=0)
    (trained,) = predict(quantized, [x])
    file = export(quantized)
    span = float(np.abs(trained).max())
    (in_libwia,) = Session(file.model.SerializeToString()).run(None, {file.model.graph.input[0].name: x})
    for got in (*in_onnxruntime(file.model, [x]), in_libwia):
        assert np.abs(got - trained).max() <= CARRIED_ON * span
    assert name == "tf_keras" or architecture in NORMALIZES or np.abs(in_libwia - trained).max() <= 1e-5 * span
    products = [d for d in file.plan.decisions if d.op_type in ("Conv", "Gemm", "MatMul") and not d.quantized]
    assert [d.reason for d in products if "left" in d.reason] == [] or architecture in ("ResNet50V2", "DenseNet121")


def test_what_tfmot_cannot_take_of_an_architecture_is_named() -> None:
    model, _ = made("tf_keras", "MobileNetV3Small")  # it calls TensorFlow functions
    with pytest.raises(ExportError, match=r"layer '[\w./]+'.*Keras 3"):
        quantize_model(model)
