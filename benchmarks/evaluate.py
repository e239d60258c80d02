# SPDX-License-Identifier: Apache-2.0
"""What ``evaluate`` costs beyond the model: 2,000 pictures, against a loop that only runs it on inputs made before.

    PYTHONPATH=. python -m benchmarks.evaluate [--pictures 2000] [--model efficientnet_lite0] [-o RESULT.json]

And against a loop that reads each picture and runs it. The three take turns, a quarter of the pictures each, so that
all see the same machine. Pictures are crops of photographs, made once into the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, ParamSpec

import numpy as np
from PIL import Image

from benchmarks.models.base import cache
from benchmarks.models.pictures import photographs
from wia_quant import evaluate, open_data, quantize
from wia_quant.data import Batch
from wia_quant.executors import make_executor
from wia_quant.executors.base import Executor

P = ParamSpec("P")
#: Of a crop: what pictures of a data set are like.
SIZE: Final = (400, 300)
#: Rounds; each runs its share of the pictures both ways.
ROUNDS: Final = 4
PRESET: Final = "lite0"


def crops(n: int) -> Path:
    """A folder of ``n`` different crops of photographs, as JPEG."""
    folder = cache() / f"crops-{n}"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        partial.mkdir(exist_ok=True)
        rng, sources = random.Random(0), photographs()
        for i in range(n):
            with Image.open(sources[i % len(sources)]) as opened:
                picture = opened.convert("RGB")
            scale = max(SIZE[0] / picture.width, SIZE[1] / picture.height, 1)
            picture = picture.resize((round(picture.width * scale), round(picture.height * scale)))
            left, top = (rng.randint(0, a - b) for a, b in zip(picture.size, SIZE, strict=True))
            picture.crop((left, top, left + SIZE[0], top + SIZE[1])).save(partial / f"{i:05}.jpg", quality=90)
        partial.rename(folder)
    return folder


def reading(chosen: list[Path], executor: Executor) -> Iterable[Batch]:
    return open_data(chosen, executor.inputs(), preprocess=PRESET, samples=len(chosen))


def run(executor: Executor, feeds: Iterable[Batch]) -> None:
    for feed in feeds:
        executor.run(feed)


def measure(model: Path, chosen: list[Path], workers: int) -> None:
    evaluate(model, chosen, labels={str(path): 0 for path in chosen}, preprocess=PRESET, workers=workers)


def clock(work: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> tuple[float, float]:
    """Seconds of wall clock and of CPU that ``work`` takes."""
    wall, cpu = time.perf_counter(), time.process_time()
    work(*args, **kwargs)
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--model", default="efficientnet_lite0", help="a float model of the cache that takes pictures")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("-o", "--out", type=Path)
    arguments = parser.parse_args()
    folder = crops(arguments.pictures)
    files = sorted(folder.iterdir())
    quantized = cache() / f"{arguments.model}.lite0.wia.onnx"
    if not quantized.exists():
        quantize(cache() / f"{arguments.model}.onnx", folder, preprocess=PRESET, samples=64).save(quantized)
    content = quantized.read_bytes()
    sums = {name: np.zeros(2) for name in ("bare", "read and run", "evaluate")}
    for share in np.array_split(np.arange(len(files)), ROUNDS):
        chosen = [files[i] for i in share]
        executor = make_executor("wia", content)
        feeds = list(reading(chosen, executor))
        executor.run(feeds[0])
        sums["bare"] += clock(run, executor, feeds)
        sums["evaluate"] += clock(measure, quantized, chosen, arguments.workers)
        sums["read and run"] += clock(run, executor, reading(chosen, executor))
    result = {
        "pictures": len(files),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "seconds": {name: {"wall": round(s[0], 2), "cpu": round(s[1], 2)} for name, s in sums.items()},
        "evaluate/bare": {k: round(sums["evaluate"][i] / sums["bare"][i], 3) for i, k in enumerate(("wall", "cpu"))},
        "evaluate/read and run": {
            k: round(sums["evaluate"][i] / sums["read and run"][i], 3) for i, k in enumerate(("wall", "cpu"))
        },
    }
    text = json.dumps(result, indent=1)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
