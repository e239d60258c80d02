# SPDX-License-Identifier: Apache-2.0
"""Descriptions of what a device accepts, one JSON file each; ``wia-cpu`` is built in."""
