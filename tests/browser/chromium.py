# SPDX-License-Identifier: Apache-2.0
"""Chromium without a window: what a page looks like, measures, says on its console and asks the network for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

#: Names that distributions give it.
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TIMEOUT_S = 120
#: Appended to a copy of the page: what a script inside measures, as JSON.
MEASURE = """
<script>
addEventListener("load", () => {
  const box = e => { const r = e.getBoundingClientRect(); return [r.width, r.height]; };
  const found = {
    inner: innerWidth, scroll: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight,
    title: document.title,
    plots: [...document.querySelectorAll("svg")].map(svg => ({
      of: svg.closest("[id]:not(svg)") ? svg.parentElement.closest("[id]").id : "",
      box: box(svg),
      drawn: [...svg.querySelectorAll("path, use, line")].filter(e => Math.max(...box(e)) > 1).length,
      texts: [...svg.querySelectorAll("text")].filter(e => e.textContent.trim()).length,
    })),
    images: [...document.querySelectorAll("img")].map(i => [i.complete, i.naturalWidth]),
    rows: Object.fromEntries([...document.querySelectorAll("table[id]")].map(t => [t.id, t.rows.length])),
  };
  const out = document.createElement("pre");
  out.id = "measured";
  out.textContent = JSON.stringify(found);
  document.body.append(out);
});
</script>
"""


@dataclass(frozen=True)
class Seen:
    """What became of a page: what MEASURE found, lines on its console, addresses asked for beyond its own file."""

    measured: dict[str, Any]
    console: list[str]
    requests: list[str]


def find() -> str | None:
    """The browser's path; None where there is none."""
    chosen = os.environ.get("WIA_CHROMIUM", "")
    return next((path for name in (chosen, *NAMES) if name and (path := shutil.which(name))), None)


def look(browser: str, page: Path, width: int = 1200, height: int = 900) -> Seen:
    """Opens a copy of the page and measures it."""
    with tempfile.TemporaryDirectory() as folder:
        copy, log = Path(folder) / page.name, Path(folder) / "net.json"
        copy.write_text(page.read_text(encoding="utf-8") + MEASURE, encoding="utf-8")
        done = _run(browser, folder, width, height, f"--log-net-log={log}", "--dump-dom", copy.as_uri())
        found = re.search(r'<pre id="measured">(.*?)</pre>', done.stdout, re.DOTALL)
        assert found, f"the page did not load:\n{done.stderr[-2000:]}"
        console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
        return Seen(json.loads(unescape(found[1])), console, _requests(log.read_text(encoding="utf-8")))


def screenshot(browser: str, page: Path, out: Path, width: int, height: int) -> None:
    """A PNG of the top of the page."""
    with tempfile.TemporaryDirectory() as folder:
        _run(browser, folder, width, height, f"--screenshot={out}", "--hide-scrollbars", page.as_uri())


def print_pdf(browser: str, page: Path, out: Path) -> None:
    """The page as it prints."""
    with tempfile.TemporaryDirectory() as folder:
        _run(browser, folder, 1200, 900, f"--print-to-pdf={out}", page.as_uri())


def _run(browser: str, folder: str, width: int, height: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        browser,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--disable-extensions",
        "--no-first-run",
        "--enable-logging=stderr",
        f"--user-data-dir={folder}/profile",
        f"--window-size={width},{height}",
        *arguments,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)


def _requests(log: str) -> list[str]:
    """What the page asked the network for; the browser's own errands have no origin."""
    asked = [e["params"] for e in json.loads(log)["events"] if isinstance(e.get("params"), dict)]
    return [
        p["url"]
        for p in asked
        if not str(p.get("url", "file:")).startswith("file:") and p.get("initiator", "not an origin") != "not an origin"
    ]
