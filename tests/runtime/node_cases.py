# SPDX-License-Identifier: Apache-2.0
"""The node tests of the onnx package, which of them libwia can be asked to pass, and the table of its operators.

``python tests/runtime/node_cases.py --write`` runs them and writes docs/operators.md.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from wia_quant import _native
from wia_quant.errors import WiaError
from wia_quant.runtime import Session

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operators.md"

#: Cases of operators that libwia has, and why it does not run them: a pattern of the whole name, the reason.
UNSUPPORTED: tuple[tuple[str, str], ...] = (
    (r"test_.*(FNUZ|E8M0|FLOAT4E2M1|INT2|float4e2m1|int2).*", "element types that no WIA-AI-011 device has"),
    (r"test_training_dropout_(default|default_mask|mask)|test_training_dropout", "training: random numbers"),
    (r"test_equal_string.*", "strings"),
    (r"test_identity_(sequence|opt)", "sequences and optionals"),
)

#: Cases whose expected values are off by more than their own tolerance.
INEXACT: dict[str, tuple[float, str]] = {
    "test_dft_inverse": (2e-7, "the expected imaginary parts are rounding noise of 1.9e-7 around 0"),
    "test_dft_inverse_opset19": (2e-7, "the expected imaginary parts are rounding noise of 1.9e-7 around 0"),
}

#: Two steps of a half type. The expected values round after every operation, libwia once at the end of each node.
HALF_STEPS = {"float16": 2 * 2.0**-10, "bfloat16": 2 * 2.0**-7}


#: The end of the document; each line has a test in test_differences.py.
DIFFERENCES = """
## Where libwia and onnxruntime give different results

Each was found by random models and judged by the standard's text, its shape inference and `onnx.reference`.

| operator | case | libwia | onnxruntime |
|---|---|---|---|
| MaxPool | auto_pad SAME_* and dilations above 1 | the standard's size: the input's by the stride, rounded up | counts the kernel without its dilations: a smaller output |
| ConvTranspose | auto_pad SAME_*, a kernel smaller than the stride | the text's size: the input's times the stride | pads no more than 0, as onnx's shape inference does: a smaller output |
| Resize | nearest, align_corners, a scale that gives no whole size | the same values as `onnx.reference`: length_resized is not rounded | other pixels: length_resized is the rounded size |
"""  # noqa: E501


@dataclass(frozen=True)
class Case:
    """One node test: a model, its inputs and what must come out."""

    name: str
    model: onnx.ModelProto
    operators: frozenset[tuple[str, str]]
    data_sets: list[tuple[Any, Any]]
    rtol: float
    atol: float


def operators_of(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    """(domain, op_type) of every node, those of subgraphs too."""
    for node in graph.node:
        yield ("" if node.domain == "ai.onnx" else node.domain, node.op_type)
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from operators_of(attribute.g)


@cache
def all_cases() -> dict[str, Case]:
    """Every node test of the installed onnx, by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        found = collect_testcases(None)
    return {
        c.name: Case(c.name, c.model, frozenset(operators_of(c.model.graph)), list(c.data_sets), c.rtol, c.atol)
        for c in found
        if c.model is not None and c.data_sets is not None
    }


@cache
def eligible() -> tuple[str, ...]:
    """The names of the cases whose operators libwia has, all of them."""
    have = set(_native.operators())
    return tuple(sorted(name for name, case in all_cases().items() if case.operators <= have))


def reason_not_run(name: str) -> str | None:
    """Why an eligible case is not supported; None if it must pass."""
    return next((reason for pattern, reason in UNSUPPORTED if re.fullmatch(pattern, name)), None)


def _array(value: Any) -> npt.NDArray[Any]:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def run_case(case: Case, threads: int = 1, isa: str | None = None) -> None:
    """Runs the case in libwia and compares; AssertionError where an output differs."""
    session = Session(case.model.SerializeToString(), threads=threads, isa=isa)
    for inputs, outputs in case.data_sets:
        names = [i.name for i in case.model.graph.input]
        got = session.run(None, {n: _array(v) for n, v in zip(names, inputs, strict=False)})
        assert len(got) == len(outputs), case.name
        for mine, expected in zip(got, outputs, strict=True):
            _compare(case, mine, _array(expected))


def _compare(case: Case, got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    assert got.dtype == expected.dtype, f"{case.name}: {got.dtype}, not {expected.dtype}"
    assert got.shape == expected.shape, f"{case.name}: {got.shape}, not {expected.shape}"
    if np.issubdtype(got.dtype, np.integer) or got.dtype == bool or "int4" in got.dtype.name:
        np.testing.assert_array_equal(got, expected)
        return
    rtol = max(case.rtol, HALF_STEPS.get(got.dtype.name, 0.0))
    atol = max(case.atol, INEXACT.get(case.name, (0.0, ""))[0])
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=rtol, atol=atol)


def _versions(op_type: str) -> str:
    found = sorted(
        {s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type and s.domain == ""}
    )
    return ", ".join(str(v) for v in found)


def document() -> str:
    """docs/operators.md: runs every eligible case."""
    tested: dict[str, set[str]] = defaultdict(set)
    passed: dict[str, int] = defaultdict(int)
    n_passed, refused = 0, []
    for name in eligible():
        case = all_cases()[name]
        if reason := reason_not_run(name):
            refused.append((name, reason))
            continue
        run_case(case)
        n_passed += 1
        for _, op_type in case.operators:
            passed[op_type] += 1
        if len(case.operators) == 1:
            (_, op_type) = next(iter(case.operators))
            for inputs, _outputs in case.data_sets:
                tested[op_type] |= {_array(v).dtype.name for v in inputs if v is not None}
    lines = [
        "# Operators of libwia",
        "",
        "Written by `python tests/runtime/node_cases.py --write`. Opsets: every version that the standard has of the",
        "operator up to the newest. Types: those of the inputs in the node tests of onnx that pass; libwia takes more",
        "where a template makes it cheap, and float16 and bfloat16 wherever it takes float32.",
        "",
        f"Of the {len(all_cases())} node tests of onnx {onnx.__version__}, {len(eligible())} use only operators that",
        f"libwia has; {n_passed} of those pass and {len(refused)} are refused with a clear error:",
        "",
        "| cases | why |",
        "|---|---|",
    ]
    by_reason: dict[str, int] = defaultdict(int)
    for _, reason in refused:
        by_reason[reason] += 1
    lines += [f"| {n} | {reason} |" for reason, n in by_reason.items()]
    lines += ["", "| operator | opsets | node tests passed | input types in them |", "|---|---|---|---|"]
    for domain, op_type in sorted(_native.operators()):
        if domain == "":
            lines.append(
                f"| {op_type} | {_versions(op_type)} | {passed[op_type]} | {', '.join(sorted(tested[op_type]))} |"
            )
    return "\n".join(lines) + "\n" + DIFFERENCES


def main() -> None:
    """Prints the counts; with --write, writes the document."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", action="store_true")
    if parser.parse_args().write:
        DOCUMENT.write_text(document(), encoding="utf-8")
    failed = []
    for name in eligible():
        try:
            if reason_not_run(name) is None:
                run_case(all_cases()[name])
        except (AssertionError, WiaError) as error:
            failed.append((name, " ".join(str(error).split())[:200]))
    for name, why in failed:
        print(name, why)
    refused = sum(reason_not_run(name) is not None for name in eligible())
    print(f"passed {len(eligible()) - refused - len(failed)}, refused {refused}, failed {len(failed)}, "
          f"eligible {len(eligible())}, total {len(all_cases())}")  # fmt: skip


if __name__ == "__main__":
    main()
