# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training of Keras 3 models, on whichever backend Keras runs."""
