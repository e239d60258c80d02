# SPDX-License-Identifier: Apache-2.0
"""The gate: what passes, what fails, whom it names, and what it refuses to compare."""

import math
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from wia_quant.evaluation import Evaluation, EvaluationError, LayerError, SampleResult
from wia_quant.evaluators.metric import Metric
from wia_quant.regression import compare
from wia_quant.reports.junit import render_junit
from wia_quant.reports.regression_markdown import render_regression


def evaluation(
    top1: float = 75.0, cosine: float = 0.99, second_layer_db: float = 40.0, answer: str = "3"
) -> Evaluation:
    return Evaluation(
        task="classification",
        model={"path": "m.onnx", "sha256": "1", "bytes": 1},
        reference={},
        executor={"name": "wia", "version": "0.1.0", "isa": "avx2", "threads": 1},
        data={"source": "imgs", "digest": "d", "n_samples": 2, "skipped": 0},
        metrics=(
            Metric("top1", top1, top1 - 1, top1 + 1, 2, "%"),
            Metric("cosine", cosine, cosine, cosine, 2),
            Metric("cer", 5.0, 4.0, 6.0, 2, "%", higher_is_better=False),
        ),
        samples=(SampleResult("a.png", {"top1": 1.0}, answer), SampleResult("b.png", {"top1": 0.0}, "4")),
        layers=(
            LayerError("conv1", "Conv", "c1", 42.0, 42.0, 42.0, 0.0, 42.0, 0.999, 0.0),
            LayerError("conv2", "Conv", "c2", second_layer_db, 40.0, second_layer_db, 0.0, 35.0, 0.99, 0.01),
        ),
    )


def test_a_model_never_fails_against_itself() -> None:
    result = compare(evaluation(), evaluation(), max_drop=0.0)
    assert result.ok
    assert not result.suspects
    assert not result.flipped


def test_a_drop_beyond_the_limit_fails_and_names_the_layer() -> None:
    result = compare(evaluation(), evaluation(top1=74.0, second_layer_db=12.0), max_drop=0.5)
    assert [m.name for m in result.metrics if not m.ok] == ["top1"]
    assert [s.node for s in result.suspects] == ["conv2"]


def test_a_drop_of_exactly_the_limit_passes() -> None:
    assert compare(evaluation(), evaluation(top1=74.5), max_drop=0.5).ok


def test_better_is_no_drop_whichever_way_is_better() -> None:
    worse = replace(evaluation(), metrics=(Metric("cer", 5.0, 5.0, 5.0, 1, "%", higher_is_better=False),))
    better = replace(evaluation(), metrics=(Metric("cer", 1.0, 1.0, 1.0, 1, "%", higher_is_better=False),))
    assert compare(worse, better, max_drop=0.0).metrics[0].drop == -4.0
    assert not compare(better, worse, max_drop=3.9).ok


def test_a_metric_without_unit_counts_in_hundredths() -> None:
    assert compare(evaluation(), evaluation(cosine=0.98), max_drop=0.5).metrics[1].drop == pytest.approx(1.0)


def test_a_limit_of_its_own_beats_the_general_one() -> None:
    assert compare(evaluation(), evaluation(top1=70.0), max_drop=0.5, max_drop_of={"top1": 6.0}).ok


def test_a_metric_that_became_nan_fails() -> None:
    assert not compare(evaluation(), evaluation(top1=math.nan)).ok


def test_other_data_is_refused() -> None:
    other = replace(evaluation(), data={"digest": "e"})
    with pytest.raises(EvaluationError, match="other data"):
        compare(evaluation(), other)


def test_a_limit_for_an_unknown_metric_lists_the_known() -> None:
    with pytest.raises(EvaluationError, match="top1, cosine, cer"):
        compare(evaluation(), evaluation(), max_drop_of={"top_1": 1.0})


def test_samples_that_flipped_are_listed() -> None:
    assert compare(evaluation(), evaluation(answer="7")).flipped == (("a.png", "3", "7"),)


def test_junit_fails_one_case_a_metric() -> None:
    root = ET.fromstring(render_junit(compare(evaluation(), evaluation(top1=70.0, second_layer_db=5.0))))
    assert (root.get("tests"), root.get("failures")) == ("3", "1")
    assert "conv2" in str(root.find("testcase/failure").text)  # type: ignore[union-attr]


def test_markdown_says_what_failed() -> None:
    text = render_regression(compare(evaluation(), evaluation(top1=70.0, answer="7")))
    assert "FAILED" in text
    assert "| top1 | 75% | 70% | +5 | 0.5 | **too much** |" in text
    assert "`a.png`: 3 -> 7" in text


def test_file_round_trips(tmp_path: Path) -> None:
    evaluation().save(tmp_path / "e.json")
    assert Evaluation.load(tmp_path / "e.json").to_json() == evaluation().to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not JSON"), ("{}", "not an evaluation"), ('{"kind": "wia-quant/evaluation", "schema": 9}', "schema 9")],
)
def test_broken_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "e.json").write_text(text)
    with pytest.raises(EvaluationError, match=rf"e\.json.*{message}"):
        Evaluation.load(tmp_path / "e.json")
