# SPDX-License-Identifier: Apache-2.0
"""``wia_quant.examine(model, data)``: is this the data that the model was trained for?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from wia_quant.data import Progress, Summary, open_data
from wia_quant.doctor import Symptom
from wia_quant.doctor import examine as look_at
from wia_quant.graph import metadata_of, read_proto
from wia_quant.recipe import recorded_preprocess


@dataclass(frozen=True)
class Examination:
    """What `wia-quant doctor` says of a model and its data.

    Attributes:
        symptoms: the surest first.
        data: what was read and how.
    """

    symptoms: tuple[Symptom, ...]
    data: Summary

    @property
    def ok(self) -> bool:
        """True when nothing is surely wrong; hints may be there."""
        return not any(s.sure for s in self.symptoms)

    def to_dict(self) -> dict[str, Any]:  # Any: JSON
        """The same as plain values."""
        return {"ok": self.ok, "symptoms": [asdict(s) for s in self.symptoms], "data": self.data.to_json()}

    def __str__(self) -> str:
        lines = [f"{'wrong' if s.sure else 'look'}: {s.check}: {s.message}; {s.remedy}" for s in self.symptoms]
        return "\n".join([*lines, f"{len(self.symptoms)} symptoms in {self.data.used} samples"])


def examine(
    model: str | Path | bytes | ModelProto,
    data: object,
    *,
    preprocess: object = None,
    samples: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Examination:
    """Look for wrong preprocessing, mixed-up axes, copies and broken values in data for a float model.

    Args:
        model: a path, the bytes of a file, or a ModelProto; not changed.
        data: what ``open_data`` takes.
        preprocess: for pictures: a preset, a .json file or a specification; None: what the model records, else
            guessed, and said.
        samples: how many to look at, at most.
        seed: of their choice.
        progress: called as ``progress(done, total, what)``.

    Raises:
        DataError: there is no data, or the model cannot run on it.
        ModelError: the model cannot be read.
    """
    proto = model if isinstance(model, ModelProto) else read_proto(model)
    recorded = recorded_preprocess(metadata_of(proto))
    dataset = open_data(data, proto, preprocess=preprocess or recorded, samples=samples, seed=seed, progress=progress)  # type: ignore[arg-type]
    symptoms = tuple(look_at(proto.SerializeToString(), dataset))
    return Examination(symptoms, dataset.summary)
