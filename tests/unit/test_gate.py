# SPDX-License-Identifier: Apache-2.0
"""baseline and regress on models: the same one always passes, a broken one fails and its layer is named."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

import wia_quant
from tests.tiny import small_net
from wia_quant.errors import UsageError
from wia_quant.evaluation import EvaluationError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gate") / "data.npy"
    np.save(path, np.random.default_rng(5).normal(size=(24, 3, 16, 16)).astype(np.float32))
    return path


@pytest.fixture(scope="module")
def reference() -> ModelProto:
    return small_net()


@pytest.fixture(scope="module")
def quantized(reference: ModelProto, data: Path) -> ModelProto:
    return wia_quant.quantize(reference, data).model


@pytest.fixture(scope="module")
def broken(quantized: ModelProto) -> ModelProto:
    """The scales of conv2's weights doubled."""
    found = ModelProto()
    found.CopyFrom(quantized)
    conv2 = next(n for n in found.graph.node if n.name == "conv2")
    dequantize = next(n for n in found.graph.node if n.output[0] == conv2.input[1])
    scale = next(t for t in found.graph.initializer if t.name == dequantize.input[1])
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(2), scale.name))
    return found


@pytest.mark.parametrize("executor", ["wia", "onnxruntime"])
@pytest.mark.parametrize("workers", [1, 2])
def test_two_runs_of_the_same_model_never_fail(
    quantized: ModelProto, reference: ModelProto, data: Path, executor: str, workers: int
) -> None:
    base = wia_quant.baseline(quantized, data, reference=reference, executor=executor)
    found = wia_quant.regress(
        base, quantized, data, reference=reference, executor=executor, workers=workers, max_drop=0.0
    )
    assert found.ok
    assert all(m.drop == 0 for m in found.metrics)
    assert (found.suspects, found.flipped, found.warnings) == ((), (), ())


def test_a_broken_model_fails_and_its_layer_is_named(
    quantized: ModelProto, broken: ModelProto, reference: ModelProto, data: Path, tmp_path: Path
) -> None:
    wia_quant.baseline(quantized, data, reference=reference).save(tmp_path / "base.json")
    found = wia_quant.regress(tmp_path / "base.json", broken, data, reference=reference)
    assert not found.ok
    assert found.suspects[0].node == "conv2"


def test_two_models_need_no_file_and_no_float_model(quantized: ModelProto, broken: ModelProto, data: Path) -> None:
    found = wia_quant.regress(quantized, broken, data)
    assert not found.ok
    assert [s.node for s in found.suspects] == ["conv2"]
    assert wia_quant.regress(quantized, quantized, data).ok


def test_a_quantized_model_is_held_against_its_float_one(
    quantized: ModelProto, broken: ModelProto, reference: ModelProto, data: Path
) -> None:
    sound = wia_quant.regress(reference, quantized, data, max_drop=20)
    assert sound.ok
    assert "is not gated" in " ".join(sound.warnings)
    found = wia_quant.regress(reference, broken, data, max_drop=20)
    assert found.suspects[0].node == "conv2"


def test_a_baseline_of_fewer_samples_is_compared_on_those(
    quantized: ModelProto, reference: ModelProto, data: Path
) -> None:
    base = wia_quant.baseline(quantized, data, reference=reference, samples=7, seed=3)
    assert wia_quant.regress(base, quantized, data, reference=reference).ok


def test_a_model_without_data_says_what_to_give(quantized: ModelProto) -> None:
    with pytest.raises(UsageError, match="--data"):
        wia_quant.regress(quantized, quantized)


def test_pictures_prepared_differently_are_no_comparison(reference: ModelProto, tmp_path: Path) -> None:
    from PIL import Image

    for i in range(2):
        Image.fromarray(np.full((16, 16, 3), 90 + i, np.uint8)).save(tmp_path / f"{i}.png")
    onnx.save(reference, tmp_path / "model.onnx")
    sides = [
        wia_quant.baseline(reference, tmp_path / "0.png", reference=reference, preprocess=preset, layers=0)
        for preset in ("imagenet", "zero_one")
    ]
    with pytest.raises(EvaluationError, match="--preprocess"):
        wia_quant.regress(*sides)
