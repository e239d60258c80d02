# SPDX-License-Identifier: Apache-2.0
"""The demo itself: float against int8, on pictures neither of them was calibrated on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from wia_quant import files
from wia_quant.benchmark import benchmark, onnxruntime_session
from wia_quant.data import open_data
from wia_quant.demo import fetch
from wia_quant.demo.lines import SIZE, draw_lines
from wia_quant.evaluators.ocr import Ocr, edit_distance
from wia_quant.quantizer import quantize
from wia_quant.runtime import Session

ProgressCallback = Callable[[int, int | None, str], None]

#: How a picture becomes what the model was trained on.
PREPROCESS: Final[Mapping[str, Any]] = {"preset": "ppocr_rec", "size": [SIZE[1], SIZE[0]]}
#: Pictures to calibrate on, and others to read.
CALIBRATION: Final = 64
TEST: Final = 40
#: A folder with this file was made by the demo, and may be deleted by it.
MARKER: Final = ".wia-demo"
#: Timed runs of each engine.
RUNS: Final = 20


@dataclass(frozen=True)
class Line:
    """One picture: what is written on it, and what either model reads."""

    picture: str
    truth: str
    float_text: str
    int8_text: str


@dataclass(frozen=True)
class Demo:
    """What the demo made and measured.

    Attributes:
        files: what is where: a name -> a path.
        lines: each picture read.
        float_accuracy, int8_accuracy: characters read rightly, a share of those written.
        agreement: characters on which both models agree, a share of those that the float model reads.
        size_ratio: bytes of the int8 file by those of the float file.
        latency_ratio: onnxruntime float32 by libwia int8, medians of one run in turns; above 1, libwia is faster.
        float_ms, int8_ms: those medians.
    """

    files: Mapping[str, str]
    lines: tuple[Line, ...]
    float_accuracy: float
    int8_accuracy: float
    agreement: float
    size_ratio: float
    latency_ratio: float
    float_ms: float
    int8_ms: float

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def run_demo(
    folder: Path, *, force: bool = False, threads: int = 1, seed: int = 0, progress: ProgressCallback | None = None
) -> Demo:
    """Fetch the model, draw pictures, quantize, read with both, compare; everything is left in ``folder``.

    Raises:
        OutputError: ``folder`` exists and not ``force``.
        FetchError: the model cannot be downloaded.
    """
    if folder.exists():
        if not force:
            raise files.OutputError(f"{folder} exists; use --force to make it anew or -o to choose another folder")
        if not (folder / MARKER).is_file():
            raise files.OutputError(f"{folder} was not made by the demo; choose another folder with -o")
    tell = progress or (lambda done, total, what: None)
    tell(0, None, f"fetch the model ({fetch.REQUIREMENT})")
    source = fetch.model_file(fetch.cache_folder())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MARKER).touch()
    model, quantized = folder / "model.onnx", folder / "model.wia.onnx"
    shutil.copyfile(source, model)
    draw_lines(folder / "calibration", CALIBRATION, seed)
    truth = draw_lines(folder / "lines", TEST, seed + 1)
    quantize(
        model, folder / "calibration", preprocess=PREPROCESS, samples=CALIBRATION, seed=seed, progress=progress
    ).save(quantized)

    float_session, int8_session = onnxruntime_session(model, threads), Session(str(quantized), threads=threads)
    reader = Ocr([*float_session.get_modelmeta().custom_metadata_map["character"].split("\n"), " "])
    batches = list(
        open_data(folder / "lines", int8_session.get_inputs(), preprocess=PREPROCESS, samples=TEST, seed=seed)
    )
    lines = []
    for index, batch in enumerate(batches):
        float_text, int8_text = (
            reader.decode(np.asarray(session.run(None, dict(batch))[0])).strip()
            for session in (float_session, int8_session)
        )
        lines.append(Line(batch.source, truth[batch.source], float_text, int8_text))
        tell(index + 1, TEST, "read")
    times = benchmark(quantized, against=model, feeds=batches, threads=[threads], runs=RUNS, progress=progress)
    peer = next(t for t in times.timings if t.engine == "onnxruntime" and t.model == model.name)
    result = Demo(
        files={
            "float model": str(model),
            "quantized model": str(quantized),
            "calibration table": str(folder / "model.calib.json"),
            "pictures": str(folder / "lines"),
            "result": str(folder / "result.json"),
        },
        lines=tuple(lines),
        float_accuracy=_agreement([(line.float_text, line.truth) for line in lines]),
        int8_accuracy=_agreement([(line.int8_text, line.truth) for line in lines]),
        agreement=_agreement([(line.int8_text, line.float_text) for line in lines]),
        size_ratio=quantized.stat().st_size / model.stat().st_size,
        latency_ratio=peer.ratio,
        float_ms=peer.median_ms,
        int8_ms=times.timings[0].median_ms,
    )
    (folder / "result.json").write_text(json.dumps(result.to_dict(), indent=2, ensure_ascii=False) + "\n", "utf-8")
    return result


def _agreement(pairs: list[tuple[str, str]]) -> float:
    """One minus the character error rate of the first texts against the second."""
    written = sum(len(truth) for _, truth in pairs)
    return 1 - sum(edit_distance(text, truth) for text, truth in pairs) / max(written, 1)
