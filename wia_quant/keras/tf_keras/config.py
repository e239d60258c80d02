# SPDX-License-Identifier: Apache-2.0
"""What tensorflow-model-optimization does to one layer: which weights it quantizes, and whether its result."""

from __future__ import annotations

from typing import Any

from tensorflow_model_optimization.quantization.keras import QuantizeConfig

from wia_quant.keras.tf_keras.quantizers import WiaActivationQuantizer, WiaWeightQuantizer


class WiaQuantizeConfig(QuantizeConfig):
    """Weights by output channel, the result of the layer, its activation included, on an int8 grid.

    Args:
        weights: attribute of the layer -> the axes of its output channels.
        quantize_output: whether the result is quantized.
    """

    def __init__(self, weights: dict[str, Any] | None = None, quantize_output: bool = True) -> None:
        self.weights = {name: tuple(axes) for name, axes in (weights or {}).items()}
        self.quantize_output = quantize_output

    def get_weights_and_quantizers(self, layer: Any) -> list[Any]:
        return [(getattr(layer, name), WiaWeightQuantizer(axes)) for name, axes in self.weights.items()]

    def get_activations_and_quantizers(self, layer: Any) -> list[Any]:
        return []

    def set_quantize_weights(self, layer: Any, quantize_weights: list[Any]) -> None:
        for name, weight in zip(self.weights, quantize_weights, strict=True):
            setattr(layer, name, weight)

    def set_quantize_activations(self, layer: Any, quantize_activations: list[Any]) -> None:
        pass

    def get_output_quantizers(self, layer: Any) -> list[Any]:
        return [WiaActivationQuantizer()] if self.quantize_output else []

    def get_config(self) -> dict[str, Any]:
        weights = {name: list(axes) for name, axes in self.weights.items()}
        return {"weights": weights, "quantize_output": self.quantize_output}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WiaQuantizeConfig) and self.get_config() == other.get_config()

    __hash__ = None  # type: ignore[assignment]
