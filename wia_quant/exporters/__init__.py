# SPDX-License-Identifier: Apache-2.0
"""One file per source of a quantized model; each writes the wia-quantized ONNX format."""
