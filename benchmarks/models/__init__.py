# SPDX-License-Identifier: Apache-2.0
"""The zoo: one file per model or family, and the table of them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.models import (
    bert_base,
    efficientnet_lite0,
    magika,
    minilm,
    mobilenet_v2,
    mobilenet_v3,
    ppocr_det,
    ppocr_rec,
    resnet,
    silero_vad,
    unet,
    vit,
    yolov8n,
)
from benchmarks.models.base import Feeds, MissingDataError, Model, Outputs, cache

#: Trained weights: accuracy, latency and exactness are measured on them.
TRAINED: Mapping[str, Model] = MappingProxyType(
    {file.MODEL.name: file.MODEL for file in (efficientnet_lite0, ppocr_rec, ppocr_det, minilm, magika, silero_vad)}
)

#: Weights from a seed: their shapes and operators are real, their answers mean nothing.
SEEDED: Mapping[str, Model] = MappingProxyType(
    {
        model.name: model
        for model in (
            *resnet.MODELS,
            mobilenet_v2.MODEL,
            mobilenet_v3.MODEL,
            yolov8n.MODEL,
            bert_base.MODEL,
            *vit.MODELS,
            unet.MODEL,
        )
    }
)

MODELS: Mapping[str, Model] = MappingProxyType({**TRAINED, **SEEDED})

__all__ = ["MODELS", "SEEDED", "TRAINED", "Feeds", "MissingDataError", "Model", "Outputs", "cache"]
