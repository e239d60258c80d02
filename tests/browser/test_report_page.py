# SPDX-License-Identifier: Apache-2.0
"""The report in a real browser: it renders, its plots have data, its console is empty, it asks for nothing."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image

import wia_quant
from tests.browser import chromium
from tests.browser.chromium import Seen
from tests.tiny import small_net

pytestmark = pytest.mark.browser
#: Width of a phone in CSS pixels.
PHONE = 500  # the narrowest window of headless Chromium


@pytest.fixture(scope="module")
def browser() -> str:
    found = chromium.find()
    if found is None:
        assert not os.environ.get("CI"), "no browser; apt-get install chromium, or set WIA_CHROMIUM"
        pytest.skip("no browser; apt-get install chromium, or set WIA_CHROMIUM")
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a small net on pictures in class folders; its second convolution is broken, so that answers flip."""
    folder = tmp_path_factory.mktemp("page")
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (folder / "data" / name).mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "data" / name / f"{i}.png")
    reference = small_net()
    quantized = wia_quant.quantize(reference, folder / "data", preprocess="zero_one").model
    for tensor in quantized.graph.initializer:
        if tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) == 4:
            tensor.CopyFrom(onnx.numpy_helper.from_array(-onnx.numpy_helper.to_array(tensor), tensor.name))
    wia_quant.report(quantized, reference, folder / "data").save(folder / "report")
    return folder / "report" / "report.html"


@pytest.fixture(scope="module")
def seen(browser: str, page: Path) -> Seen:
    return chromium.look(browser, page)


def test_the_page_is_silent_and_asks_for_nothing(seen: Seen) -> None:
    assert seen.console == []
    assert seen.requests == []
    assert seen.measured["title"].startswith("Quantization of")


@pytest.mark.parametrize("plot", ["network", "profile", "sensitivity", "activations", "weights"])
def test_every_plot_is_drawn_with_data_and_words(seen: Seen, plot: str) -> None:
    found = [p for p in seen.measured["plots"] if p["of"] == plot]
    assert found
    assert all(min(p["box"]) > 60 for p in found)
    assert all(p["drawn"] >= 5 for p in found)
    assert all(p["texts"] >= 3 for p in found)


def test_tables_have_rows_and_flipped_samples_their_pictures(seen: Seen) -> None:
    assert seen.measured["rows"]["metrics"] > 3
    assert seen.measured["rows"]["layers"] > 3
    assert seen.measured["images"]
    assert all(done and width > 0 for done, width in seen.measured["images"])


def test_a_phone_needs_no_sideways_scrolling(browser: str, page: Path) -> None:
    narrow = chromium.look(browser, page, width=PHONE).measured
    assert narrow["inner"] <= PHONE
    assert narrow["scroll"] <= narrow["inner"]


def test_the_page_prints(browser: str, page: Path, tmp_path: Path) -> None:
    chromium.print_pdf(browser, page, tmp_path / "page.pdf")
    content = (tmp_path / "page.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    assert len(content) > 20_000


def test_a_page_that_errs_and_loads_is_found_out(browser: str, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text('<img src="http://example.invalid/x.png"><script>console.error("oops")</script>')
    seen = chromium.look(browser, page)
    assert any("oops" in line for line in seen.console)
    assert seen.requests == ["http://example.invalid/x.png"]
