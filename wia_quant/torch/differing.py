# SPDX-License-Identifier: Apache-2.0
"""Where the file of torch's exporter computes something else than torch: mended, or refused by name."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import onnx
import torch

from wia_quant.errors import ExportError

#: Operators of ``torch.ops.aten`` with a divisor, which torch's exporter drops.
_DIVISOR: Final = frozenset({torch.ops.aten.avg_pool2d.default, torch.ops.aten.avg_pool3d.default})


def refuse_divisors(program: torch.export.ExportedProgram) -> None:
    """Nothing, for a program whose average pools divide by their windows.

    Raises:
        ExportError: ``divisor_override``; names the submodule.
    """
    for node in program.graph.nodes:
        if node.target not in _DIVISOR:
            continue
        divisor = node.kwargs.get("divisor_override", node.args[6] if len(node.args) > 6 else None)
        if divisor is not None:
            stack: list[Any] = list((node.meta.get("nn_module_stack") or {}).values())
            where = f"submodule '{stack[-1][0]}'" if stack and stack[-1][0] else f"'{node.name}'"
            raise ExportError(
                f"{where}: divisor_override={divisor} of an average pool has no ONNX form; leave it out and multiply"
                f" the result by the size of the window / {divisor}"
            )


def pin_corners(proto: onnx.ModelProto) -> None:
    """Resizes with align_corners get scales that give whole lengths.

    torch maps the last sample to the last; ONNX's definition divides by ``length * scale - 1`` (Resize-18,
    coordinate_transformation_mode), which is the same only where ``length * scale`` is whole.

    Raises:
        ExportError: a length that is not known.
    """
    known = {t.name: t for t in proto.graph.initializer}
    infos = (*proto.graph.value_info, *proto.graph.input, *proto.graph.output)
    shapes = {info.name: info.type.tensor_type.shape for info in infos}
    for node in proto.graph.node:
        scales = node.input[2] if node.op_type == "Resize" and len(node.input) > 2 else ""
        modes = {a.name: a.s for a in node.attribute}
        if scales not in known or modes.get("coordinate_transformation_mode") != b"align_corners":
            continue
        given = onnx.numpy_helper.to_array(known[scales])
        shape = shapes.get(node.input[0])
        lengths = [d.dim_value for d in shape.dim] if shape is not None else [0] * given.size
        whole = [_whole(n, s, node.name) for n, s in zip(lengths, given, strict=True)]
        name = f"{node.name}_scales"
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array(whole, np.float32), name))
        node.input[2] = name


def _whole(length: int, scale: np.float32, name: str) -> np.float32:
    """The scale nearest to ``scale`` that makes of ``length`` what ``scale`` makes of it, and is not below that."""
    if scale == int(scale):
        return scale
    if length == 0:
        raise ExportError(
            f"'{name}' resizes by {scale} with align_corners an axis of open length, for which ONNX has no form that"
            " computes what torch does; give a fixed size, or align_corners=False"
        )
    wanted = int(np.floor(np.float64(length) * np.float64(scale)))
    found = np.float32(wanted / length)
    while np.float32(length) * found < wanted or float(length) * float(found) < wanted:
        found = np.nextafter(found, np.float32(np.inf))
    return found
