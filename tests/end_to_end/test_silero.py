# SPDX-License-Identifier: Apache-2.0
"""silero-vad, a recurrent model whose layers lie in branches of If, fed window after window with its own state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

import wia_quant
from benchmarks.models.silero_vad import MODEL
from wia_quant.runtime import Session

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: New samples and those of the window before, for each rate that the model knows.
WINDOWS = {16000: 512 + 64, 8000: 256 + 32}
N_WINDOWS = 24


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("silero")
    paths = {"float": folder / "silero.onnx", "int8": folder / "silero.wia.onnx"}
    MODEL.write(paths["float"])
    wia_quant.quantize(paths["float"], list(MODEL.calibration())).save(paths["int8"])
    return paths


def stream(rate: int) -> list[npt.NDArray[np.float32]]:
    """Noise, a voice-like buzz that swells, and silence."""
    rng = np.random.default_rng(rate)
    t = np.arange(WINDOWS[rate]) / rate
    buzz = sum(np.sin(2 * np.pi * 140 * k * t) / k for k in range(1, 9))
    loudness = [0.0, 0.01, 0.2, 0.3, 0.3, 0.0]
    return [(loudness[i % 6] * buzz + rng.normal(0, 0.01, t.size)).astype(np.float32)[None] for i in range(N_WINDOWS)]


def follow(session: Any, rate: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The probabilities of speech, and the state at the end."""
    state, speech = np.zeros((2, 1, 128), np.float32), []
    for window in stream(rate):
        feeds = {"input": window, "state": state, "sr": np.array(rate, np.int64)}
        probability, state = session.run(None, feeds)
        speech.append(float(probability[0, 0]))
    return np.array(speech), state


def plain_onnxruntime(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)


@pytest.mark.parametrize("rate", WINDOWS)
@pytest.mark.parametrize("kind", ["float", "int8"])
def test_libwia_follows_onnxruntime_from_window_to_window(files: dict[str, Path], kind: str, rate: int) -> None:
    speech, state = follow(Session(str(files[kind])), rate)
    expected_speech, expected_state = follow(plain_onnxruntime(files[kind]), rate)
    np.testing.assert_allclose(speech, expected_speech, rtol=0, atol=1e-5)
    np.testing.assert_allclose(state, expected_state, rtol=1e-4, atol=1e-4)
    assert expected_speech.max() > 2 * expected_speech.min()


@pytest.mark.parametrize("rate", WINDOWS)
def test_the_int8_file_hears_what_the_float_file_hears(files: dict[str, Path], rate: int) -> None:
    float_speech, _ = follow(Session(str(files["float"])), rate)
    int8_speech, _ = follow(Session(str(files["int8"])), rate)
    assert np.abs(float_speech - int8_speech).mean() < 0.05
    assert ((float_speech > 0.5) == (int8_speech > 0.5)).sum() >= N_WINDOWS - 1
