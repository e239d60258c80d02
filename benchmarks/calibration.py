# SPDX-License-Identifier: Apache-2.0
"""Peak memory and time of calibration, each case in a process of its own.

    python -m benchmarks.calibration [--samples 32,300,2000] [--models ...] [--cases ...] [-o FILE.json]

Against plain inference on the same samples, and against the calibrators of onnxruntime.quantization, whose memory
is limited so that the machine survives them. A few samples are made beforehand and given out in turn, so that
reading data costs nothing and hides nothing.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.calibrators import CALIBRATORS

Feeds = dict[str, npt.NDArray[np.float32]]

#: Samples made beforehand.
DISTINCT: Final = 8
MEMORY_LIMIT: Final = 6 << 30
PEERS: Final = ("minmax", "entropy", "percentile")
CASES: Final = (
    "inference",
    "ratios",
    *(f"ours:{name}" for name in CALIBRATORS),
    *(f"onnxruntime:{name}" for name in PEERS),
)


@dataclass(frozen=True)
class Setup:
    """A model of the zoo and the shape of its input."""

    model: str
    shape: tuple[int, int, int, int]

    def samples(self, path: Path) -> list[Feeds]:
        """A few pictures' likes: noise alone would leave activations unlike any a model sees."""
        import onnx

        name = onnx.load(path, load_external_data=False).graph.input[0].name
        generator = np.random.default_rng(0)
        _, channels, height, width = self.shape
        coarse = [generator.standard_normal((1, channels, 12, 12)) for _ in range(DISTINCT)]
        patches = np.ones((1, 1, height // 12 + 1, width // 12 + 1))
        return [{name: np.kron(x, patches)[:, :, :height, :width].astype(np.float32)} for x in coarse]


SETUPS: Final = MappingProxyType(
    {
        "efficientnet_lite0": Setup("efficientnet_lite0", (1, 3, 224, 224)),
        "ppocr_det_192": Setup("ppocr_det", (1, 3, 192, 192)),
        "ppocr_det_736": Setup("ppocr_det", (1, 3, 736, 736)),
        "resnet50": Setup("resnet50", (1, 3, 224, 224)),
    }
)


def inference(path: Path, samples: list[Feeds], n: int, _: str) -> None:
    """Plain onnxruntime, as a user runs the float model; the outputs are dropped."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    for i in range(n):
        session.run(None, samples[i % len(samples)])


def ratios(path: Path, samples: list[Feeds], n: int, _: str) -> dict[str, float]:
    """Time of a whole calibration over that with minmax, all calibrators taking turns on the same run of the model."""
    from wia_quant.observe import Instrumented

    model, tensors = planned(path)
    seen: dict[str, dict[str, Any]] = {name: {} for name in CALIBRATORS}
    running: list[float] = []
    observing: dict[str, list[float]] = {name: [] for name in CALIBRATORS}
    with Instrumented(model, tensors, threads=1) as instrumented:
        for i in range(n):
            times = dict.fromkeys(CALIBRATORS, 0.0)
            ran = 0.0
            start = time.process_time()
            for name, value in instrumented.run(samples[i % len(samples)]):
                ran += time.process_time() - start
                # The first to look at a value brings it into the cache: let that be each in turn.
                for k in range(len(CALIBRATORS)):
                    calibrator = list(CALIBRATORS)[(i + k) % len(CALIBRATORS)]
                    start = time.process_time()
                    seen[calibrator].setdefault(name, CALIBRATORS[calibrator]()).observe(value)
                    times[calibrator] += time.process_time() - start
                start = time.process_time()
            running.append(ran)
            for calibrator, taken in times.items():
                observing[calibrator].append(taken)
    whole = {}
    for calibrator, observers in seen.items():
        start = time.process_time()
        for one in observers.values():
            one.range()
        choosing = time.process_time() - start
        whole[calibrator] = n * (np.median(running[1:]) + np.median(observing[calibrator][1:])) + choosing
    return {f"{calibrator} / minmax": float(taken / whole["minmax"]) for calibrator, taken in whole.items()}


def planned(path: Path) -> tuple[Any, list[str]]:
    """The folded model, and the tensors that the default plan wants ranges of."""
    from wia_quant.policy import decide, scheme_named
    from wia_quant.prepare import prepare
    from wia_quant.targets.target import DEFAULT, load_target

    prepared = prepare(path, opset=scheme_named("w8a8").opset)
    tensors = list(decide(prepared.model, "w8a8", prepared.excluded, load_target(DEFAULT)).observe)
    return prepared.model.to_proto(), tensors


def ours(path: Path, samples: list[Feeds], n: int, calibrator: str) -> None:
    """Observation of what the default plan quantizes, to the ranges."""
    from wia_quant.observe import observe

    model, tensors = planned(path)
    batches = (samples[i % len(samples)] for i in range(n))
    seen = observe(model, tensors, batches, CALIBRATORS[calibrator], threads=1)
    for one in seen.values():
        one.range()  # type: ignore[attr-defined]  # they are calibrators


def peer(path: Path, samples: list[Feeds], n: int, calibrator: str) -> None:
    """onnxruntime.quantization's calibrator of that name with its defaults."""
    from onnxruntime.quantization.calibrate import CalibrationDataReader, CalibrationMethod, create_calibrator

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # untyped
        def __init__(self) -> None:
            self._left = iter(samples[i % len(samples)] for i in range(n))

        def get_next(self) -> Feeds | None:
            return next(self._left, None)

    methods = {
        "minmax": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    made = create_calibrator(
        str(path), augmented_model_path=str(path) + ".augmented", calibrate_method=methods[calibrator]
    )
    made.collect_data(Reader())
    made.compute_data()


RUNNERS: Final[MappingProxyType[str, Callable[[Path, list[Feeds], int, str], dict[str, float] | None]]] = (
    MappingProxyType({"inference": inference, "ours": ours, "onnxruntime": peer, "ratios": ratios})
)


def child(setup: str, path: Path, case: str, n: int) -> None:
    """Run one case and print its figures; imports nothing that the case does not need."""
    samples = SETUPS[setup].samples(path)
    kind, _, calibrator = case.partition(":")
    before = _peak_mb()
    wall, cpu = time.perf_counter(), time.process_time()
    more = RUNNERS[kind](path, samples, n, calibrator)
    figures = (more or {}) | {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "peak_mb": _peak_mb(),
        "before_mb": before,
    }
    print(json.dumps(figures))


def _peak_mb() -> float:
    """The most memory this process had; ru_maxrss would begin with what its parent had."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmHWM"].split()[0]) / 1024


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    """(setup, case, samples) in the order they are run."""
    for setup in arguments.models.split(","):
        for n in map(int, arguments.samples.split(",")):
            for case in arguments.cases.split(","):
                yield setup, case, n


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(SETUPS))
    parser.add_argument("--samples", default="32,300,2000")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("-o", "--output", type=Path, help="write the figures as JSON")
    parser.add_argument("--child", nargs=4, metavar=("MODEL", "FILE", "CASE", "N"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        setup, path, case, n = arguments.child
        child(setup, Path(path), case, int(n))
        return
    from benchmarks.models.seeded import MODELS  # a framework comes with it, which the cases must not have

    rows: list[dict[str, Any]] = []
    base: dict[str, Any] = {}
    print(f"{'model':20} {'samples':>7} {'case':26} {'cpu ms/sample':>13} {'wall s':>8} {'peak MB':>8} {'+ MB':>7}")
    paths = {setup: MODELS[SETUPS[setup].model].path() for setup in arguments.models.split(",")}
    for setup, case, n in cases(arguments):
        command = [sys.executable, "-m", "benchmarks.calibration", "--child", setup, str(paths[setup]), case, str(n)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        row: dict[str, Any] = {"model": setup, "samples": n, "case": case}
        if done.returncode == 0:
            row |= json.loads(done.stdout.splitlines()[-1])
            if case == "inference":
                base = row
            more = row["peak_mb"] - base.get("peak_mb", row["peak_mb"])
            print(
                f"{setup:20} {n:7} {case:26} {1000 * row['cpu_s'] / n:13.1f} {row['wall_s']:8.1f} "
                f"{row['peak_mb']:8.0f} {more:+7.0f}",
                flush=True,
            )
            for name, ratio in row.items():
                if " / " in name:
                    print(f"{'':28} {name:26} {ratio:13.2f}", flush=True)
        else:
            row["error"] = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}"
            print(f"{setup:20} {n:7} {case:26} failed: {row['error'][:80]}", flush=True)
        rows.append(row)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
