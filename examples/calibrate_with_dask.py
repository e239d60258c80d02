# SPDX-License-Identifier: Apache-2.0
"""Calibrate on a Dask cluster: map ``observe_shard`` over lists of pictures, merge what comes back.

    python examples/calibrate_with_dask.py model.onnx pictures/ --preprocess imagenet [--scheduler tcp://host:8786]

Without --scheduler a cluster of this machine is started. The ranges are those that one process would find, to the
bit, because calibrators merge exactly; quantize with ``wia-quant calibrate --table model.calib.json``.
Workers read the model and the pictures by path: put both where every worker sees them. On Ray, decorate
``observe_files`` with ``ray.remote`` and ``ray.get`` the list of its results.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import onnx
from distributed import Client, LocalCluster

from wia_quant.calibrators.base import State
from wia_quant.data import PICTURES, open_data
from wia_quant.inputs import as_model_inputs
from wia_quant.policy import decide, scheme_named
from wia_quant.prepare import prepare
from wia_quant.shards import merge_states, observe_shard
from wia_quant.table import CalibrationTable
from wia_quant.targets.target import DEFAULT, load_target


def observe_files(
    model: bytes, tensors: list[str], files: list[str], calibrator: str, preprocess: str
) -> tuple[State, dict[str, Any]]:
    """Runs on a worker: what the tensors hold on these files, and what was read."""
    pictures = open_data(
        files, as_model_inputs(onnx.load_from_string(model)), preprocess=preprocess, samples=len(files)
    )
    return observe_shard(model, tensors, pictures, calibrator, threads=1), pictures.summary.to_json()


def calibrate(
    client: Client, path: Path, pictures: Path, *, preprocess: str, calibrator: str = "moving_average", shards: int = 8
) -> CalibrationTable:
    """The calibration table of the model, its pictures observed over the cluster."""
    prepared = prepare(path, opset=scheme_named("w8a8").opset)
    tensors = list(decide(prepared.model, "w8a8", prepared.excluded, load_target(DEFAULT)).observe)
    model = client.scatter(prepared.model.to_proto().SerializeToString(), broadcast=True)

    files = sorted(str(file) for file in pictures.rglob("*") if file.suffix.lower() in PICTURES)
    parts = [files[start::shards] for start in range(min(shards, len(files)))]
    futures = [client.submit(observe_files, model, tensors, part, calibrator, preprocess) for part in parts]
    states, summaries = zip(*client.gather(futures), strict=True)
    return CalibrationTable.of(
        merge_states(states, calibrator),
        model_sha256=prepared.sha256,
        calibrator=calibrator,
        data={
            "source": str(pictures),
            "used": sum(summary["used"] for summary in summaries),
            "skipped": {file: why for summary in summaries for file, why in summary["skipped"].items()},
            "digests": [summary["digest"] for summary in summaries],
            "preprocess": summaries[0]["preprocess"],
        },
        n_batches=sum(state["n_batches"] for state in states),
        skipped=states[0]["skipped"],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("--preprocess", required=True)
    parser.add_argument("--scheduler", help="address of a running Dask scheduler")
    arguments = parser.parse_args()
    with Client(arguments.scheduler or LocalCluster(n_workers=2, threads_per_worker=1)) as client:
        table = calibrate(client, arguments.model, arguments.pictures, preprocess=arguments.preprocess)
    table.save(arguments.model.with_suffix(".calib.json"))


if __name__ == "__main__":
    main()
