# SPDX-License-Identifier: Apache-2.0
"""A report as files, as text and in a notebook; what it looks like is for tests/browser."""

import json
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import onnx
import pytest
from PIL import Image

import wia_quant
from tests.tiny import small_net
from wia_quant.errors import MissingExtraError, WiaError
from wia_quant.reports.gather import Flip, Report


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of a small net on pictures in two class folders."""
    folder = tmp_path_factory.mktemp("report")
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (folder / "data" / name).mkdir(parents=True)
        for i in range(5):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "data" / name / f"<{i}>.png")
    onnx.save(small_net(), folder / "float.onnx")
    quantized = wia_quant.quantize(folder / "float.onnx", folder / "data", preprocess="zero_one")
    quantized.save(folder / "int8.wia.onnx")
    return wia_quant.report(folder / "int8.wia.onnx", folder / "float.onnx", folder / "data", batch=2)


class Links(HTMLParser):
    """What a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = [v or "" for k, v in attrs if k in ("src", "href", "srcset", "data", "action", "xlink:href")]
        self.found += [v for v in values if not v.startswith(("#", "data:"))]
        self.found += [tag] if tag in ("script", "link", "iframe", "object", "embed") else []


def test_the_page_loads_nothing_from_elsewhere(found: Report) -> None:
    links = Links()
    links.feed(found.to_html())
    assert links.found == []


def test_names_of_files_are_text_in_the_page(found: Report) -> None:
    page = replace(found, flips=(Flip("cats/<0>.png", "<a>", "<b>"),)).to_html()
    assert "<0>" not in page
    assert "cats/&lt;0&gt;.png: &lt;a&gt; &rarr; &lt;b&gt;" in page


def test_a_report_is_saved_as_page_json_and_markdown(found: Report, tmp_path: Path) -> None:
    paths = found.save(tmp_path / "new" / "folder")
    assert [p.name for p in paths] == ["report.html", "report.json", "report.md"]
    read = json.loads(paths[1].read_text(), parse_constant=pytest.fail)
    assert read["quantized"]["metrics"][0]["name"] == "top1"
    assert read["schema"] == 1
    with pytest.raises(WiaError, match="exists"):
        found.save(tmp_path / "new" / "folder")
    found.save(tmp_path / "new" / "folder", force=True)


def test_a_notebook_gets_the_page_in_a_frame(found: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    notebook = ModuleType("IPython.display")
    vars(notebook).update(HTML=lambda text: SimpleNamespace(data=text), display=lambda x: shown.append(x.data))
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    found.show()
    assert shown == [found._repr_html_()]
    assert shown[0].startswith("<iframe srcdoc=")


def test_show_without_a_notebook_says_what_to_do(found: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.display", None)
    with pytest.raises(MissingExtraError, match="save"):
        found.show()


def test_equal_runs_give_the_same_page_but_for_time(found: Report) -> None:
    assert found.to_html() == found.to_html()
