# SPDX-License-Identifier: Apache-2.0
"""A regression as JUnit XML, the form that CI services draw."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from wia_quant.regression import Regression


def render_junit(regression: Regression, suite: str = "wia-quant regress") -> str:
    """One test case a metric; a failed one names the suspects."""
    failed = [m for m in regression.metrics if not m.ok]
    root = ET.Element(
        "testsuite", name=suite, tests=str(len(regression.metrics)), failures=str(len(failed)), errors="0", skipped="0"
    )
    for m in regression.metrics:
        case = ET.SubElement(root, "testcase", classname=suite, name=m.name)
        if not m.ok:
            said = (
                f"{m.name} fell from {m.baseline:.4g} to {m.current:.4g}{m.unit}:"
                f" {m.drop:.3g} points, {m.allowed:g} allowed"
            )
            failure = ET.SubElement(case, "failure", message=said, type="AccuracyRegression")
            lines = [
                f"{s.op_type} '{s.node}': own SQNR {s.baseline_db:.1f} -> {s.current_db:.1f} dB"
                for s in regression.suspects
            ]
            failure.text = "\n".join(["most likely responsible:", *lines[:10]] if lines else ["no layer stands out"])
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
