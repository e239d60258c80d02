# SPDX-License-Identifier: Apache-2.0
"""``wia-quant devices``: what models can run on here."""

from __future__ import annotations

from wia_quant import devices as library
from wia_quant.cli import options, output


def devices(json: options.Json = False) -> None:
    """List the devices that models can run on."""
    found = library.devices()
    if json:
        output.show_json({"devices": [device.to_dict() for device in found]})
        return
    output.show_table(
        "Devices",
        ("device", "name", "runs", "instruction sets", "cores", "memory GB", "operators"),
        [(d.id, d.name, d.isa, ", ".join(d.usable_isas), d.cores, d.memory_bytes / 1e9, d.n_operators) for d in found],
    )
