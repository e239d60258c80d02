# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wia_quant.preprocess import PRESETS

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of every random choice.")]
Strict = Annotated[bool, typer.Option("--strict", help="A broken picture is an error instead of skipped.")]
Threads = Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Threads of the runtime.")]
Isa = Annotated[
    str | None, typer.Option("--isa", metavar="NAME", help="Instruction set to use at most (see `devices`).")
]
Samples = Annotated[int, typer.Option("--samples", metavar="N", min=1, help="Samples to use at most.")]
Preprocess = Annotated[
    str | None,
    typer.Option(
        "--preprocess",
        metavar="PRESET|FILE.json",
        help=f"How pictures become inputs: {', '.join(PRESETS)}, or a JSON file; by default what the model records, "
        "or a guess that is said.",
    ),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.", show_default=False)]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="A folder of pictures, a .npy or .npz file, or a folder of .npz files.",
        show_default=False,
    ),
]
Synthetic = Annotated[bool, typer.Option("--synthetic", help="Random data instead of --data; only to try things out.")]
