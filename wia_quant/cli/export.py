# SPDX-License-Identifier: Apache-2.0
"""``wia-quant export``: a model of a training framework becomes an ONNX file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from wia_quant.cli import options, output
from wia_quant.errors import UsageError
from wia_quant.files import check_writable, replacing
from wia_quant.frameworks import FILES, SOURCES, read_to_onnx, source_of_file
from wia_quant.graph import save
from wia_quant.inputs import as_model_inputs
from wia_quant.qdq import QUANTIZE

#: Of float and of quantized files.
FLOAT_SUFFIX: Final = ".onnx"
QUANTIZED_SUFFIX: Final = ".wia.onnx"


def export(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", help="A .keras, .h5 or .tflite file, or a SavedModel folder.", show_default=False
        ),
    ] = None,
    torch: Annotated[
        str | None,
        typer.Option(
            "--torch",
            metavar="MODULE:FACTORY",
            help="A PyTorch model: a function, class or module object of an importable Python module. The function "
            "may return (model, example inputs).",
            show_default=False,
        ),
    ] = None,
    saved_model: Annotated[
        Path | None,
        typer.Option("--saved-model", metavar="DIR", help="A SavedModel folder of TensorFlow.", show_default=False),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape",
            metavar="1,3,224,224[:TYPE]",
            help="Of an input, one --shape each, where the source does not tell; the type is float32 by default.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="OUT",
            help="The ONNX file; by default named after the source, .wia.onnx for a quantized model.",
            show_default=False,
        ),
    ] = None,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Write a model of a training framework as ONNX: float for `calibrate`, or as it was trained quantized."""
    named = {"torch": torch, "saved-model": saved_model, "file": model}
    given = {name: str(what) for name, what in named.items() if what is not None}
    if len(given) != 1:
        raise UsageError("name one source: a file, --torch MODULE:FACTORY or --saved-model DIR")
    ((source, what),) = given.items()
    if source == "file":
        source = source_of_file(what) or ""
    if source not in SOURCES:
        raise UsageError(f"{what}: {', '.join(FILES)} files and SavedModel folders can be exported")
    if out is not None:
        check_writable([out], force=force)
    proto = read_to_onnx(source, what, shape or ())
    quantized = any(node.op_type == QUANTIZE for node in proto.graph.node)
    path = out or Path(_stem(what) + (QUANTIZED_SUFFIX if quantized else FLOAT_SUFFIX))
    with replacing(path, force=force) as temporary:
        save(proto, temporary, name=path.name)
    inputs = [f"{i.name} {i.shape_text} {i.dtype}" for i in as_model_inputs(proto)]
    if json:
        output.show_json(
            {"model": str(path), "source": what, "quantized": quantized, "inputs": inputs, "size": path.stat().st_size}
        )
        return
    output.show_line(f"{path}  {path.stat().st_size / 1e6:.2f} MB, {'quantized' if quantized else 'float'}")
    for line in inputs:
        output.show_line(f"input {line}")
    follows = f"run {path}" if quantized else f"calibrate {path}"
    output.show_line(f"next: wia-quant {follows} --data PATH")


def _stem(what: str) -> str:
    """Of a file its name without the last suffix; of MODULE:FACTORY the factory's."""
    return Path(what).stem if ":" not in what else what.rpartition(":")[2].rpartition(".")[2]
