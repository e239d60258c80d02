# SPDX-License-Identifier: Apache-2.0
"""report.html: one file that opens without a network, reads on a phone and prints."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from PIL import Image, ImageOps

from wia_quant.errors import MissingExtraError
from wia_quant.evaluation import UNEXPLAINED_DB, worst_first
from wia_quant.reports import figures
from wia_quant.reports.gather import Flip, Report
from wia_quant.reports.summary import costs, metric_rows

try:
    import jinja2
except ImportError as error:
    raise MissingExtraError("reports are written by Jinja; install it with: pip install 'wia-quant[report]'") from error

#: Flipped samples that are shown; report.json has all.
MAX_FLIPS: Final = 24
#: Rows of the table of worst layers.
MAX_WORST: Final = 12
#: Longest side of a thumbnail.
_THUMBNAIL: Final = 220


def render_html(report: Report) -> str:
    """The page as text; everything it shows is inside."""
    template = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True).from_string(
        (Path(__file__).parent / "page.html.j2").read_text(encoding="utf-8")
    )
    layers = report.quantized.layers
    return template.render(
        title=f"Quantization of {Path(str(report.quantized.model['path'])).name}",
        quantized=report.quantized,
        data_name=Path(str(report.quantized.data["source"])).name,
        reference_name=Path(str(report.agreement.reference["path"])).name,
        agreement=report.agreement,
        cards=list(_cards(report)),
        symptoms=report.symptoms,
        metrics=metric_rows(report),
        network=figures.network(layers, report.edges),
        profile=figures.error_profile(layers),
        worst=worst_first(layers)[:MAX_WORST],
        unexplained=UNEXPLAINED_DB,
        all_layers=layers,
        sensitivity=figures.sensitivity(report.sensitivity) if report.sensitivity else "",
        activations=[{"node": h.node, "svg": figures.histogram(h, "real value")} for h in report.activations],
        weights=[{"node": h.node, "svg": figures.histogram(h, "level")} for h in report.weights],
        flips=[_shown(f) for f in report.flips[:MAX_FLIPS]],
        n_flips=len(report.flips),
        costs=costs(report),
        nodes=report.runtime["nodes"],
        findings=report.findings,
        recipe={
            k: v if isinstance(v, str) else json.dumps(v, indent=1, ensure_ascii=False)
            for k, v in report.recipe.items()
        },
    )


def _cards(report: Report) -> Iterator[Mapping[str, str]]:
    row = metric_rows(report)[0]
    yield {
        "what": row["name"],
        "value": row["after"],
        "note": f"float {row['before']}" if row["before"] else "",
        "mood": "",
    }
    if report.quantized.layers:
        worst = worst_first(report.quantized.layers)[0]
        suspect = worst.excess_db > UNEXPLAINED_DB
        note = f"in {figures._short(worst.node)}" + (": more error than rounding explains" if suspect else "")
        mood = "bad" if suspect else ""
        yield {"what": "worst layer", "value": f"{worst.felt_sqnr_db:.0f} dB", "note": note, "mood": mood}
    flips = len(report.flips)
    note = f"of {report.quantized.data['n_samples']} samples"
    yield {"what": "changed answers", "value": str(flips), "note": note, "mood": "" if flips else "good"}
    size = report.quantized.model["bytes"] / max(1, report.agreement.reference["bytes"])
    yield {"what": "size", "value": f"{size:.2f}", "note": "of the float file", "mood": "good" if size <= 0.3 else ""}
    errors = sum(f.severity.value == "error" for f in report.findings)
    yield {
        "what": "format",
        "value": str(errors or "ok"),
        "note": "breaches" if errors else "",
        "mood": "bad" if errors else "good",
    }


def _shown(flip: Flip) -> Mapping[str, str]:
    return {"name": flip.name, "before": flip.before, "after": flip.after, "image": _thumbnail(flip.picture)}


def _thumbnail(path: str) -> str:
    """A data URL of a small JPEG; empty for a sample that is no picture."""
    if not path or path.lower().endswith((".npy", ".npz")):
        return ""
    with Image.open(path) as picture:
        small = ImageOps.exif_transpose(picture).convert("RGB")
    small.thumbnail((_THUMBNAIL, _THUMBNAIL))
    content = io.BytesIO()
    small.save(content, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()
