# SPDX-License-Identifier: Apache-2.0
"""Draw docs/demo.svg from what the demo left: ``python docs/make_demo_picture.py wia-demo/result.json``."""

from __future__ import annotations

import io
import json
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path

from rich.console import Console
from rich.text import Text

from wia_quant.cli.demo import show
from wia_quant.demo.demo import Demo, Line

COLUMNS = 92


def picture(result: Path) -> str:
    """The demo's output as an SVG of a terminal."""
    stored = json.loads(result.read_text(encoding="utf-8"))
    stored["lines"] = tuple(Line(**line) for line in stored["lines"])
    printed = io.StringIO()
    with redirect_stdout(printed):
        show(Demo(**stored))
    screen = Console(record=True, width=COLUMNS, file=io.StringIO())
    screen.print(Text("$ wia-quant demo", style="bold green"))
    for line in printed.getvalue().splitlines():
        screen.print(Text(line.rstrip()))
    svg = screen.export_svg(title="wia-quant demo", unique_id="demo")
    # The reader's own monospaced font will do: nothing is fetched from elsewhere.
    return re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)


if __name__ == "__main__":
    target = Path(__file__).with_name("demo.svg")
    target.write_text(picture(Path(sys.argv[1])), encoding="utf-8")
    print(target)
