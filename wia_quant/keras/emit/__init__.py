# SPDX-License-Identifier: Apache-2.0
"""Keras layers and operations as ONNX nodes."""
