# SPDX-License-Identifier: Apache-2.0
"""``wia-quant doctor``: is this the data that the model was trained for?"""

from __future__ import annotations

from dataclasses import asdict

import typer

from wia_quant.cli import options, output
from wia_quant.data import open_data
from wia_quant.doctor import CHECKS, examine
from wia_quant.errors import UsageError
from wia_quant.graph import read_proto


def doctor(
    model: options.Model,
    data: options.Data = None,
    preprocess: options.Preprocess = None,
    samples: options.Samples = 100,
    seed: options.Seed = 0,
    json: options.Json = False,
) -> None:
    """Look for wrong preprocessing, mixed-up axes, copies and broken values; exit 1 when something is surely wrong."""
    if data is None:
        raise UsageError("no data; give --data PATH")
    proto = read_proto(model)
    with output.progress() as progress:
        dataset = open_data(data, proto, preprocess=preprocess, samples=samples, seed=seed, progress=progress)
        symptoms = examine(proto.SerializeToString(), dataset)
    if json:
        output.show_json({"model": str(model), "data": str(data), "symptoms": [asdict(s) for s in symptoms]})
    else:
        for note in dataset.summary.notes:
            output.say(f"note: {note}")
        rows = [("wrong" if s.sure else "look", s.check, s.message, s.remedy) for s in symptoms]
        output.show_table("", ("", "check", "what", "remedy"), rows)
        output.show_line(f"{len(symptoms)} symptoms in {dataset.summary.used} samples by {len(CHECKS)} checks")
    if any(s.sure for s in symptoms):
        raise typer.Exit(1)
