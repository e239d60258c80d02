# SPDX-License-Identifier: Apache-2.0
"""What models can run on here: the devices of libwia."""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wia_quant import runtime


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        id: "cpu:0".
        name: what its maker calls it.
        isa: the instruction set that libwia uses by default.
        usable_isas: what `--isa` takes here, the slowest first.
        cores: how many this process may use.
        memory_bytes: of the machine; 0 where it is not known.
        n_operators: how many operators libwia has for it.
    """

    id: str
    name: str
    isa: str
    usable_isas: tuple[str, ...]
    cores: int
    memory_bytes: int
    n_operators: int

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def devices() -> tuple[Device, ...]:
    """Every device, the default one first."""
    isas = runtime.usable_isas()
    return (
        Device(
            id="cpu:0",
            name=_cpu_name(),
            isa=os.environ.get("WIA_ISA") or isas[-1],
            usable_isas=tuple(isas),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            memory_bytes=_memory_bytes(),
            n_operators=len(runtime.operators()),
        ),
    )


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # a system without these names
        return 0
