# SPDX-License-Identifier: Apache-2.0
"""The command line: one file per command, and the only importers of typer and rich."""
