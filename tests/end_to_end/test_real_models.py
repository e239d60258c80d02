# SPDX-License-Identifier: Apache-2.0
"""The promises on models people use: a valid file that others load, small, and as good as the float model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

import wia_quant
from benchmarks.accuracy import run_all
from benchmarks.models import TRAINED, Feeds, MissingDataError, Model, Outputs

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


#: Fewer than the command's default, to be done in minutes; the promises are made for so many.
N_CALIBRATION = 40


@dataclass(frozen=True)
class Promise:
    """What the default quantization of one model must reach on its first evaluation samples.

    Attributes:
        samples: how many of them.
        size: the int8 file's bytes over the float file's, at most.
        at_least: metric -> the least value.
        at_most: metric -> the largest value.
    """

    samples: int
    size: float
    at_least: dict[str, float]
    at_most: dict[str, float]


PROMISES = {
    "efficientnet_lite0": Promise(50, 0.30, {"top1": 0.80, "agreement": 0.80, "sqnr_db": 14.0}, {}),
    "ppocr_rec": Promise(60, 0.30, {"agreement": 0.85}, {"character_error_rate": 0.012}),
    "ppocr_det": Promise(8, 0.30, {"map_iou": 0.90, "worst_iou": 0.80}, {}),
    "minilm": Promise(60, 0.30, {"cosine": 0.985, "worst_cosine": 0.95, "pairs_spearman": 0.97}, {}),
    "magika": Promise(150, 0.30, {"agreement": 0.95}, {"score_distance": 0.04}),
}


@dataclass(frozen=True)
class Case:
    """A model, quantized by the default command."""

    model: Model
    promise: Promise
    path: Path
    reference: list[Outputs]


@pytest.fixture(scope="module", params=PROMISES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model, promise = TRAINED[request.param], PROMISES[request.param]
    path = tmp_path_factory.mktemp("real") / f"{model.name}.wia.onnx"
    try:
        quantized(model).save(path)
    except MissingDataError as missing:
        pytest.skip(str(missing))
    return Case(model, promise, path, run_all("onnxruntime plain", model.path(), samples(model, promise)))


def quantized(model: Model) -> wia_quant.QuantizedModel:
    return wia_quant.quantize(model.path(), list(model.calibration()[:N_CALIBRATION]))


def samples(model: Model, promise: Promise) -> list[Feeds]:
    assert model.evaluation is not None
    return list(model.evaluation()[: promise.samples])


def check_metrics(case: Case, outputs: list[Outputs]) -> None:
    assert case.model.metrics is not None
    found = case.model.metrics(case.reference, outputs)
    assert {k: found[k] for k, least in case.promise.at_least.items() if not found[k] >= least} == {}
    assert {k: found[k] for k, most in case.promise.at_most.items() if not found[k] <= most} == {}


def test_the_file_is_valid(case: Case) -> None:
    onnx.checker.check_model(case.path, full_check=True)


def test_the_file_is_small(case: Case) -> None:
    assert case.path.stat().st_size <= case.promise.size * case.model.path().stat().st_size


def test_onnxruntime_gets_good_answers_from_it(case: Case) -> None:
    check_metrics(case, run_all("onnxruntime plain", case.path, samples(case.model, case.promise)))


def test_libwia_gets_good_answers_from_it(case: Case) -> None:
    check_metrics(case, run_all("libwia", case.path, samples(case.model, case.promise)))


def test_threads_and_instruction_sets_do_not_change_a_byte(case: Case) -> None:
    from wia_quant.runtime import usable_isas

    feeds = samples(case.model, case.promise)[-1]
    wanted = [value.tobytes() for value in wia_quant.Session(case.path).run(None, feeds)]
    for isa, threads in [(isa, 1) for isa in usable_isas()] + [(None, 2), (None, 4)]:
        session = wia_quant.Session(case.path, threads=threads, isa=isa)
        assert [value.tobytes() for value in session.run(None, feeds)] == wanted, (isa, threads)


def test_same_inputs_give_the_same_file(case: Case) -> None:
    again = quantized(case.model).model
    assert again.SerializeToString(deterministic=True) == onnx.load(case.path).SerializeToString(deterministic=True)
