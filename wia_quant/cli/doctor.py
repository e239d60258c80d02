# SPDX-License-Identifier: Apache-2.0
"""``wia-quant doctor``: is this the data that the model was trained for?"""

from __future__ import annotations

import typer

from wia_quant.cli import options, output
from wia_quant.doctor import CHECKS
from wia_quant.errors import UsageError
from wia_quant.examination import examine


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
    with output.progress() as progress:
        found = examine(model, data, preprocess=preprocess, samples=samples, seed=seed, progress=progress)
    if json:
        output.show_json({"model": str(model), **found.to_dict()})
    else:
        for note in found.data.notes:
            output.say(f"note: {note}")
        rows = [("wrong" if s.sure else "look", s.check, s.message, s.remedy) for s in found.symptoms]
        output.show_table("", ("", "check", "what", "remedy"), rows)
        output.show_line(f"{len(found.symptoms)} symptoms in {found.data.used} samples by {len(CHECKS)} checks")
    if not found.ok:
        raise typer.Exit(1)
