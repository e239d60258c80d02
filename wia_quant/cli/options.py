# SPDX-License-Identifier: Apache-2.0
"""Arguments and options that several commands share, so that they read the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wia_quant.evaluators import EVALUATORS
from wia_quant.executors import EXECUTORS
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
Reference = Annotated[
    Path | None,
    typer.Option("--reference", metavar="FLOAT.onnx", help="The float model to compare with.", show_default=False),
]
Labels = Annotated[
    Path | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="Right answers: .csv (file,label), .json ({file: label}) or COCO; a folder per class needs none.",
        show_default=False,
    ),
]
Task = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="NAME|module:function",
        help=f"{', '.join(EVALUATORS)}, or your own function; classification with labels, agreement without.",
        show_default=False,
    ),
]
Executor = Annotated[
    str, typer.Option("--executor", metavar="NAME", help=f"What runs the model: {', '.join(EXECUTORS)}.")
]
Layers = Annotated[
    int,
    typer.Option("--layers", metavar="N", min=0, help="Measure each layer's error on N samples; needs --reference."),
]
Batch = Annotated[
    int, typer.Option("--batch", metavar="N", min=1, help="Samples run at once, where the model's batch axis is free.")
]
Workers = Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Copies of the model that run at once.")]
