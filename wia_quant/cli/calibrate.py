# SPDX-License-Identifier: Apache-2.0
"""``wia-quant calibrate``: a float model and data become a quantized model and its calibration table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from wia_quant import files, policy
from wia_quant.calibration import InterruptedCalibration
from wia_quant.calibrators import CALIBRATORS
from wia_quant.cli import options, output
from wia_quant.errors import UsageError
from wia_quant.quantizer import QuantizedModel, quantize

#: What the results are called, beside the model: MODEL.wia.onnx and MODEL.calib.json.
MODEL_SUFFIX: Final = ".wia.onnx"
TABLE_SUFFIX: Final = ".calib.json"
#: Where an interrupted calibration leaves what it has seen.
PARTIAL_SUFFIX: Final = ".calib.partial.json"


def calibrate(
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="MODEL",
            help="The float ONNX model; by default the only .onnx file of this folder.",
            show_default=False,
        ),
    ] = None,
    data: options.Data = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            metavar="OUT",
            help="The quantized model; by default MODEL.wia.onnx beside MODEL.",
            show_default=False,
        ),
    ] = None,
    calibrator: Annotated[
        str, typer.Option("--calibrator", metavar="NAME", help=f"How a range is chosen: {', '.join(CALIBRATORS)}.")
    ] = "moving_average",
    scheme: Annotated[
        str,
        typer.Option("--scheme", metavar="NAME", help=f"Bits of weights and activations: {', '.join(policy.SCHEMES)}."),
    ] = "w8a8",
    samples: options.Samples = 300,
    preprocess: options.Preprocess = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table",
            metavar="FILE",
            help="Take the ranges of this calibration table, or resume it if it is of an interrupted run.",
            show_default=False,
        ),
    ] = None,
    target: Annotated[
        str, typer.Option("--target", metavar="NAME|FILE.json", help="The device to quantize for.")
    ] = "wia-cpu",
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude",
            metavar="RULE",
            help="Keep these nodes in float: NAME, regex:PATTERN, type:OP or "
            "between:A..B. May be repeated; a rule without a match is an error.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Processes that observe the data.")] = 1,
    seed: options.Seed = 0,
    plan: Annotated[
        bool,
        typer.Option("--plan", help="Print what would be done to each node and why; run and write nothing."),
    ] = False,
    strict: options.Strict = False,
    synthetic: options.Synthetic = False,
    force: options.Force = False,
    json: options.Json = False,
) -> None:
    """Calibrate a float ONNX model on data and write it quantized.

    Writes MODEL.wia.onnx (any ONNX runtime loads it) and MODEL.calib.json (the ranges, for --table).
    Ctrl-C keeps what was observed; the message says how to go on.
    """
    chosen = model if model is not None else _only_model(Path.cwd())
    rules = tuple(exclude or ())
    if plan:
        _show_plan(policy.plan(chosen, scheme, rules, target), json=json)
        return
    if data is None and table is None and not synthetic:
        raise UsageError(
            "no data; give --data PATH (pictures like those the model will see), --table FILE, or --synthetic"
        )
    if data is not None and synthetic:
        raise UsageError("--data and --synthetic exclude each other; leave one out")
    out = out or _beside(chosen, MODEL_SUFFIX)
    files.check_writable([out, _beside(out, TABLE_SUFFIX)], force=force)
    partial = _beside(out, PARTIAL_SUFFIX)
    try:
        with output.progress() as progress:
            result = quantize(
                chosen,
                data,
                calibrator=calibrator,
                scheme=scheme,
                samples=samples,
                seed=seed,
                preprocess=preprocess,
                table=table,
                target=target,
                exclude=rules,
                workers=workers,
                synthetic=synthetic,
                strict=strict,
                progress=progress,
                checkpoint=lambda unfinished: unfinished.save(partial, force=True),
            )
    except InterruptedCalibration as stop:
        stop.table.save(partial, force=True)
        raise KeyboardInterrupt(
            f"{stop.table.n_batches} batches are kept; add --table {partial} to the same command to go on"
        ) from stop
    result.save(out, force=force)
    partial.unlink(missing_ok=True)
    _show(result, chosen, out, json=json)


def _only_model(folder: Path) -> Path:
    """The one float model of ``folder``; said aloud, because the user did not name it."""
    found = sorted(path for path in folder.glob("*.onnx") if not path.name.endswith(MODEL_SUFFIX))
    if len(found) != 1:
        have = "no .onnx file" if not found else f"{len(found)} .onnx files ({_some(p.name for p in found)})"
        raise UsageError(f"no MODEL given and {have} in this folder; name one: wia-quant calibrate MODEL --data PATH")
    output.say(f"using {found[0].name}, the only .onnx file of this folder")
    return Path(found[0].name)


def _beside(path: Path, suffix: str) -> Path:
    name = path.name.removesuffix(".onnx").removesuffix(".wia")
    return path.with_name(name + suffix)


def _some(names: Iterable[str], most: int = 4) -> str:
    listed = list(names)
    return ", ".join(listed[:most]) + (", ..." if len(listed) > most else "")


def _show_plan(plan: policy.Plan, *, json: bool) -> None:
    decisions = [_decision(d) for d in plan.decisions]
    if json:
        output.show_json({"decisions": decisions})
        return
    rows = [(d["node"], d["op_type"], "int8" if d["quantized"] else "float", d["reason"]) for d in decisions]
    output.show_table("What would be done", ("node", "operator", "as", "why"), rows)


def _show(result: QuantizedModel, model: Path, out: Path, *, json: bool) -> None:
    decisions = [_decision(d) for d in result.plan.decisions]
    data, table = result.table.data, _beside(out, TABLE_SUFFIX)
    notes = list(dict.fromkeys([*data.get("notes", ()), *result.notes]))
    before, after = model.stat().st_size, out.stat().st_size
    if json:
        output.show_json(
            {
                "model": str(out),
                "table": str(table),
                "size_before": before,
                "size_after": after,
                "data": data,
                "notes": notes,
                "symptoms": [asdict(s) for s in result.symptoms],
                "decisions": decisions,
            }
        )
        return
    quantized = Counter(d["op_type"] for d in decisions if d["quantized"])
    kept = Counter((d["op_type"], d["reason"]) for d in decisions if not d["quantized"])
    rows = [(op, n, "int8", "") for op, n in quantized.most_common()]
    rows += [(op, n, "float", reason) for (op, reason), n in kept.most_common()]
    output.show_table("What was done", ("operator", "nodes", "as", "why"), rows)
    output.show_line(f"data: {data.get('used', 0)} samples of {data.get('source', 'a table')}, {data.get('kind', '')}")
    output.say_data({**data, "notes": notes})
    for s in result.symptoms:
        output.say(f"{'warning' if s.sure else 'look'}: {s.message}; {s.remedy}")
    output.show_line(f"{out}  {after / 1e6:.2f} MB, {after / before:.2f} of {model.name}")
    output.show_line(f"{table}  ranges of {len(result.table.tensors)} tensors")
    output.show_line(f"next: wia-quant run {out} --data {data.get('source', 'PATH')}")


def _decision(decision: policy.Decision) -> dict[str, Any]:
    return {
        "node": decision.node,
        "op_type": decision.op_type,
        "quantized": decision.quantized,
        "reason": decision.reason,
    }
