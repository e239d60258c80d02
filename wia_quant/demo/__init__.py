# SPDX-License-Identifier: Apache-2.0
"""The demonstration: a text recognizer is fetched, quantized, run and compared with itself in float."""
