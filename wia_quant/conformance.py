# SPDX-License-Identifier: Apache-2.0
"""``wia_quant.check(model)``: every finding, and whether the model conforms."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onnx import ModelProto

from wia_quant.graph import read_proto
from wia_quant.rules import Finding, Severity, check_model
from wia_quant.targets.target import Target, load_target


@dataclass(frozen=True)
class Conformance:
    """What `wia-quant check` says of a model.

    Attributes:
        findings: in the order of the rules, then of the nodes.
        target: the name of the target it was held against; empty for the format alone.
    """

    findings: tuple[Finding, ...]
    target: str = ""

    @property
    def ok(self) -> bool:
        """True when no finding is an error."""
        return not self.errors

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings for which the model does not conform."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)

    def to_dict(self) -> dict[str, Any]:  # Any: JSON
        """The same as plain values."""
        listed = [asdict(f) | {"severity": f.severity.value} for f in self.findings]
        return {"target": self.target or None, "conforming": self.ok, "findings": listed}

    def __str__(self) -> str:
        lines = [f"{f.severity.value}: {f.rule}: {f.node or f.tensor}: {f.message}; {f.remedy}" for f in self.findings]
        return "\n".join([*lines, f"{len(self.errors)} errors, {len(self.findings) - len(self.errors)} notes"])


def check(model: str | Path | bytes | ModelProto, target: str | Path | Target | None = None) -> Conformance:
    """Hold a QDQ model, whoever wrote it, against the format and, where one is given, a target.

    Args:
        model: a path, the bytes of a file, or a ModelProto; not changed.
        target: a built-in target, a JSON file, or None.

    Raises:
        ModelError: the model cannot be read.
        UsageError, PolicyError: no such target, or the file is not one.
    """
    device = None if target is None else load_target(target)
    proto = model if isinstance(model, ModelProto) else read_proto(model)
    return Conformance(tuple(check_model(proto, device)), "" if device is None else device.name)
