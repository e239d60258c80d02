# SPDX-License-Identifier: Apache-2.0
"""libwia against the LiteRT interpreter on int8 .tflite files: step by step, and through the whole model.

    python -m benchmarks.tflite_exactness FILE.tflite ... [--samples N] [--json FILE] [--markdown FILE]

Step by step, every operator gets LiteRT's own inputs, so nothing adds up. A result that differs is "explained" if
LiteRT's integers, every one, are those of an arithmetic written in tests/tflite/arithmetic.py and libwia's is the
level next to the exact number; anything else is "unexplained". Through the model: how many outputs differ, by how many
levels, how often the largest is another; and beside it LiteRT's reference kernels against LiteRT's default ones.
Pictures are photographs, other inputs are uniform over the grid of the input.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.models.pictures import photographs, resized_crop
from tests.tflite.arithmetic import judge
from tests.tflite.litert import Array, in_libwia, run, run_stream, steps, stream_in_libwia
from wia_quant.errors import WiaError
from wia_quant.tflite import read_model
from wia_quant.tflite.reader import Grid, TensorInfo, TfliteModel

#: Samples of the comparison step by step.
STEPS_OF = 2


@dataclass
class Row:
    """One file."""

    name: str
    operators: int = 0
    results: int = 0
    explained: int = 0
    unexplained: int = 0
    of: dict[str, int] = field(default_factory=dict)
    border: float = 0.0
    outputs: int = 0
    differ: int = 0
    levels: int = 0
    samples: int = 0
    first_agrees: int = 0
    reference_differ: int = 0
    reference_first_agrees: int = 0
    refused: str = ""


def _input_grid(model: TfliteModel, index: int) -> Grid:
    """Of an input; of a float input that of the QUANTIZE behind it."""
    grid = model.tensors[index].grid
    after = next((op.outputs[0] for op in model.ops if index in op.inputs), index)
    grid = grid or model.tensors[after].grid
    return grid or Grid(np.array([1 / 255], np.float32), np.array([-128]), 0)


def _samples(model: TfliteModel, index: int, n: int) -> Array:
    info, grid = model.tensors[index], _input_grid(model, index)
    shape = (n, *(int(d or 1) for d in info.shape[1:]))
    if len(shape) == 4 and shape[3] in (1, 3) and shape[1] == shape[2]:
        crops = [resized_crop(path, shape[1], shape[1]) for path in photographs()[-n:]]
        share = np.stack(crops).astype(np.float64)[..., : shape[3]] / 255
    else:
        share = np.random.default_rng(0).uniform(0, 1, shape)
    if info.dtype != "float32":
        return np.rint(np.iinfo(info.dtype).min + 255 * share).astype(info.dtype)
    ends = (np.array([-128, 127]) - grid.zero_point[0]) * np.float64(grid.scale[0])
    return (ends[0] + (ends[1] - ends[0]) * share).astype(np.float32)


def _output_step(model: TfliteModel, info: TensorInfo, index: int) -> float:
    """One level of an output: of a float output that of the tensor that it is dequantized from."""
    before = next(op for op in model.ops if index in op.outputs)
    grid = info.grid or model.tensors[before.inputs[0]].grid
    return 1.0 if info.grid is not None or grid is None else float(grid.scale[0])


def compare(path: Path, samples: int) -> Row:
    """All figures of one file."""
    row, content = Row(path.stem), path.read_bytes()
    try:
        model = read_model(content)
        fixed = any(model.tensors[i].shape[0] is not None for i in model.inputs)
        inputs = [_samples(model, i, samples) for i in model.inputs]
        if model.states:
            frames = [x[None] for x in inputs[0]]
            ours = [stream_in_libwia(content, frames)]
            theirs, reference = ([run_stream(content, frames, kernels)] for kernels in ("default", "reference"))
        else:
            batches = [[x[k : k + 1] for x in inputs] for k in range(samples)] if fixed else [inputs]
            ours, theirs, reference = (
                [np.concatenate(parts) for parts in zip(*(f(batch) for batch in batches), strict=True)]
                for f in (
                    lambda batch: in_libwia(content, batch),
                    lambda batch: run(content, batch),
                    lambda batch: run(content, batch, "reference"),
                )
            )
    except WiaError as error:
        row.refused = str(error)
        return row
    for index, got, wanted, other in zip(model.outputs[: len(ours)], ours, theirs, reference, strict=True):
        step = _output_step(model, model.tensors[index], index)
        apart = np.rint(np.abs(got.reshape(wanted.shape).astype(np.float64) - wanted) / step).astype(np.int64)
        row.outputs += apart.size
        row.differ += int(np.sum(apart > 0))
        row.levels = max(row.levels, int(apart.max()))
        row.reference_differ += int(np.sum(np.abs(other.astype(np.float64) - wanted) > step / 2))
        first = wanted.reshape(samples, -1).argmax(1)
        row.samples += samples
        row.first_agrees += int(np.sum(got.reshape(samples, -1).argmax(1) == first))
        row.reference_first_agrees += int(np.sum(other.reshape(samples, -1).argmax(1) == first))
    few = [x[: 1 if fixed else STEPS_OF] for x in inputs]
    of: Counter[str] = Counter()
    for one in steps(content, few):
        if one.output.dtype in (np.int32, np.int64):
            continue  # shapes
        found = judge(one)
        row.operators += 1
        row.results += found.results
        row.explained += found.explained
        row.unexplained += found.unexplained
        row.border = max(row.border, found.border)
        if found.explained or found.unexplained:
            of[f"{one.op.kind}: {found.arithmetic}"] += found.explained + found.unexplained
    row.of = dict(of)
    return row


HEAD = (
    "| model | operators | results | explained | unexplained | outputs | differ, by levels | same first |"
    " LiteRT's reference kernels: differ | same first |\n|---|---|---|---|---|---|---|---|---|---|"
)


def line(row: Row) -> str:
    if row.refused:
        return f"| {row.name} | refused: {row.refused} | | | | | | | | |"
    first = [f"{n} of {row.samples}" for n in (row.first_agrees, row.reference_first_agrees)]
    apart = f"{row.differ:,}, {row.levels}" if row.differ else "0"
    return (
        f"| {row.name} | {row.operators} | {row.results:,} | {row.explained:,} | {row.unexplained:,} |"
        f" {row.outputs:,} | {apart} | {first[0]} | {row.reference_differ:,} | {first[1]} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    rows = []
    print(HEAD)
    for path in given.files:
        rows.append(compare(path, given.samples))
        print(line(rows[-1]), rows[-1].of or "", flush=True)
    if given.json:
        given.json.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")
    if given.markdown:
        given.markdown.write_text("\n".join([HEAD, *map(line, rows)]) + "\n")


if __name__ == "__main__":
    main()
