# SPDX-License-Identifier: Apache-2.0
"""Data in every form that users have it in, and every way it can be wrong."""

from __future__ import annotations

import json
import os
import threading
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image

from wia_quant.data import Dataset, open_data
from wia_quant.errors import DataError, ModelError, UsageError
from wia_quant.inputs import ModelInput, as_model_inputs
from wia_quant.recipe import recorded_preprocess

IMAGE = [ModelInput("x", (None, 3, 8, 8), "float32")]
IDS = [ModelInput("ids", (None, 16), "int64"), ModelInput("mask", (None, 16), "int64")]


def pixels(seed: int = 0, height: int = 12, width: int = 10) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten pictures, nested, of all kinds, and two files that are none."""
    root = tmp_path / "pictures"
    (root / "cats" / "small").mkdir(parents=True)
    (root / ".cache").mkdir()
    for n, name in enumerate(["a.jpg", "b.JPEG", "cats/c.png", "cats/d.bmp", "cats/small/e.webp", "f.tiff", "g.gif"]):
        Image.fromarray(pixels(n)).save(root / name)
    Image.fromarray(pixels(7)).convert("L").save(root / "gray.png")
    Image.fromarray(pixels(8)).convert("CMYK").save(root / "cmyk.jpg")
    Image.fromarray(pixels(9)).convert("RGBA").save(root / "alpha.png")
    (root / "labels.txt").write_text("cat")
    (root / "README").write_text("pictures")
    Image.fromarray(pixels(10)).save(root / ".cache" / "hidden.png")
    return root


def values(dataset: Dataset, name: str = "x") -> np.ndarray[Any, Any]:
    return np.concatenate([batch[name] for batch in dataset])


# ---- pictures -------------------------------------------------------------------------------------------------


def test_a_folder_is_searched_to_the_bottom_and_hidden_files_left_alone(folder: Path) -> None:
    dataset = open_data(folder, IMAGE, preprocess="raw")
    assert values(dataset).shape == (10, 3, 8, 8)
    assert dataset.summary.used == dataset.summary.batches == dataset.summary.available == 10
    assert dataset.summary.ignored == 2
    assert dataset.summary.skipped == {}


def test_threads_that_read_change_nothing(folder: Path) -> None:
    (folder / "broken.jpg").write_bytes(b"no picture")
    filters = list(warnings.filters)
    one, many = (open_data(folder, IMAGE, preprocess="raw", samples=7, readers=n) for n in (1, 3))
    assert [(b.source, b["x"].tobytes()) for b in one] == [(b.source, b["x"].tobytes()) for b in many]
    assert one.summary == many.summary
    assert warnings.filters == filters


def test_reading_ahead_ends_when_the_reader_stops(folder: Path) -> None:
    batches = iter(open_data(folder, IMAGE, preprocess="raw", readers=2))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert not [
        t.name for t in threading.enumerate() if t.name.startswith("wia-read") and not t.join(5) and t.is_alive()
    ]


def test_a_batch_says_which_file_it_is_of(folder: Path) -> None:
    sources = [batch.source for batch in open_data(folder, IMAGE, preprocess="raw")]
    assert sources == sorted(sources)
    assert os.path.join("cats", "small", "e.webp") in sources


def test_a_broken_picture_is_named_and_skipped_with_its_reason(folder: Path) -> None:
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    whole = (folder / "cats" / "c.png").read_bytes()
    (folder / "cats" / "cut.png").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.webp").write_bytes(b"")
    dataset = open_data(folder, IMAGE, preprocess="raw")
    assert values(dataset).shape[0] == 10
    assert set(dataset.summary.skipped) == {"broken.jpg", os.path.join("cats", "cut.png"), "empty.webp"}
    assert all("cannot be read as a picture" in why for why in dataset.summary.skipped.values())


def test_strict_makes_a_broken_picture_an_error(folder: Path) -> None:
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    with pytest.raises(DataError, match=r"broken\.jpg: cannot be read as a picture"):
        list(open_data(folder, IMAGE, preprocess="raw", strict=True))


def test_a_picture_too_large_to_be_safe_is_skipped_and_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 500)
    Image.fromarray(pixels(0, 40, 40)).save(folder / "huge.png")
    dataset = open_data(folder, IMAGE, preprocess="raw")
    assert values(dataset).shape[0] == 10
    assert "too large" in dataset.summary.skipped["huge.png"]


def test_a_picture_with_a_warning_of_its_size_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert values(open_data(folder, IMAGE, preprocess="raw")).shape[0] == 10


def test_others_step_in_for_broken_pictures(folder: Path) -> None:
    for n in range(10):
        (folder / f"z{n}.jpg").write_bytes(b"broken")
    dataset = open_data(folder, IMAGE, preprocess="raw", samples=9)
    assert values(dataset).shape[0] == 9
    assert 0 < len(dataset.summary.skipped) < 11


def test_only_broken_pictures_are_an_error_with_the_reasons(tmp_path: Path) -> None:
    for n in range(5):
        (tmp_path / f"{n}.jpg").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"none of the 5 files could be read \(0\.jpg: cannot"):
        list(open_data(tmp_path, IMAGE, preprocess="raw"))


def test_a_single_picture_is_data_too(folder: Path) -> None:
    dataset = open_data(folder / "a.jpg", IMAGE, preprocess="raw")
    assert [Path(batch.source).name for batch in dataset] == ["a.jpg"]


def test_a_list_of_files_is_read_in_its_order(folder: Path) -> None:
    files = [folder / "g.gif", str(folder / "a.jpg")]
    assert [Path(b.source).name for b in open_data(files, IMAGE, preprocess="raw")] == ["g.gif", "a.jpg"]
    with pytest.raises(DataError, match=r"absent\.png: no such file"):
        open_data([folder / "absent.png"], IMAGE)


def test_an_empty_folder_is_said_to_be_empty(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="the folder is empty"):
        open_data(tmp_path, IMAGE)


def test_a_folder_without_pictures_says_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError, match=r"none of its 1 files is a picture \(\.jpg, .*the first is notes\.txt"):
        open_data(tmp_path, IMAGE)


def test_a_path_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file or folder"):
        open_data(tmp_path / "nowhere", IMAGE)


def test_text_is_refused_with_what_serves(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("hello")
    with pytest.raises(DataError, match=r"text and sound go into a \.npz"):
        open_data(tmp_path / "lines.txt", IDS)


def test_pictures_and_arrays_in_one_folder_are_not_guessed_about(folder: Path) -> None:
    np.save(folder / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    with pytest.raises(DataError, match="10 pictures and 1 array files; keep one kind"):
        open_data(folder, IMAGE)


def test_pictures_for_a_text_model_are_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"models of one input; this one takes ids \[\?, 16\], mask"):
        open_data(folder, IDS)
    with pytest.raises(DataError, match=r"pictures give 4 axes, but the model's input 'ids' takes \[\?, 16\] int64"):
        open_data(folder, IDS[:1])


@pytest.mark.parametrize(
    ("shape", "dtype", "preset", "channels_last"),
    [
        ((None, 3, 8, 8), "float32", "imagenet", False),
        ((1, 3, 8, 8), "float16", "imagenet", False),
        ((None, 8, 8, 3), "float32", "tf", True),
        ((None, 8, 8, 3), "uint8", "raw", True),
        ((None, 1, 8, 8), "float32", "gray", False),
        ((None, 8, 8, 1), "uint8", "gray", True),
    ],
    ids=str,
)
def test_preprocessing_is_guessed_where_it_can_be_and_said(
    folder: Path, shape: tuple[int | None, ...], dtype: str, preset: str, channels_last: bool
) -> None:
    dataset = open_data(folder, [ModelInput("x", shape, dtype)])
    batch = next(iter(dataset))
    assert batch["x"].dtype == np.dtype(dtype)
    assert batch["x"].shape[1:] == shape[1:]
    assert dataset.summary.preprocess is not None
    assert dataset.summary.preprocess["layout"] == ("nhwc" if channels_last else "nchw")
    assert any(f"guessed to be {preset!r}" in note for note in dataset.summary.notes)


def test_pixels_of_an_integer_input_stay_pixels(folder: Path) -> None:
    got = values(open_data(folder, [ModelInput("x", (None, 8, 8, 1), "uint8")]))
    assert got.max() > 200


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((None, 4, 8, 8), "neither its second axis nor its last is the 1 or 3 channels"),
        ((None, None, None, None), "where the channels are cannot be told"),
        ((None, 3, None, None), r'leaves the size open.*"size": \[224, 224\]'),
        ((None, 3, 8, 3), "channels may be the second axis or the last"),
    ],
    ids=str,
)
def test_what_cannot_be_guessed_is_asked_for(folder: Path, shape: tuple[int | None, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data(folder, [ModelInput("x", shape, "float32")])


def test_a_preprocessing_that_cannot_fit_the_model_is_an_error(folder: Path) -> None:
    with pytest.raises(DataError, match=r"3 channels; the preprocessing 'gray' gives 1"):
        open_data(folder, IMAGE, preprocess="gray")
    with pytest.raises(DataError, match=r"gives pictures of 9 x 8, but input 'x' takes \[\?, 3, 8, 8\]"):
        open_data(folder, IMAGE, preprocess={"size": [9, 8]})
    with pytest.raises(DataError, match=r"a\.jpg.*takes \[\?, 3, 8, 8\], but the data is \[1, 3, 12, 10\]"):
        list(open_data(folder / "a.jpg", IMAGE, preprocess={"resize": "none"}))


def test_a_given_layout_serves_a_model_that_leaves_all_open(folder: Path) -> None:
    dataset = open_data(
        folder,
        [ModelInput("x", (None, None, None, None), "float32")],
        preprocess={"size": [5, 6], "layout": "nhwc"},
    )
    assert values(dataset).shape == (10, 5, 6, 3)


def test_pictures_of_their_own_size_for_a_model_that_takes_any(folder: Path) -> None:
    Image.fromarray(pixels(1, 70, 50)).save(folder / "larger.png")
    spec = {"preset": "ppocr_det"}
    shapes = {
        b["x"].shape for b in open_data(folder, [ModelInput("x", (None, 3, None, None), "float32")], preprocess=spec)
    }
    assert shapes == {(1, 3, 32, 32), (1, 3, 64, 64)}


def test_a_height_alone_is_taken_from_the_model(folder: Path) -> None:
    dataset = open_data(folder, [ModelInput("x", (None, 3, 48, None), "float32")], preprocess="ppocr_rec")
    assert {b["x"].shape for b in dataset} == {(1, 3, 48, 40)}


# ---- a fixed batch --------------------------------------------------------------------------------------------


def test_a_fixed_batch_is_filled_with_several_pictures(folder: Path) -> None:
    dataset = open_data(folder, [ModelInput("x", (5, 3, 8, 8), "float32")], preprocess="raw")
    assert [b["x"].shape[0] for b in dataset] == [5, 5]
    assert dataset.summary.repeated == 0
    one_by_one = values(open_data(folder, IMAGE, preprocess="raw"))
    assert np.array_equal(values(dataset), one_by_one)


def test_the_tail_of_a_fixed_batch_is_filled_with_the_first_and_said(folder: Path) -> None:
    dataset = open_data(folder, [ModelInput("x", (4, 3, 8, 8), "float32")], preprocess="raw")
    got = values(dataset)
    assert got.shape[0] == 12
    assert np.array_equal(got[10:], got[:2])
    assert (dataset.summary.used, dataset.summary.batches, dataset.summary.repeated) == (10, 3, 2)
    assert any("filled with 2 samples" in note for note in dataset.summary.notes)
    assert dataset.n_batches == 3


def test_fewer_pictures_than_the_batch_are_repeated(folder: Path) -> None:
    got = values(open_data(folder / "a.jpg", [ModelInput("x", (3, 3, 8, 8), "float32")], preprocess="raw"))
    assert got.shape[0] == 3
    assert np.array_equal(got[0], got[2])


def test_a_fixed_batch_of_pictures_that_differ_in_size_is_an_error(folder: Path) -> None:
    Image.fromarray(pixels(1, 70, 50)).save(folder / "b2.png")
    with pytest.raises(DataError, match="takes 4 samples at once, but theirs differ in shape"):
        list(open_data(folder, [ModelInput("x", (4, 3, None, None), "float32")], preprocess="ppocr_det"))


# ---- which samples --------------------------------------------------------------------------------------------


def test_of_more_than_enough_some_are_taken_evenly_and_reproducibly() -> None:
    data = np.arange(1000, dtype=np.float32).reshape(1000, 1)
    spec = [ModelInput("x", (None, 1), "float32")]
    got = values(open_data(data, spec, samples=10, seed=3)).ravel()
    assert np.array_equal(got, values(open_data(data, spec, samples=10, seed=3)).ravel())
    assert set(np.diff(got)) == {100.0}
    assert not np.array_equal(got, values(open_data(data, spec, samples=10, seed=5)).ravel())
    dataset = open_data(data, spec, samples=10)
    assert dataset.summary.order == "10 of 1000 spread evenly"
    assert (dataset.summary.seed, dataset.summary.available, dataset.summary.requested) == (0, 1000, 10)


def test_at_most_300_samples_by_default() -> None:
    data = np.zeros((1000, 1), np.float32)
    assert len(values(open_data(data, [ModelInput("x", (None, 1), "float32")]))) == 300


def test_the_digest_is_of_the_content_and_the_order(folder: Path) -> None:
    def digest(**options: Any) -> str:
        dataset = open_data(folder, IMAGE, preprocess="raw", **options)
        list(dataset)
        return dataset.summary.digest

    first = digest()
    assert first == digest()
    assert len(first) == 64
    assert digest(samples=4) != first
    Image.fromarray(pixels(99)).save(folder / "a.jpg")
    assert digest() != first


def test_iterating_twice_gives_the_same_and_counts_once(folder: Path) -> None:
    (folder / "broken.jpg").write_bytes(b"")
    dataset = open_data(folder, IMAGE, preprocess="raw")
    first, second = values(dataset), values(dataset)
    assert np.array_equal(first, second)
    assert dataset.summary.used == 10
    assert len(dataset.summary.skipped) == 1


@pytest.mark.parametrize("samples", [0, -1])
def test_no_samples_are_refused(samples: int) -> None:
    with pytest.raises(UsageError, match="at least 1"):
        open_data([np.zeros(1)], IMAGE, samples=samples)


# ---- arrays ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "compressed"])
def test_a_npz_has_one_array_per_input_and_a_sample_per_row(tmp_path: Path, save: Any) -> None:
    ids = np.arange(5 * 16).reshape(5, 16)
    save(tmp_path / "d.npz", ids=ids, mask=ids % 2, label=np.arange(5))
    dataset = open_data(tmp_path / "d.npz", IDS)
    batches = list(dataset)
    assert [b["ids"].shape for b in batches] == [(1, 16)] * 5
    assert np.array_equal(values(dataset, "ids"), ids)
    assert np.array_equal(values(dataset, "mask"), ids % 2)
    assert any("ignored: label" in note for note in dataset.summary.notes)


def test_a_npz_lacking_an_input_says_what_it_has(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", ids=np.zeros((2, 16), np.int64), labels=np.zeros(2))
    with pytest.raises(DataError, match="no array for input 'mask'; it has ids, labels"):
        open_data(tmp_path / "d.npz", IDS)


def test_arrays_without_names_are_taken_in_order(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", np.ones((2, 16), np.int64), np.zeros((2, 16), np.int64))
    dataset = open_data(tmp_path / "d.npz", IDS)
    assert values(dataset, "ids").all()
    assert not values(dataset, "mask").any()


def test_a_npy_is_the_only_input(tmp_path: Path) -> None:
    data = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "d.npy", data)
    assert np.array_equal(values(open_data(tmp_path / "d.npy", IMAGE)), data)
    np.save(tmp_path / "one.npy", data[0])
    assert np.array_equal(values(open_data(tmp_path / "one.npy", IMAGE)), data[:1])
    with pytest.raises(DataError, match="one array, but the model takes 2"):
        open_data(tmp_path / "d.npy", IDS)


def test_a_folder_of_npz_gives_a_batch_per_file(tmp_path: Path) -> None:
    for n in range(4):
        np.savez(tmp_path / f"{n}.npz", ids=np.full((1, 16), n), mask=np.ones((1, 16), np.int64))
    dataset = open_data(tmp_path, IDS)
    assert values(dataset, "ids")[:, 0].tolist() == [0, 1, 2, 3]
    assert [b.source for b in dataset] == ["0.npz", "1.npz", "2.npz", "3.npz"]
    assert dataset.summary.available == 4


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "not a .npz"), (b"PK\x03\x04 cut", "not a .npz"), (b"text", "not a .npz")],
    ids=["empty", "cut", "text"],
)
def test_a_broken_npz_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "d.npz").write_bytes(content)
    with pytest.raises(DataError, match=rf"d\.npz: {message}"):
        open_data(tmp_path / "d.npz", IMAGE)


def test_an_array_cut_short_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.zeros((4, 3, 8, 8), np.float32))
    whole = (tmp_path / "d.npy").read_bytes()
    (tmp_path / "d.npy").write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"d\.npy: array 'x': the file ends too early"):
        list(open_data(tmp_path / "d.npy", IMAGE))
    (tmp_path / "d.npy").write_bytes(whole[:20])
    with pytest.raises(DataError, match=r"d\.npy: array 'x': not a numpy array"):
        open_data(tmp_path / "d.npy", IMAGE)


def test_an_array_of_python_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.array([{"a": 1}, None]), allow_pickle=True)
    with pytest.raises(DataError, match="holds Python objects"):
        open_data(tmp_path / "d.npy", IMAGE)


def test_an_array_stored_by_columns_says_how_to_save_it(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.asfortranarray(np.random.default_rng(0).random((4, 3, 8, 8), np.float32)))
    with pytest.raises(DataError, match="ascontiguousarray"):
        list(open_data(tmp_path / "d.npy", IMAGE))


def test_rows_that_do_not_match_are_counted_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", ids=np.zeros((3, 16), np.int64), mask=np.zeros((4, 16), np.int64))
    with pytest.raises(DataError, match=r"as long everywhere: ids \[3, 16\], mask \[4, 16\]"):
        open_data(tmp_path / "d.npz", IDS)


def test_an_array_without_rows_is_an_error(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.zeros((0, 3, 8, 8), np.float32))
    with pytest.raises(DataError, match="hold no sample"):
        open_data(tmp_path / "d.npy", IMAGE)


def test_a_large_array_is_not_read_at_once(tmp_path: Path) -> None:
    path = tmp_path / "d.npy"
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(4000, 3, 32, 32)).flush()
    dataset = open_data(path, [ModelInput("x", (None, 3, 32, 32), "float32")], samples=50)
    tracemalloc.start()
    assert sum(1 for _ in dataset) == 50
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20  # the file is 49 MB


def test_preprocessing_of_arrays_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "d.npy", np.zeros((1, 3, 8, 8), np.float32))
    with pytest.raises(UsageError, match="preprocessing is for pictures"):
        open_data(tmp_path / "d.npy", IMAGE, preprocess="imagenet")
    with pytest.raises(UsageError, match="preprocessing is for pictures"):
        open_data(np.zeros((1, 3, 8, 8), np.float32), IMAGE, preprocess="imagenet")
    with pytest.raises(UsageError, match="preprocessing is for pictures"):
        open_data([{"x": np.zeros((1, 3, 8, 8), np.float32)}], IMAGE, preprocess="imagenet")


def test_a_model_calibrated_on_pictures_could_not_be_used_with_arrays(folder: Path, tmp_path: Path) -> None:
    spec = open_data(folder, IMAGE, preprocess="imagenet").summary.preprocess
    recorded = recorded_preprocess({"wia.calibration": json.dumps({"data": {"preprocess": spec}})})
    array = np.full((1, 3, 8, 8), 7, np.float32)
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "d.npy", array)
    for source in (tmp_path / "arrays" / "d.npy", tmp_path / "arrays", array, [{"x": array}]):
        dataset = open_data(source, IMAGE, preprocess=recorded)
        assert np.array_equal(values(dataset), array)
        assert dataset.summary.preprocess is None
        assert [note for note in dataset.summary.notes if "on record is for pictures" in note]
    assert open_data(folder, IMAGE, preprocess=recorded).summary.preprocess == spec


# ---- hostile files --------------------------------------------------------------------------------------------


def mutations(content: bytes, n: int) -> Iterator[bytes]:
    """The content cut, and with bytes changed: the same ``n`` every time."""
    generator = np.random.default_rng(len(content))
    for i in range(n):
        changed = bytearray(content)
        for _ in range(int(generator.integers(1, 8))):
            changed[int(generator.integers(len(changed)))] = int(generator.integers(256))
        yield bytes(changed[: int(generator.integers(len(changed)))] if i % 4 == 0 else changed)


@pytest.mark.parametrize("suffix", ["jpg", "png", "bmp", "webp", "gif", "tiff", "ppm"])
def test_a_damaged_picture_is_read_or_named_and_never_crashes(tmp_path: Path, suffix: str) -> None:
    Image.fromarray(pixels(3, 20, 20)).save(tmp_path / f"a.{suffix}")
    content = (tmp_path / f"a.{suffix}").read_bytes()
    folder = tmp_path / "damaged"
    folder.mkdir()
    for n, changed in enumerate(mutations(content, 60)):
        (folder / f"{n:02}.{suffix}").write_bytes(changed)
    (folder / f"whole.{suffix}").write_bytes(content)
    dataset = open_data(folder, IMAGE, preprocess="raw")
    used = len(values(dataset))
    assert used >= 1
    assert used + len(dataset.summary.skipped) == 61
    assert all("cannot be read" in why or "too large" in why for why in dataset.summary.skipped.values())


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed], ids=["stored", "compressed"])
def test_a_damaged_npz_is_read_or_named_and_never_crashes(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "a.npz", x=np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32))
    content = (tmp_path / "a.npz").read_bytes()
    refused = 0
    for changed in mutations(content, 150):
        (tmp_path / "b.npz").write_bytes(changed)
        try:
            list(open_data(tmp_path / "b.npz", IMAGE))
        except DataError:
            refused += 1
    assert refused > 30


def test_a_header_that_promises_more_than_the_file_has_takes_no_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 8, 8), np.float32))
    content = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(content.replace(b"(2, 3, 8, 8), }   ", b"(2, 3, 9**9, 8), }"))
    with pytest.raises(DataError):
        list(open_data(tmp_path / "a.npy", IMAGE))
    (tmp_path / "a.npy").write_bytes(content.replace(b"(2, 3, 8, 8), }          ", b"(999999999999, 3, 8, 8),}"))
    with pytest.raises(DataError, match="the file ends too early"):
        list(open_data(tmp_path / "a.npy", IMAGE, samples=1, seed=1))


# ---- iterables ------------------------------------------------------------------------------------------------


class Tensor:
    """What a torch tensor looks like from outside."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def detach(self) -> Tensor:
        return self

    def cpu(self) -> Tensor:
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return self._array


IMAGES = np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)


@pytest.mark.parametrize(
    "source",
    [
        [{"x": IMAGES[:3]}, {"x": IMAGES[3:]}],
        [IMAGES[:3], IMAGES[3:]],
        [(IMAGES[:3], np.arange(3)), (IMAGES[3:], np.arange(3))],
        [[Tensor(IMAGES[:3]), Tensor(np.arange(3))], [Tensor(IMAGES[3:]), Tensor(np.arange(3))]],
        [{"x": Tensor(IMAGES[:3]), "label": 1}, {"x": IMAGES[3:].tolist(), "label": 2}],
        [image for image in IMAGES],  # noqa: C416  a list of samples without a batch axis
        IMAGES,
        {"x": IMAGES},
    ],
    ids=["dicts", "arrays", "tuples", "torch batches", "dicts of tensors and lists", "samples", "array", "dict"],
)
def test_what_a_loader_gives_is_taken(source: Any) -> None:
    dataset = open_data(source, IMAGE)
    assert np.array_equal(values(dataset), IMAGES)
    assert dataset.summary.used == 6


@pytest.mark.slow
def test_a_torch_loader_is_taken() -> None:
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.from_numpy(IMAGES), torch.arange(6))
    assert np.array_equal(values(open_data(torch.utils.data.DataLoader(data, batch_size=4), IMAGE)), IMAGES)


def test_samples_count_rows_and_not_the_loaders_batches() -> None:
    dataset = open_data([IMAGES, IMAGES], IMAGE, samples=8)
    assert [len(b["x"]) for b in dataset] == [6, 2]
    assert dataset.summary.used == 8


def test_an_endless_iterable_ends_at_the_samples() -> None:
    def endless() -> Iterator[np.ndarray[Any, Any]]:
        while True:
            yield IMAGES

    assert len(values(open_data(endless(), IMAGE))) == 300


def test_the_loaders_batches_are_regrouped_for_a_fixed_batch() -> None:
    dataset = open_data([IMAGES[:4], IMAGES[4:]], [ModelInput("x", (3, 3, 8, 8), "float32")])
    assert [len(b["x"]) for b in dataset] == [3, 3]
    assert np.array_equal(values(dataset), IMAGES)


def test_an_iterator_read_before_is_an_error_and_not_no_data() -> None:
    dataset = open_data(iter([IMAGES]), IMAGE)
    assert len(values(dataset)) == 6
    with pytest.raises(DataError, match="read before"):
        list(dataset)


def test_an_empty_iterable_is_an_error() -> None:
    with pytest.raises(DataError, match="empty"):
        open_data([], IMAGE)
    with pytest.raises(DataError, match="empty"):
        open_data(iter(()), IMAGE)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"y": IMAGES}, "item 0: no data for input 'x'; it has y"),
        ((), "0 arrays, but the model takes 1"),
        (IMAGES[:, :2], r"takes \[\?, 3, 8, 8\], but the data is \[6, 2, 8, 8\]"),
        (np.zeros((8, 8), np.float32), r"but the data is \[8, 8\]"),
        ({"x": "a picture"}, "of type <U9"),
        ({"x": None}, "cannot be made an array"),
        ({"x": [[1, 2], [3]]}, "cannot be made an array"),
        ({"x": IMAGES * np.nan}, "item 0: input 'x': the data holds NaN or infinity"),
        ({"x": IMAGES.astype(complex)}, "complex"),
    ],
    ids=[
        "wrong name",
        "nothing",
        "wrong channels",
        "wrong rank",
        "text",
        "None",
        "ragged",
        "not a number",
        "complex numbers",
    ],
)
def test_an_item_that_cannot_fit_is_named(item: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(open_data([item], IMAGE))


def test_other_types_are_converted_where_nothing_is_lost_and_said() -> None:
    dataset = open_data([IMAGES.astype(np.float64)], IMAGE)
    assert values(dataset).dtype == np.float32
    assert any("float64 data was converted to float32" in note for note in dataset.summary.notes)
    ids = {"ids": np.ones((1, 16), np.int32), "mask": np.ones((1, 16), bool)}
    assert values(open_data([ids], IDS), "ids").dtype == np.int64
    with pytest.raises(DataError, match="values that do not fit"):
        list(open_data([{"ids": np.full((1, 16), 0.5), "mask": ids["mask"]}], IDS))
    with pytest.raises(DataError, match="values that do not fit"):
        list(open_data([np.full((1, 4), 300)], [ModelInput("x", (None, 4), "uint8")]))


def test_a_model_without_a_common_batch_axis_takes_records_as_they_are() -> None:
    inputs = [
        ModelInput("input", (None, None), "float32"),
        ModelInput("state", (2, None, 128), "float32"),
        ModelInput("sr", (), "int64"),
    ]
    record = {
        "input": np.zeros((1, 512), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16000),
    }
    (batch,) = open_data([record], inputs)
    assert [batch[i.name].shape for i in inputs] == [(1, 512), (2, 1, 128), ()]
    (batch,) = open_data(record, inputs)
    assert batch["sr"] == 16000


@pytest.mark.parametrize("source", [3, 2.5, object()], ids=["int", "float", "object"])
def test_what_is_no_data_is_refused(source: object) -> None:
    with pytest.raises(UsageError, match="none that can be read"):
        open_data(source, IMAGE)


# ---- synthetic ------------------------------------------------------------------------------------------------


def test_random_data_is_never_used_unasked() -> None:
    with pytest.raises(DataError, match="no calibration data"):
        open_data(None, IMAGE)


def test_synthetic_data_is_reproducible_and_said_to_mean_nothing() -> None:
    dataset = open_data(None, [*IMAGE, *IDS], synthetic=True, samples=4)
    first = list(dataset)
    assert len(first) == 4
    assert first[0]["x"].shape == (1, 3, 8, 8)
    assert set(np.unique(first[0]["ids"])) <= {0, 1}
    again = list(open_data(None, [*IMAGE, *IDS], synthetic=True, samples=4))
    assert all(np.array_equal(a["x"], b["x"]) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first[0]["x"], first[1]["x"])
    assert any("mean nothing for the accuracy" in note for note in dataset.summary.notes)
    assert dataset.summary.kind == "synthetic"


def test_synthetic_and_real_data_exclude_each_other(folder: Path) -> None:
    with pytest.raises(UsageError, match="exclude each other"):
        open_data(folder, IMAGE, synthetic=True)


# ---- the model's inputs ---------------------------------------------------------------------------------------


def test_inputs_of_a_model_leave_out_those_with_defaults() -> None:
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3]),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [3]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("w", TensorProto.FLOAT, [3], [1, 2, 3])],
    )
    assert as_model_inputs(helper.make_model(graph)) == (ModelInput("x", (None, 3), "float32"),)


def test_a_model_without_inputs_cannot_be_calibrated() -> None:
    graph = helper.make_graph([], "g", [], [])
    with pytest.raises(ModelError, match="takes no input"):
        as_model_inputs(helper.make_model(graph))


def test_inputs_that_are_no_tensors_are_named() -> None:
    sequence = onnx.helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [1])
    with pytest.raises(ModelError, match="'s' is not a tensor of numbers"):
        as_model_inputs(helper.make_model(helper.make_graph([], "g", [sequence], [])))
    text = helper.make_tensor_value_info("t", TensorProto.STRING, [1])
    with pytest.raises(ModelError, match="'t' is not a tensor of numbers"):
        as_model_inputs(helper.make_model(helper.make_graph([], "g", [text], [])))
