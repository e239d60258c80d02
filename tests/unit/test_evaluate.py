# SPDX-License-Identifier: Apache-2.0
"""Evaluation end to end on a model whose right answers are known: it says which colour a picture has most of."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from wia_quant.errors import DataError, ModelError, UsageError
from wia_quant.executors import EXECUTORS
from wia_quant.executors.wia import WiaExecutor
from wia_quant.labels import labels_of_folders, load_labels
from wia_quant.measurement import evaluate

CLASSES = ("blue", "green", "red")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """[N, 3, 8, 8] in RGB -> the mean of each colour, in the order of the sorted class names."""
    nodes = [
        helper.make_node("GlobalAveragePool", ["x"], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flatten"),
        helper.make_node("Gather", ["f", "order"], ["y"], "order", axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [helper.make_tensor("order", TensorProto.INT64, [3], [2, 1, 0])],
    )
    path = tmp_path / "colours.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Three pictures a class, one of them labelled wrongly."""
    rng = np.random.default_rng(0)
    for index, name in enumerate(CLASSES):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 100, (8, 8, 3)).astype(np.uint8)
            shown = (index + 1) % 3 if (name, i) == ("red", 2) else index
            pixels[:, :, 2 - shown] += 120
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{name}{i}.png")
    return tmp_path / "data"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_class_folders_are_labels(model: Path, pictures: Path, executor: str) -> None:
    found = evaluate(model, pictures, executor=executor, preprocess="zero_one")
    assert found.metrics[0].name == "top1"
    assert found.metrics[0].value == pytest.approx(100 * 8 / 9)
    assert found.data["n_samples"] == 9
    assert [s.name for s in found.samples if not s.scores["top1"]] == ["red/red2.png"]


def test_without_labels_agreement_with_the_reference(model: Path, pictures: Path) -> None:
    found = evaluate(model, pictures, reference=model, task="agreement", preprocess="zero_one")
    assert found.metrics[0].name == "top1_agreement/y"
    assert found.metrics[0].value == 100.0


def test_agreement_without_a_reference_says_what_to_give(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 3, 8, 8), np.float32))
    with pytest.raises(UsageError, match="--reference FLOAT or --labels"):
        evaluate(model, tmp_path / "x.npy")


def test_rows_of_an_array_are_samples_of_their_own(model: Path, tmp_path: Path) -> None:
    x = np.zeros((4, 3, 8, 8), np.float32)
    x[:, 0] = 1
    np.save(tmp_path / "x.npy", x)
    found = evaluate(model, tmp_path / "x.npy", reference=model)
    assert found.data["n_samples"] == 4
    assert len({s.name for s in found.samples}) == 4


def test_two_evaluations_are_equal_but_for_time(model: Path, pictures: Path) -> None:
    def text() -> dict[str, object]:
        kept = json.loads(evaluate(model, pictures, preprocess="zero_one").to_json())
        del kept["latency_ms"]
        return dict(kept)

    assert text() == text()


@pytest.mark.parametrize(("batch", "workers"), [(1, 3), (4, 1), (2, 2)])
def test_workers_and_batches_change_no_figure(model: Path, pictures: Path, batch: int, workers: int) -> None:
    one = evaluate(model, pictures, preprocess="zero_one")
    many = evaluate(model, pictures, preprocess="zero_one", batch=batch, workers=workers)
    assert (many.metrics, many.samples, many.data) == (one.metrics, one.samples, one.data)


class Stop(Exception):
    """What ends a run in the middle."""


def interrupt_after(n: int) -> Callable[[int, int | None, str], None]:
    def progress(done: int, total: int | None, what: str) -> None:
        if done == n:
            raise Stop

    return progress


def counted(run: Callable[..., object], ran: list[str]) -> Callable[..., object]:
    def counting(self: WiaExecutor, feed: object) -> object:
        ran.append("run")
        return run(self, feed)

    return counting


@pytest.mark.parametrize("cut", [0, 7], ids=["whole", "cut off"])
def test_an_interrupted_evaluation_goes_on_and_ends_the_same(
    model: Path, pictures: Path, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = pictures.parent / "result.partial"
    with pytest.raises(Stop):
        evaluate(model, pictures, preprocess="zero_one", journal=journal, progress=interrupt_after(4))
    journal.write_text(journal.read_text()[: -cut or None])
    ran: list[str] = []
    whole = evaluate(model, pictures, preprocess="zero_one")
    monkeypatch.setattr(WiaExecutor, "run", counted(WiaExecutor.run, ran))
    resumed = evaluate(model, pictures, preprocess="zero_one", journal=journal)
    assert 0 < len(ran) < 9
    assert not journal.exists()
    assert replace(resumed, latency_ms={}) == replace(whole, latency_ms={})


def test_the_journal_of_another_evaluation_is_refused(model: Path, pictures: Path, tmp_path: Path) -> None:
    journal = tmp_path / "result.partial"
    with pytest.raises(Stop):
        evaluate(model, pictures, preprocess="zero_one", journal=journal, progress=interrupt_after(2))
    with pytest.raises(UsageError, match=r"result\.partial.*another"):
        evaluate(model, pictures, preprocess="imagenet", journal=journal)


def test_data_that_changed_since_the_interruption_is_named(model: Path, pictures: Path, tmp_path: Path) -> None:
    journal = tmp_path / "result.partial"
    with pytest.raises(Stop):
        evaluate(model, pictures, preprocess="zero_one", journal=journal, progress=interrupt_after(3))
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(pictures / "blue" / "blue0.png")
    with pytest.raises(DataError, match="has changed"):
        evaluate(model, pictures, preprocess="zero_one", journal=journal)


def test_samples_that_fill_the_last_batch_are_not_counted_twice(model: Path, pictures: Path) -> None:
    proto = onnx.load(model)
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    found = evaluate(proto, pictures, preprocess="zero_one")
    assert [s.name for s in found.samples] == [s.name for s in evaluate(model, pictures, preprocess="zero_one").samples]
    assert found.metrics[0].value == pytest.approx(100 * 8 / 9)


def test_an_output_without_a_batch_axis_cannot_be_split(model: Path, pictures: Path) -> None:
    proto = onnx.load(model)
    proto.graph.node.append(helper.make_node("ReduceMean", ["y"], ["m"], "mean", axes=[0], keepdims=0))
    proto.graph.output.append(helper.make_tensor_value_info("m", TensorProto.FLOAT, [3]))
    with pytest.raises(UsageError, match=r"'m'.*--batch 1"):
        evaluate(proto, pictures, preprocess="zero_one", batch=2)


def test_a_model_with_external_weights_is_read_whole(model: Path, pictures: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    onnx.save(proto, tmp_path / "apart.onnx", save_as_external_data=True, location="apart.bin", size_threshold=0)
    found = evaluate(tmp_path / "apart.onnx", pictures, preprocess="zero_one")
    assert found.metrics == evaluate(model, pictures, preprocess="zero_one").metrics


def test_a_line_of_digits_is_a_text_for_ocr(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("file,text\na.png,0071\nb.png,71\n")
    labels = load_labels(tmp_path / "l.csv")
    assert (labels["a.png"], labels["b.png"]) == ("0071", 71)


def test_sample_without_a_label_is_named(model: Path, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("file,label\nblue0.png,0\n")
    with pytest.raises(DataError, match=r"blue/blue1\.png.*no label.*labels\.csv"):
        evaluate(model, pictures, labels=tmp_path / "labels.csv", preprocess="zero_one")


def test_missing_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"nowhere\.onnx"):
        evaluate(tmp_path / "nowhere.onnx", tmp_path)


def test_csv_with_and_without_a_head(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("file,label\na.png,3\nb.png,hello\n")
    (tmp_path / "b.csv").write_text("a.png,3\nb.png,hello\n")
    for name in ("a.csv", "b.csv"):
        labels = load_labels(tmp_path / name)
        assert (labels["a.png"], labels["x/b.png"], len(labels)) == (3, "hello", 2)


def test_coco_annotations_are_grouped_by_picture(tmp_path: Path) -> None:
    box = {"image_id": 7, "bbox": [1, 2, 3, 4], "category_id": 1}
    (tmp_path / "c.json").write_text(json.dumps({"images": [{"id": 7, "file_name": "a.png"}], "annotations": [box]}))
    assert load_labels(tmp_path / "c.json")["a.png"] == [box]


def test_equal_bare_names_are_told_apart_by_their_path(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("a/x.png,0\nb/x.png,1\n")
    labels = load_labels(tmp_path / "l.csv")
    assert (labels["a/x.png"], labels["b/x.png"]) == (0, 1)
    assert "x.png" not in labels


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("l.csv", "a.png\n", "line 1"),
        ("l.csv", "file,label\n", "no line"),
        ("l.json", "{", "not JSON"),
        ("l.json", "[]", "object"),
        ("l.json", '{"images": [{"id": 1}], "annotations": []}', "file_name"),
        ("l.xml", "", "use .csv"),
    ],
)
def test_broken_labels_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        load_labels(tmp_path / name)


def test_flat_folder_has_no_labels(tmp_path: Path) -> None:
    assert labels_of_folders(tmp_path) is None
