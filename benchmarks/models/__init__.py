# SPDX-License-Identifier: Apache-2.0
"""The zoo: one file per model or family. Here the table of those with trained weights; seeded.py has the others."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.models import efficientnet_lite0, magika, minilm, ppocr_det, ppocr_rec, silero_vad
from benchmarks.models.base import Feeds, MissingDataError, Model, Outputs, cache

#: Accuracy, latency and exactness are measured on them.
TRAINED: Mapping[str, Model] = MappingProxyType(
    {file.MODEL.name: file.MODEL for file in (efficientnet_lite0, ppocr_rec, ppocr_det, minilm, magika, silero_vad)}
)

__all__ = ["TRAINED", "Feeds", "MissingDataError", "Model", "Outputs", "cache"]
