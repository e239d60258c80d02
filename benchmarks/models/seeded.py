# SPDX-License-Identifier: Apache-2.0
"""The table of models with weights from a seed, and of all; needs torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from benchmarks.models import TRAINED, bert_base, mobilenet_v2, mobilenet_v3, resnet, unet, vit, yolov8n
from benchmarks.models.base import Model

#: Their shapes and operators are real, their answers mean nothing: latency only.
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
