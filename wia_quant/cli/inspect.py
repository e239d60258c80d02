# SPDX-License-Identifier: Apache-2.0
"""``wia-quant inspect``: what is in a model, and which kernel each node gets."""

from __future__ import annotations

from wia_quant.cli import options, output
from wia_quant.inspection import Inspection, Scale
from wia_quant.inspection import inspect as look_into


def inspect(
    model: options.Model,
    threads: options.Threads = 1,
    isa: options.Isa = None,
    json: options.Json = False,
) -> None:
    """Show a model's graph, scales, kernels and memory."""
    found = look_into(model, threads=threads, isa=isa)
    if json:
        output.show_json(found.to_dict())
        return
    _show_file(found)
    output.show_table("Operators", ("operator", "nodes"), found.operators.items())
    output.show_table(
        "Quantized tensors",
        ("tensor", "kind", "levels", "scale", "zero point", "axis"),
        [
            (s.tensor, "weight" if s.weight else "activation", s.dtype, _scale(s), s.zero_point, s.axis)
            for s in found.scales
        ],
    )
    _show_runtime(found)


def _show_file(found: Inspection) -> None:
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opset.items())
    output.show_line(f"{found.path}  {found.size / 1e6:.2f} MB, opset {opsets}")
    output.show_table("", ("", "input/output"), [("in", i) for i in found.inputs] + [("out", o) for o in found.outputs])
    output.show_table(
        "Metadata", ("key", "value"), [(k, v if len(v) <= 100 else v[:97] + "...") for k, v in found.metadata.items()]
    )


def _show_runtime(found: Inspection) -> None:
    if found.runtime is None:
        output.show_line(f"libwia cannot run it: {found.problem}")
        return
    nodes = found.runtime.get("nodes", [])
    if nodes:
        rows = [(n["name"], n["op_type"], n["kernel"], n["kind"], "; ".join(n["output_shapes"])) for n in nodes]
        output.show_table("In libwia", ("node", "operator", "kernel", "when", "result"), rows)
    shown = {
        "instruction set": found.runtime["isa"],
        "threads": found.runtime["threads"],
        "memory for tensors": f"{found.runtime['arena_bytes'] / 1e6:.3g} MB",
        "memory for weights": f"{found.runtime['weight_bytes'] / 1e6:.3g} MB",
    }
    output.show_table("", ("libwia", ""), shown.items())


def _scale(scale: Scale) -> str:
    lo, hi = scale.scale
    return f"{lo:.4g}" if scale.n_scales == 1 else f"{lo:.4g} .. {hi:.4g} ({scale.n_scales})"
