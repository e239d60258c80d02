# SPDX-License-Identifier: Apache-2.0
"""tf_keras models are saved and loaded whole after their BatchNorms were frozen; those have quantizers of their own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wia_quant.keras as wq
from tests.keras.models import framework, randomize

#: What follows the BatchNorms, one after another.
BEHIND = ("relu", "swish", "elu", None)


def pictures() -> np.ndarray:
    return np.random.default_rng(0).uniform(0, 1, (16, 8, 8, 2)).astype(np.float32)


def prepared() -> Any:
    keras = framework("tf_keras")
    keras.utils.set_random_seed(0)
    k = keras.layers
    x = y = keras.Input((8, 8, 2), name="image")
    for activation in BEHIND:
        y = k.BatchNormalization()(k.Conv2D(3, 3, padding="same", use_bias=False)(y))
        y = y if activation is None else k.Activation(activation)(y)
    model = randomize(keras.Model(x, k.Dense(4)(k.GlobalAveragePooling2D()(y))))
    return wq.observe(wq.quantize_model(model), [pictures()])


@cache
def frozen() -> Any:
    """No test changes it."""
    return wq.freeze_batch_norm(prepared())


def answers(model: Any) -> np.ndarray:
    return np.asarray(model(pictures(), training=False))


@pytest.mark.parametrize("name", ["q.keras", "q.h5"])
def test_a_model_with_frozen_batch_norms_is_loaded_again(name: str, tmp_path: Path) -> None:
    frozen().save(tmp_path / name)
    loaded = wq.load(tmp_path / name)
    np.testing.assert_array_equal(answers(loaded), answers(frozen()))
    assert [w.shape for w in loaded.trainable_weights] == [w.shape for w in frozen().trainable_weights]
    loaded.save(tmp_path / f"again_{name}")
    np.testing.assert_array_equal(answers(wq.load(tmp_path / f"again_{name}")), answers(frozen()))
    wq.freeze_batch_norm(loaded, False).save(tmp_path / f"thawed_{name}")
    np.testing.assert_array_equal(answers(wq.load(tmp_path / f"thawed_{name}")), answers(frozen()))


@pytest.mark.parametrize("name", ["w.h5", "w.weights.h5"])
def test_weights_with_frozen_batch_norms_are_loaded_again(name: str, tmp_path: Path) -> None:
    model = wq.freeze_batch_norm(prepared())
    frozen().save_weights(str(tmp_path / name))
    for variable in model.trainable_weights:
        variable.assign(variable + 1)
    assert (answers(model) != answers(frozen())).any()
    model.load_weights(str(tmp_path / name))
    np.testing.assert_array_equal(answers(model), answers(frozen()))


def test_frozen_batch_norms_keep_their_weights_and_checkpoints_load(tmp_path: Path) -> None:
    keras, model = framework("tf_keras"), prepared()
    order = [id(w) for layer in model.layers for w in layer.weights]
    wq.freeze_batch_norm(model)
    assert [id(w) for layer in model.layers for w in layer.weights] == order  # what .h5 files go by
    inner = [getattr(layer, "layer", layer) for layer in model.layers]
    norms = [w for n in inner if isinstance(n, keras.layers.BatchNormalization) for w in n.weights]
    assert len(norms) == 4 * len(BEHIND)
    before = [w.numpy() for w in norms]
    model.compile("adam", "mse")
    kept = [keras.callbacks.ModelCheckpoint(str(tmp_path / f"c{end}")) for end in (".keras", ".h5")]
    model.fit(pictures(), np.zeros((16, 4)), verbose=0, callbacks=kept)
    for was, norm in zip(before, norms, strict=True):
        np.testing.assert_array_equal(norm.numpy(), was)
    for end in (".keras", ".h5"):
        np.testing.assert_array_equal(answers(wq.load(tmp_path / f"c{end}")), answers(model))


def test_layers_frozen_before_they_were_quantized_are_loaded_again(tmp_path: Path) -> None:
    keras = framework("tf_keras")
    x = keras.Input((8, 8, 2), name="image")
    y = keras.layers.BatchNormalization(trainable=False)(keras.layers.Conv2D(3, 3, trainable=False)(x))
    y = keras.layers.Flatten()(keras.layers.Activation("swish")(y))
    model = wq.observe(wq.quantize_model(randomize(keras.Model(x, keras.layers.Dense(4)(y)))), [pictures()])
    for layer in model.layers:
        layer.trainable = True
    model.save(tmp_path / "q.keras")
    loaded = wq.load(tmp_path / "q.keras")
    np.testing.assert_array_equal(answers(loaded), answers(model))
    assert len(loaded.trainable_weights) == len(model.trainable_weights) == 6
