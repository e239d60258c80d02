# SPDX-License-Identifier: Apache-2.0
"""The table of the wrappers that training puts around layers, and how each is opened."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from wia_quant.affine import INT8, INT8_NARROW, QParams, Range, choose_qparams
from wia_quant.errors import CalibrationError, ExportError
from wia_quant.keras.emit.table import OPERATION, key_of
from wia_quant.keras.steps import Unwrap, Unwrapped, activation_of
from wia_quant.keras.values import array
from wia_quant.keras.weights import WEIGHTS, grid_of


def _fake_quantize(layer: Any) -> Unwrapped:
    """wia_quant.keras.keras3.FakeQuantize."""
    if not array(layer.seen).any():
        raise CalibrationError(
            f"fake quantizer '{layer.name}' saw no data; before export train the model, or show it samples:"
            " wia_quant.keras.observe(model, batches)"
        )
    return Unwrapped(
        None, after=(affine_qparams(layer.name, float(array(layer.lo).min()), float(array(layer.hi).max())),)
    )


def affine_qparams(name: str, lo: float, hi: float) -> QParams:
    """Of an activation, from the ends that training kept."""
    if not (np.isfinite(lo) and np.isfinite(hi)):
        raise CalibrationError(f"'{name}' saw NaN or infinity in training: its range is [{lo}, {hi}]")
    return choose_qparams(Range.around_zero(lo, hi), INT8)


def _quantized_product(wrapper: Any) -> Unwrapped:
    """wia_quant.keras.keras3.QuantizedProduct."""
    layer = wrapper.layer
    weight = WEIGHTS[str(key_of(layer))]
    grid = grid_of(array(getattr(layer, weight.attribute)), weight.channels)
    return Unwrapped(layer, {weight.attribute: grid}, batch_norm=wrapper.batch_norm)


def _quantized_scale(wrapper: Any) -> Unwrapped:
    """wia_quant.keras.keras3.QuantizedScale: the file chooses the same grid for the factors."""
    return Unwrapped(wrapper.layer)


def _quantized_arithmetic(wrapper: Any) -> Unwrapped:
    """wia_quant.keras.keras3.QuantizedArithmetic, of a layer or an operation."""
    return Unwrapped(wrapper.layer, gathered=str(key_of(wrapper.layer)).startswith(OPERATION))


def _operand_weight(layer: Any) -> Unwrapped:
    """wia_quant.keras.keras3.OperandWeight: its values and their scale, which only training reads."""
    return Unwrapped(None, constants=(layer.values(), np.float32(0)))


# -- tensorflow-model-optimization --------------------------------------------------------------------------------


def _quantize_layer(layer: Any) -> Unwrapped:
    """tfmot's QuantizeLayer, behind an input."""
    if layer.quantizer is None:
        return Unwrapped(None)
    return Unwrapped(None, after=(_activation_grid(layer.name, layer.quantizer, layer.quantizer_vars),))


def _quantize_wrapper(wrapper: Any) -> Unwrapped:
    """tfmot's QuantizeWrapper, with whatever QuantizeConfig."""
    layer = wrapper.layer
    key = str(key_of(layer))
    values, grids = {}, {}
    for variable, quantizer, variables in wrapper._weight_vars:
        attribute = str(variable.name).partition(":")[0].rpartition("/")[2]
        values[attribute] = variable
        grids[attribute] = _weight_grid(wrapper.name, key, array(variable), quantizer, variables)
    before, after, activation = None, [], activation_of(layer)
    for aware in wrapper._quantize_activations:
        activation = aware.activation
        if aware._should_pre_quantize():
            before = _activation_grid(wrapper.name, aware.quantizer, aware._pre_activation_vars)
        if aware._should_post_quantize():
            after.append(_activation_grid(wrapper.name, aware.quantizer, aware._post_activation_vars))
    if wrapper._output_quantizers:
        after.append(_activation_grid(wrapper.name, wrapper._output_quantizers[0], wrapper._output_quantizer_vars))
    if key in ("Activation", "ReLU", "Softmax"):
        activation = None  # the layer itself is it
    return Unwrapped(layer, grids, before, tuple(after), activation, values=values)


def _activation_grid(name: str, quantizer: Any, variables: Mapping[str, Any]) -> QParams:
    lo, hi = (np.float32(array(variables[f"{end}_var"])) for end in ("min", "max"))
    if lo == hi:
        raise CalibrationError(f"the quantizer of layer '{name}' saw no data; train the model before export")
    if type(quantizer).__name__ == "WiaActivationQuantizer":
        return affine_qparams(name, float(lo), float(hi))
    _require_tfmot(name, quantizer)
    if not (np.isfinite(lo) and np.isfinite(hi)):
        raise CalibrationError(f"layer '{name}' saw NaN or infinity in training: its range is [{lo}, {hi}]")
    # TensorFlow's fake_quant_with_min_max_vars: levels from 0 (narrow: 1) to 255, all in float32.
    lowest = 1 if quantizer.narrow_range else 0
    scale = np.float32((hi - lo) / np.float32(255 - lowest))
    place = np.float32(lowest) - np.float32(lo / scale)
    level = int(np.clip(np.floor(place + np.float32(0.5)), lowest, 255))
    return QParams(INT8, np.array(scale), np.array(level - 128, np.int8))


def _weight_grid(name: str, key: str, kernel: Any, quantizer: Any, variables: Mapping[str, Any]) -> QParams:
    if type(quantizer).__name__ == "WiaWeightQuantizer":
        return grid_of(kernel, quantizer.channels)
    _require_tfmot(name, quantizer)
    if not (quantizer.symmetric and quantizer.narrow_range):
        raise ExportError(f"layer '{name}': the weight's quantizer is not symmetric and narrow; the format's are")
    lo, hi = (array(variables[f"{end}_var"]).astype(np.float32).reshape(-1) for end in ("min", "max"))
    scale = ((hi - lo) / np.float32(254)).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1)).astype(np.float32)
    if key.startswith("Depthwise"):
        scale = np.tile(scale, kernel.shape[-2]) if scale.size > 1 else scale
    return QParams(INT8_NARROW, scale, np.zeros(scale.shape, np.int8), 0)


def _require_tfmot(name: str, quantizer: Any) -> None:
    if getattr(quantizer, "num_bits", None) != 8 or not hasattr(quantizer, "narrow_range"):
        raise ExportError(f"layer '{name}': quantizer {type(quantizer).__name__} is not one of 8 bits that we know")


#: Class name -> what it stands for.
UNWRAP: Final[Mapping[str, Unwrap]] = MappingProxyType(
    {
        "FakeQuantize": _fake_quantize,
        "QuantizedProduct": _quantized_product,
        "QuantizedScale": _quantized_scale,
        "QuantizedArithmetic": _quantized_arithmetic,
        "OperandWeight": _operand_weight,
        "QuantizeLayer": _quantize_layer,
        "QuantizeWrapper": _quantize_wrapper,
        "QuantizeWrapperV2": _quantize_wrapper,
    }
)
