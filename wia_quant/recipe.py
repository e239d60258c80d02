# SPDX-License-Identifier: Apache-2.0
"""The metadata of a wia-quantized model: every choice that was made, as JSON that is the same for the same choices."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import wia_quant
from wia_quant.preprocess import Recorded

FORMAT_VERSION: Final = "1"


def metadata(
    *,
    source_sha256: str,
    target: str,
    recipe: Mapping[str, Any],  # Any: JSON
    calibration: Mapping[str, Any],
    tensors_sha256: str,
) -> dict[str, str]:
    """``metadata_props`` of docs/format.md."""
    return {
        "wia.format": FORMAT_VERSION,
        "wia.tool": f"wia-quant {wia_quant.__version__}",
        "wia.recipe": to_json(recipe),
        "wia.source_sha256": source_sha256,
        "wia.calibration": to_json(calibration),
        "wia.target": target,
        "wia.tensors": tensors_sha256,
    }


def to_json(value: Any) -> str:  # Any: JSON
    """Compact, keys sorted: equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def recorded_preprocess(metadata: Mapping[str, str]) -> Recorded | None:
    """How the pictures were made into inputs when the model was calibrated; None where it does not say."""
    calibration = json.loads(metadata.get("wia.calibration", "{}"))
    spec = calibration.get("data", {}).get("preprocess")
    return Recorded(spec) if isinstance(spec, dict) else None
