# SPDX-License-Identifier: Apache-2.0
"""Quantization-aware training of tf_keras models, through tensorflow-model-optimization."""
