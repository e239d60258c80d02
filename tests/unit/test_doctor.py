# SPDX-License-Identifier: Apache-2.0
"""The doctor says what is wrong with data, and nothing of data that is right; also in passing, inside quantize()."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.quantizing import model as make_model
from wia_quant.data import Batch
from wia_quant.doctor import CHECKS, Symptom, examine
from wia_quant.doctor.base import LazyRun
from wia_quant.errors import ModelError
from wia_quant.quantizer import quantize

Array = npt.NDArray[np.float32]
Pictures = list[Array]

SIDE, CLASSES, SAMPLES = 24, 12, 60


def smooth(rng: np.random.Generator) -> Array:
    """[3, SIDE, SIDE]: 4 x 4 random colours, bilinear, mean 0, about deviation 1."""
    small = rng.normal(size=(3, 4, 4))
    at = np.linspace(0, 2.999, SIDE)
    low, share = at.astype(int), at % 1
    rows = small[:, low] * (1 - share)[:, None] + small[:, low + 1] * share[:, None]
    whole = rows[:, :, low] * (1 - share) + rows[:, :, low + 1] * share
    return np.asarray((whole - whole.mean()) / whole.std(), np.float32)


RNG = np.random.default_rng(7)
PATTERNS = np.stack([smooth(RNG) for _ in range(CLASSES)])


def classifier() -> onnx.ModelProto:
    """The logits are how much a picture of -1..1 looks like each of twelve patterns: Conv over the whole picture.

    As in trained nets, what lies outside of -1..1 is cut off, and the sums of the weights differ.
    """
    nodes = [
        helper.make_node("Clip", ["x", "lo", "hi"], ["clipped"], "clip"),
        helper.make_node("Conv", ["clipped", "w", "b"], ["c"], "match"),
        helper.make_node("Flatten", ["c"], ["logits"], "flat"),
    ]
    sums = np.linspace(-0.6, 0.6, CLASSES).reshape(-1, 1, 1, 1)
    constants = {
        "w": ((PATTERNS + sums) * 14 / PATTERNS[0].size).astype(np.float32),
        "b": np.zeros(CLASSES, np.float32),
        "lo": np.array(-1, np.float32),
        "hi": np.array(1, np.float32),
    }
    return make_model(nodes, {"x": ["n", 3, SIDE, SIDE]}, ["logits"], constants)


def pictures(n: int = SAMPLES, seed: int = 1) -> Pictures:
    """Pixels of 0 to 255, [1, 3, SIDE, SIDE] each: patterns with noise, of different contrast and light."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        light, contrast = rng.uniform(-0.2, 0.2), rng.uniform(0.3, 0.5)
        x = light + contrast * (PATTERNS[i % CLASSES] + 0.5 * smooth(rng) + 0.03 * rng.normal(size=PATTERNS[0].shape))
        made.append(np.round(np.clip((x + 1) * 127.5, 0, 255)).astype(np.float32)[None])
    return made


def right(pixels: Pictures) -> Pictures:
    return [p / 127.5 - 1 for p in pixels]


def batches(samples: Pictures) -> Iterator[Batch]:
    for i, x in enumerate(samples):
        yield Batch({"x": np.ascontiguousarray(x, np.float32)}, f"{i}.png", 1)


def said(samples: Pictures) -> list[Symptom]:
    return examine(classifier().SerializeToString(), batches(samples))


MEAN = np.array([0.485, 0.456, 0.406], np.float32).reshape(1, 3, 1, 1)
STD = np.array([0.229, 0.224, 0.225], np.float32).reshape(1, 3, 1, 1)


def letterboxed(p: Array) -> Array:
    made = np.full_like(p, 114)
    made[:, :, 5:-5] = p[:, :, np.linspace(0, SIDE - 1, SIDE - 10).round().astype(int)]
    return made


WRONG: dict[str, tuple[Callable[[Pictures], Pictures], str, str]] = {
    "pixels": (lambda px: px, "confidence", "pixels brought to -1..1"),
    "0 to 1": (lambda px: [p / 255 for p in px], "confidence", "values brought to -1..1"),
    "other colours": (lambda px: right([p[:, ::-1] for p in px]), "confidence", "channels in the other order"),
    "upside down": (lambda px: right([p[:, :, ::-1, ::-1] for p in px]), "confidence", "180 degrees"),
    "on the side": (lambda px: right([p.swapaxes(2, 3) for p in px]), "confidence", "rows and columns"),
    "reshaped": (lambda px: right([p.transpose(0, 2, 3, 1).reshape(p.shape) for p in px]), "layout", "as NHWC"),
    "int8": (lambda px: [p.astype(np.uint8).view(np.int8) / np.float32(128) for p in px], "wrapped", "wrapped around"),
    "scaled twice": (lambda px: right([p / 255 for p in px]), "values", "all but one another"),
    "divided twice": (lambda px: [p / 255 / 255 for p in px], "values", "all but one another"),
    "black": (lambda px: right([p * 0 for p in px]), "values", "one value throughout"),
    "not a number": (lambda px: [*right(px)[1:], np.full_like(px[0], np.nan)], "values", "NaN"),
    "copies": (lambda px: right(px[:12]) * 5, "amount", "repeat another exactly"),
    "few": (lambda px: right(px[:5]), "amount", "only 5 samples"),
    "two kinds": (lambda px: [*right(px[:30]), *px[30:]], "halves", "the first half"),
}

RIGHT: dict[str, Callable[[], Pictures]] = {
    "as they should be": lambda: right(pictures()),
    "others": lambda: right(pictures(seed=2)),
    "few, but enough": lambda: right(pictures(16, seed=3)),
    "darker": lambda: right([p * 0.9 for p in pictures()]),
    "of less contrast": lambda: right([(p - 127) * 0.5 + 127 for p in pictures()]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_data_is_named(name: str) -> None:
    spoil, check, words = WRONG[name]
    found = [s for s in said(spoil(pictures())) if s.check == check]
    assert any(words in s.message for s in found), said(spoil(pictures()))
    assert all(s.remedy for s in found)


@pytest.mark.parametrize("name", RIGHT)
def test_right_data_leaves_every_check_silent(name: str) -> None:
    assert said(RIGHT[name]()) == []


def test_every_check_has_a_wrong_case() -> None:
    assert {check for _, check, _ in WRONG.values()} == set(CHECKS)


def test_bars_that_a_model_did_not_learn_are_found() -> None:
    found = said(right([letterboxed(p) for p in pictures()]))
    assert any("bars" in s.message for s in found), found


def test_bars_that_a_model_does_not_mind_are_a_hint() -> None:
    """Bars of the very value that the model takes for nothing, around pictures that it knows in this place."""
    barred = right(pictures())
    for x in barred:
        x[:, :, :4] = x[:, :, -4:] = 0
    found = said(barred)
    assert [(s.check, s.sure) for s in found] == [("confidence", False)]
    assert "60 of 60 pictures stand between two bars" in found[0].message


def test_the_margins_of_grey_drawings_are_no_bars() -> None:
    grey = [x.mean(axis=1, keepdims=True) for x in right(pictures())]
    for x in grey:
        x[:, :, :, :4] = x[:, :, :, -4:] = -1
    net = classifier()
    net.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    weight = next(t for t in net.graph.initializer if t.name == "w")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight).mean(axis=1, keepdims=True), "w"))
    found = examine(net.SerializeToString(), batches(grey))
    assert [s for s in found if "bars of one colour" in s.message] == []


def test_an_embedding_is_no_classifier() -> None:
    """Its unit vectors have a peak and a tail too, but tell no classes apart."""
    net = classifier()
    net.graph.node.append(helper.make_node("LpNormalization", ["logits"], ["e"], "unit", axis=1))
    net.graph.output[0].name = "e"
    spoiled = right([p[:, ::-1] for p in pictures()])
    assert [s for s in examine(net.SerializeToString(), batches(spoiled)) if s.check == "confidence"] == []


def test_a_model_of_tokens_is_not_even_loaded() -> None:
    rng = np.random.default_rng(0)
    tokens = [Batch({"x": rng.integers(0, 99, (1, 32))}, f"{i}", 1) for i in range(40)]
    assert examine(b"no model at all", tokens) == []


def test_the_model_is_loaded_once() -> None:
    asked: list[int] = []

    def model() -> bytes:
        asked.append(1)
        return classifier().SerializeToString()

    run = LazyRun(model)
    for x in right(pictures(3)):
        run({"x": x})
    assert len(asked) == 1


def test_rows_that_fill_a_batch_up_are_no_copies() -> None:
    x = right(pictures(18))
    full = [Batch({"x": np.concatenate(x[i : i + 4])}, f"{i}", 4) for i in range(0, 16, 4)]
    last = Batch({"x": np.concatenate([*x[16:18], *x[16:18]])}, "16", 4, ["16", "17"])
    assert examine(classifier().SerializeToString(), [*full, last]) == []


def test_quantize_warns_of_wrong_preprocessing_and_is_silent_of_right() -> None:
    wrong = quantize(classifier(), list(batches(pictures())))
    assert [s.check for s in wrong.symptoms] == ["confidence"]
    assert quantize(classifier(), list(batches(right(pictures())))).symptoms == ()
    assert quantize(classifier(), list(batches(pictures())), examine=False).symptoms == ()


def test_a_model_that_the_doctor_cannot_run_is_quantized_and_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise ModelError("onnxruntime cannot load the model: no kernel")

    monkeypatch.setattr("wia_quant.doctor.base.OnnxRuntimeExecutor", refuse)
    (only,) = quantize(classifier(), list(batches(right(pictures())))).symptoms
    assert "could not be examined: onnxruntime cannot load the model: no kernel" in only.message
    assert not only.sure


def test_quantize_writes_the_same_whether_it_examines_or_not() -> None:
    data = list(batches(right(pictures(20))))
    one, other = (quantize(classifier(), data, examine=e).model.SerializeToString() for e in (True, False))
    assert one == other


def test_what_the_model_answers_does_not_hang_on_the_size_of_batches() -> None:
    spoiled = right([p[:, ::-1] for p in pictures()])
    joined = [Batch({"x": np.concatenate(spoiled[i : i + 10])}, f"{i}", 10) for i in range(0, SAMPLES, 10)]
    one = examine(classifier().SerializeToString(), joined)
    assert [s.check for s in one] == [s.check for s in said(spoiled)] == ["confidence"]
