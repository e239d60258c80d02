# SPDX-License-Identifier: Apache-2.0
"""Pictures become what the specification says, to the number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from wia_quant.errors import DataError, UsageError
from wia_quant.preprocess import PRESETS, Preprocess, load_preprocess, picture_to_sample


def picture(height: int = 40, width: int = 60, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(height * width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels).convert(mode)


def plain(**fields: Any) -> Preprocess:
    return Preprocess(**{"resize": "none", **fields})


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_json(name: str) -> None:
    assert Preprocess.from_json(json.loads(json.dumps(PRESETS[name].to_json()))) == PRESETS[name]


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_gives_the_size_it_is_asked_for(name: str) -> None:
    spec = Preprocess.from_json({"preset": name, "size": [48, 64], "resize": "exact"})
    assert picture_to_sample(picture(), spec).shape == (1, spec.channels, 48, 64)


def test_the_numbers_are_those_of_the_formula() -> None:
    source = picture()
    spec = plain(scale=1 / 255, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    pixels = np.asarray(source).astype(np.float64)
    expected = (pixels / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    got = picture_to_sample(source, spec)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got[0], expected.transpose(2, 0, 1), rtol=1e-6)


def test_lite0_is_minus_127_over_128() -> None:
    spec = Preprocess.from_json({"preset": "lite0", "resize": "none"})
    expected = (np.asarray(picture()).astype(np.float32) - 127) / 128
    assert np.array_equal(picture_to_sample(picture(), spec)[0], expected.transpose(2, 0, 1))


def test_tf_is_minus_one_to_one() -> None:
    black_and_white = Image.fromarray(np.array([[[0] * 3, [255] * 3]], dtype=np.uint8))
    spec = Preprocess.from_json({"preset": "tf", "resize": "none"})
    np.testing.assert_allclose(picture_to_sample(black_and_white, spec)[0, 0, 0], [-1.0, 1.0], atol=1e-7)


def test_bgr_turns_the_channels_around_and_nhwc_puts_them_last() -> None:
    pixels = np.asarray(picture())
    assert np.array_equal(picture_to_sample(picture(), plain(color="bgr"))[0], pixels[:, :, ::-1].transpose(2, 0, 1))
    assert np.array_equal(picture_to_sample(picture(), plain(layout="nhwc"))[0], pixels)


def test_uint8_keeps_the_pixels() -> None:
    got = picture_to_sample(picture(), plain(dtype="uint8"))
    assert got.dtype == np.uint8
    assert np.array_equal(got[0].transpose(1, 2, 0), np.asarray(picture()))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("L", None), ("CMYK", None), ("P", None), ("1", None), ("YCbCr", None), ("LAB", None), ("HSV", None)],
    ids=lambda v: str(v),
)
def test_every_kind_of_picture_becomes_three_channels(mode: str, expected: None, tmp_path: Path) -> None:
    source = picture() if mode == "LAB" else picture(mode=mode)
    assert picture_to_sample(source, plain()).shape == (1, 3, 40, 60)


def test_gray_takes_one_channel() -> None:
    assert picture_to_sample(picture(), plain(color="gray")).shape == (1, 1, 40, 60)


@pytest.mark.parametrize(("background", "value"), [("white", 255.0), ("black", 0.0)])
@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_shows_the_background(mode: str, background: str, value: float) -> None:
    clear = picture(mode=mode)
    clear.putalpha(0)
    assert (picture_to_sample(clear, plain(background=background)) == value).all()


def test_a_palette_with_a_transparent_colour_shows_the_background(tmp_path: Path) -> None:
    clear = Image.new("P", (4, 4), 1)
    clear.putpalette([10, 20, 30, 40, 50, 60])
    clear.save(tmp_path / "p.png", transparency=1)
    with Image.open(tmp_path / "p.png") as read:
        assert (picture_to_sample(read, plain()) == 255).all()


def test_sixteen_bits_are_scaled_and_not_clipped() -> None:
    deep = Image.fromarray(np.array([[0, 256, 32768, 65535]], dtype=np.uint16))
    assert picture_to_sample(deep, plain(color="gray"))[0, 0, 0].tolist() == [0, 1, 128, 255]


def test_exif_rotation_is_undone(tmp_path: Path) -> None:
    source = picture()
    exif = Image.Exif()
    exif[0x0112] = 6  # stored turned; to be shown after a quarter turn to the right
    source.save(tmp_path / "turned.png", exif=exif)
    with Image.open(tmp_path / "turned.png") as read:
        got = picture_to_sample(read, plain(dtype="uint8"))[0].transpose(1, 2, 0)
    assert np.array_equal(got, np.rot90(np.asarray(source), -1))


@pytest.mark.parametrize(("height", "width"), [(300, 500), (500, 300), (100, 100), (10, 1000), (1, 1)])
@pytest.mark.parametrize("resize", ["exact", "shortest", "letterbox", "height"])
def test_a_resize_gives_exactly_the_size(resize: str, height: int, width: int) -> None:
    spec = Preprocess(resize=resize, size=(48, 64), crop=0.875)
    assert picture_to_sample(picture(height, width), spec).shape == (1, 3, 48, 64)


def test_shortest_cuts_the_middle_of_256_for_224() -> None:
    source = picture(256, 300)
    got = picture_to_sample(source, Preprocess(resize="shortest", size=(224, 224), crop=0.875, dtype="uint8"))
    assert np.array_equal(got[0].transpose(1, 2, 0), np.asarray(source)[16:240, 38:262])


def test_letterbox_pads_both_sides() -> None:
    spec = Preprocess(resize="letterbox", size=(40, 80), pad=114, dtype="uint8")
    got = picture_to_sample(picture(40, 60), spec)[0].transpose(1, 2, 0)
    assert (got[:, :10] == 114).all()
    assert (got[:, 70:] == 114).all()
    assert np.array_equal(got[:, 10:70], np.asarray(picture(40, 60)))


def test_height_pads_on_the_right_only_and_never_exceeds_the_width() -> None:
    spec = Preprocess(resize="height", size=(40, 80), pad=7, dtype="uint8")
    got = picture_to_sample(picture(40, 60), spec)[0].transpose(1, 2, 0)
    assert np.array_equal(got[:, :60], np.asarray(picture(40, 60)))
    assert (got[:, 60:] == 7).all()
    assert picture_to_sample(picture(40, 500), spec).shape == (1, 3, 40, 80)


def test_height_without_a_width_keeps_the_shape_of_the_picture() -> None:
    assert picture_to_sample(picture(20, 100), Preprocess(resize="height", size=(48, None))).shape == (1, 3, 48, 240)


@pytest.mark.parametrize(
    ("source", "expected"), [((1000, 500), (960, 480)), ((100, 50), (96, 64)), ((1, 5000), (32, 960))]
)
def test_longest_shrinks_to_multiples_and_never_enlarges_beyond_one(
    source: tuple[int, int], expected: tuple[int, int]
) -> None:
    got = picture_to_sample(picture(*source), PRESETS["ppocr_det"])
    assert got.shape == (1, 3, *expected)


def test_a_resize_without_a_size_says_what_to_give() -> None:
    with pytest.raises(DataError, match=r'"size": \[height, width\]'):
        picture_to_sample(picture(), Preprocess(resize="exact"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"colour": "rgb"}, "unknown field 'colour'"),
        ({"color": "rbg"}, "color is 'rbg'; it must be one of rgb, bgr, gray"),
        ({"resize": "fit"}, "resize is 'fit'"),
        ({"size": [224]}, r"size is \(224,\)"),
        ({"size": [0, 5]}, "size is"),
        ({"size": [1e9, 5]}, "size is"),
        ({"size": 224}, "wrong kind|size is"),
        ({"crop": 0}, "crop is 0"),
        ({"crop": 1.5}, "crop is 1.5"),
        ({"mean": [1, 2]}, "mean is .* 1 or 3 numbers"),
        ({"mean": ["a"]}, "mean is"),
        ({"mean": "zero"}, "mean is|wrong kind"),
        ({"std": [0.1, 0, 0.1]}, "without zeros"),
        ({"std": None}, "std|wrong kind"),
        ({"scale": 0}, "scale is 0"),
        ({"scale": "1/255"}, "scale is"),
        ({"pad": 300}, "pad is 300"),
        ({"multiple": 0}, "multiple is 0"),
        ({"dtype": "float8"}, "dtype is 'float8'"),
        ({"dtype": ["float32"]}, "dtype is|wrong kind"),
        ({"layout": "chwn"}, "layout is 'chwn'"),
        ({"preset": "resnet"}, "unknown preprocessing 'resnet'; a .json file or one of imagenet"),
        ({"color": "gray", "mean": [1, 2, 3]}, "mean is"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_a_mistake_in_a_specification_is_named(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_preprocess(spec)


def test_one_number_stands_for_all_channels() -> None:
    assert load_preprocess({"mean": 127, "std": 128}).mean == (127,)


def test_a_file_is_read_and_its_mistakes_name_it(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    file.write_text('{"preset": "imagenet", "size": [160, 160]}')
    assert load_preprocess(file).size == (160, 160)
    assert load_preprocess(str(file)).crop == 0.875
    file.write_text("{")
    with pytest.raises(UsageError, match=r"p\.json: not JSON"):
        load_preprocess(file)
    file.write_text("[1]")
    with pytest.raises(UsageError, match=r"p\.json: .* not list"):
        load_preprocess(file)
    file.write_text('{"std": 0}')
    with pytest.raises(UsageError, match=r"p\.json: std"):
        load_preprocess(file)
    with pytest.raises(UsageError, match=r"absent\.json: cannot be read"):
        load_preprocess(tmp_path / "absent.json")


def test_an_unknown_preset_lists_all() -> None:
    with pytest.raises(UsageError, match=", ".join(PRESETS)):
        load_preprocess("image_net")
