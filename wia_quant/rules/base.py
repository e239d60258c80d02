# SPDX-License-Identifier: Apache-2.0
"""A rule of the format, what it finds, and how a finding is mended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from onnx import ModelProto, NodeProto

from wia_quant.qdq import GraphView, ModelView


class Severity(Enum):
    """How bad a finding is."""

    ERROR = "error"  #: not of the format: an executor may compute something else, or refuse the file
    NOTE = "note"  #: allowed, but costs accuracy, size or speed


@dataclass(frozen=True)
class Finding:
    """One place where a model breaks a rule.

    Attributes:
        rule: the rule's name in RULES.
        severity: how bad it is.
        node: ``"Conv 'stem/conv'"``; empty when the finding is not about a node.
        tensor: the tensor's name; empty when the finding is not about a tensor.
        message: what is wrong, with the values found.
        remedy: what to do about it.
        fixable: ``--fix`` can mend it without changing any result.
    """

    rule: str
    severity: Severity
    node: str
    tensor: str
    message: str
    remedy: str
    fixable: bool = False


@dataclass(frozen=True)
class Place:
    """A breach as a rule reports it; the rule's name and severity are added by the table."""

    message: str
    remedy: str
    node: str = ""
    tensor: str = ""
    fixable: bool = False
    severity: Severity | None = None  #: where it is not the rule's


@dataclass(frozen=True)
class Rule:
    """One numbered sentence of docs/format.md that a program can verify.

    Attributes:
        summary: the sentence.
        severity: of a finding that does not say its own.
        find: yields the breaches.
        fix: mends the fixable ones in place and returns how many; None when there is no safe remedy.
    """

    summary: str
    severity: Severity
    find: Callable[[ModelView], Iterator[Place]]
    fix: Callable[[ModelProto], int] | None = None


def at(
    view: GraphView,
    node: NodeProto,
    message: str,
    remedy: str,
    *,
    tensor: str = "",
    fixable: bool = False,
    severity: Severity | None = None,
) -> Place:
    """A breach at ``node``."""
    return Place(message, remedy, view.where(node), tensor, fixable, severity)
