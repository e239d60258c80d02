# SPDX-License-Identifier: Apache-2.0
"""Evaluations and regressions as people and CI services read them."""
