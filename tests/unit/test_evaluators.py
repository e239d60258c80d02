# SPDX-License-Identifier: Apache-2.0
"""Each task's figures, against values worked out by hand or by another formula."""

import itertools
import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from wia_quant.errors import DataError, UsageError
from wia_quant.evaluators import EVALUATORS, make_evaluator
from wia_quant.evaluators.agreement import Agreement, kl_divergence, sqnr_db
from wia_quant.evaluators.base import Sample, Scored, observe
from wia_quant.evaluators.classification import Classification
from wia_quant.evaluators.detection import Detection
from wia_quant.evaluators.embedding import Embedding, spearman
from wia_quant.evaluators.metric import mean, proportion, ratio
from wia_quant.evaluators.ocr import Ocr, edit_distance
from wia_quant.evaluators.regression import Regression
from wia_quant.evaluators.segmentation import Segmentation
from wia_quant.labels import load_labels


def sample(
    y: npt.ArrayLike, target: object = None, reference: npt.ArrayLike | None = None, name: str = "a.png"
) -> Sample:
    ref = None if reference is None else {"y": np.asarray(reference, np.float32)}
    return Sample(name, {"y": np.asarray(y, np.float32)}, target, ref)


def test_wilson_interval_of_a_published_example() -> None:
    # Newcombe 1998, table I: 81 of 263 -> 0.2553 to 0.3662.
    m = proportion("p", 81, 263)
    assert (round(m.lo, 2), round(m.hi, 2)) == (25.53, 36.62)


def test_twenty_right_of_twenty_is_not_certain() -> None:
    m = proportion("top1", 20, 20)
    assert m.value == m.hi == 100.0
    assert m.lo < 85


def test_interval_narrows_as_one_over_root_n() -> None:
    rng = np.random.default_rng(0)
    wide, narrow = (mean("m", rng.normal(size=n)) for n in (100, 10_000))
    assert 7 < (wide.hi - wide.lo) / (narrow.hi - narrow.lo) < 14


def test_bootstrap_of_a_mean_agrees_with_the_normal_interval() -> None:
    x = np.random.default_rng(1).normal(3, 2, size=2000)
    half = 1.96 * x.std() / math.sqrt(x.size)
    m = mean("m", x)
    assert m.lo == pytest.approx(x.mean() - half, abs=0.1 * half)
    assert m.hi == pytest.approx(x.mean() + half, abs=0.1 * half)


def test_same_scores_give_the_same_interval() -> None:
    x = np.random.default_rng(2).random(50)
    assert mean("m", x) == mean("m", x)


def test_ratio_is_of_sums_not_a_mean_of_ratios() -> None:
    assert ratio("cer", [1, 0], [1, 99]).value == pytest.approx(0.01)


def test_classification_counts_top1_and_top5() -> None:
    e = Classification()
    observe(e, sample([0, 9, 8, 7, 6, 5, 4], 1))
    observe(e, sample([0, 9, 8, 7, 6, 5, 4], 5))
    observe(e, sample([0, 9, 8, 7, 6, 5, 4], 0))
    top1, top5 = e.metrics()
    assert (top1.value, top5.value) == (pytest.approx(100 / 3), pytest.approx(200 / 3))
    assert e.details()["confusion"] == [
        {"target": 0, "predicted": 1, "count": 1},
        {"target": 5, "predicted": 1, "count": 1},
    ]


def test_label_outside_the_classes_names_the_sample() -> None:
    with pytest.raises(DataError, match=r"a\.png.*label 7.*0 to 2"):
        observe(Classification(), sample([1, 2, 3], 7))


@pytest.mark.parametrize(("a", "b"), [*itertools.product(["", "ab", "kitten", "abcabc"], ["", "ba", "sitting"])])
def test_edit_distance_equals_the_recursive_definition(a: str, b: str) -> None:
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        change = distance(i - 1, j - 1) + (a[i - 1] != b[j - 1])
        return min(change, distance(i - 1, j) + 1, distance(i, j - 1) + 1)

    assert edit_distance(a, b) == distance(len(a), len(b))


def test_ocr_collapses_repeats_and_keeps_doubles_across_a_blank() -> None:
    best = [1, 1, 0, 2, 0, 2, 2]
    e = Ocr("ab")
    assert observe(e, sample(np.eye(3)[best], "abb")).prediction == "abb"
    assert e.metrics()[0].value == 0.0


def test_cer_counts_errors_over_all_characters() -> None:
    e = Ocr("ab")
    observe(e, sample(np.eye(3)[[1, 0, 2]], "aa"))
    observe(e, sample(np.eye(3)[[1, 0, 1, 2, 0, 2]], "aabb"))
    cer = e.metrics()[0]
    assert cer.value == pytest.approx(100 / 6)


def test_spearman_of_ties_equals_pearson_of_mean_ranks() -> None:
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)


def test_embedding_pairs_by_id_whatever_the_order() -> None:
    e = Embedding()
    for name, vector, target in [
        ("0", [1, 0], ("a", 5.0)),
        ("1", [1, 0], ("b", 1.0)),
        ("2", [0, 1], ("b", 1.0)),
        ("3", [1, 0.1], ("a", 5.0)),
        ("4", [1, 0], ("c", 3.0)),
        ("5", [1, 1], ("c", 3.0)),
    ]:
        observe(e, sample(vector, target, name=name))
    assert e.metrics()[0].value == pytest.approx(1.0)


def test_miou_of_a_set_is_of_its_summed_confusion() -> None:
    e = Segmentation()
    observe(e, sample(np.eye(2)[[[0, 0], [1, 1]]].transpose(2, 0, 1), np.array([[0, 0], [1, 0]])))
    observe(e, sample(np.eye(2)[[[1, 1], [1, 1]]].transpose(2, 0, 1), np.array([[1, 1], [1, 255]])))
    # class 0: 2 in both, 3 in either; class 1: 4 in both, 5 in either
    assert e.metrics()[0].value == pytest.approx(100 * (2 / 3 + 4 / 5) / 2)


def test_a_mask_may_be_a_picture_of_indices_or_an_array(tmp_path: Path) -> None:
    mask = np.array([[0, 1], [2, 255]], np.uint8)
    picture = Image.frombytes("P", (2, 2), mask.tobytes())
    picture.putpalette(np.random.default_rng(0).permutation(256 * 3).astype(np.uint8).tolist())
    picture.save(tmp_path / "a.png")
    np.save(tmp_path / "b.npy", mask)
    (tmp_path / "labels.csv").write_text("x.jpg,a.png\ny.jpg,b.npy\n")
    labels = load_labels(tmp_path / "labels.csv")
    e = Segmentation()
    for name in ("x.jpg", "y.jpg"):
        observe(e, sample(np.eye(3)[[[0, 1], [2, 0]]].transpose(2, 0, 1), labels[name]))
    assert e.metrics()[0].value == 100.0


def test_detection_agrees_with_average_precision_by_hand() -> None:
    """Three boxes found, by score: right, wrong, right; two to find. Precision 1 up to recall 1/2, then 2/3."""
    e = Detection()
    truth = [{"bbox": [0, 0, 10, 10], "category_id": 3}, {"bbox": [50, 50, 20, 20], "category_id": 3}]
    boxes = [[0, 0, 10, 10, 0.9, 3], [80, 0, 90, 10, 0.8, 3], [50, 50, 70, 70, 0.7, 3]]
    observe(e, sample(boxes, truth))
    # COCO: 101 recalls from 0 to 1; 51 of them up to 1/2.
    by_hand = 100 * (51 * 1.0 + 50 * 2 / 3) / 101
    assert {m.name: m.value for m in e.metrics()} == {n: pytest.approx(by_hand) for n in ("map", "map50", "map75")}


def test_detection_of_three_outputs_is_that_of_one() -> None:
    truth = [{"bbox": [10, 10, 20, 20], "category_id": 1}]
    boxes = np.array([[10, 10, 30, 28, 0.9, 1], [0, 0, 5, 5, 0.5, 2]], np.float32)
    one, three = Detection(), Detection()
    observe(one, sample(boxes, truth))
    outputs = {"boxes": boxes[:, :4], "scores": boxes[:, 4], "classes": boxes[:, 5]}
    observe(three, Sample("a.png", outputs, truth))
    assert one.metrics() == three.metrics()


def test_word_error_rate_by_hand() -> None:
    """For "ab cd e" it reads "ab c": one word wrong, one missing, of three; of 7 characters 3 are missing."""
    e = Ocr("abcde ")
    spelled = [1, 2, 6, 3]
    observe(e, sample(np.eye(7)[spelled], "ab cd e"))
    assert [m.value for m in e.metrics()] == [pytest.approx(300 / 7), pytest.approx(200 / 3), 0.0]


def test_a_charset_comes_from_the_models_metadata() -> None:
    e = make_evaluator("ocr", {"character": "a\nb"})
    assert observe(e, sample(np.eye(4)[[1, 3, 2]], "a b")).prediction == "a b"


@pytest.mark.parametrize("task", ["classification", "detection", "embedding", "ocr", "regression", "segmentation"])
def test_scores_survive_the_journal(task: str) -> None:
    """What add() needs is JSON: an interrupted run has the figures of a whole one."""
    rng = np.random.default_rng(3)
    cases: dict[str, list[tuple[npt.ArrayLike, object]]] = {
        "classification": [(rng.random(7), 2), (rng.random(7), 5)],
        "detection": [([[10, 10, 30, 30, 0.9, 1]], [{"bbox": [10, 10, 20, 20], "category_id": 1}])],
        "embedding": [(rng.random(4), (f"p{i // 2}", float(i // 2))) for i in range(8)],
        "ocr": [(rng.random((5, 4)), "<1>")],
        "regression": [(rng.random(2), [0.5, 0.25])],
        "segmentation": [(rng.random((3, 4, 4)), rng.integers(0, 3, (4, 4)))],
    }
    straight, through = make_evaluator(task), make_evaluator(task)
    for y, target in cases[task]:
        scored = straight.score(sample(y, target))
        straight.add(scored)
        through.add(Scored(**json.loads(json.dumps(asdict(scored)))))
    assert straight.metrics() == through.metrics()
    assert straight.details() == through.details()


def test_regression_errors() -> None:
    e = Regression()
    observe(e, sample([1.0, 2.0], [1.0, 4.0]))
    assert [m.value for m in e.metrics()] == [pytest.approx(1.0), pytest.approx(math.sqrt(2))]


def test_detection_finds_the_perfect_and_the_missed_box() -> None:
    e = Detection()
    truth = [{"bbox": [10, 10, 20, 20], "category_id": 1}]
    observe(e, sample([[10, 10, 30, 30, 0.9, 1]], truth))
    observe(e, sample(np.zeros((0, 6)), truth))
    # Recall reaches 1/2 at precision 1: COCO's 101 points give 51/101.
    assert e.metrics()[0].value == pytest.approx(100 * 51 / 101)


def test_equal_outputs_agree_fully() -> None:
    e = Agreement()
    observe(e, sample([[0.0, 1.0, 2.0]], None, [[0.0, 1.0, 2.0]]))
    found = {m.name: m.value for m in e.metrics()}
    assert found == {"top1_agreement/y": 100.0, "sqnr/y": 200.0, "cosine/y": pytest.approx(1.0), "kl/y": 0.0}


def test_sqnr_of_a_tenth_is_twenty_decibels() -> None:
    assert sqnr_db(np.array([1.0, 1.0]), np.array([1.1, 0.9])) == pytest.approx(20.0)


def test_kl_of_two_coins() -> None:
    p, q = np.array([[0.5, 0.5]]), np.array([[0.9, 0.1]])
    assert kl_divergence(p, q) == pytest.approx(0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1))


def test_agreement_without_a_reference_says_what_to_give() -> None:
    with pytest.raises(DataError, match="--reference"):
        observe(Agreement(), sample([1.0]))


def test_user_function_is_averaged_with_an_interval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_task.py").write_text("def score(outputs, target):\n    return {'first': outputs['y'][0]}\n")
    monkeypatch.chdir(tmp_path)
    e = make_evaluator("my_task:score")
    observe(e, sample([1.0]))
    observe(e, sample([3.0]))
    assert e.metrics()[0].value == 2.0


def test_unknown_task_lists_the_known() -> None:
    with pytest.raises(UsageError, match="classification"):
        make_evaluator("clasification")


@pytest.mark.parametrize("task", [t for t in EVALUATORS if t != "agreement"])
def test_missing_label_names_the_sample(task: str) -> None:
    with pytest.raises(DataError, match=r"a\.png"):
        observe(EVALUATORS[task]({}), sample(np.zeros((2, 6))))
