# SPDX-License-Identifier: Apache-2.0
"""``WiaQuantizeScheme``: tensorflow-model-optimization with the grids and places of the wia format.

The default scheme has one scale for the whole of a depthwise or Dense weight, none at all for the weight of a
convolution before a ReLU layer, and rounds halves up; all of that can be exported, but costs accuracy.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable
from typing import Any, Final

if os.environ.get("TF_USE_LEGACY_KERAS") != "1":
    # tensorflow-model-optimization would set it without a word.
    logging.getLogger(__name__).warning(
        "TF_USE_LEGACY_KERAS=1 is set from here on: tensorflow-model-optimization works on tf_keras models only"
    )
    os.environ["TF_USE_LEGACY_KERAS"] = "1"

import numpy as np
import tf_keras
from tensorflow_model_optimization.python.core.quantization.keras import (
    quantize_layer,
    quantize_layout_transform,
    quantize_registry,
)
from tensorflow_model_optimization.python.core.quantization.keras.default_8bit import default_8bit_transforms
from tensorflow_model_optimization.python.core.quantization.keras.graph_transformations import model_transformer
from tensorflow_model_optimization.quantization import keras as tfmot

from wia_quant.errors import ExportError, UsageError, WiaError
from wia_quant.keras.decompose import DECOMPOSE
from wia_quant.keras.emit.table import key_of
from wia_quant.keras.placement import Role, place
from wia_quant.keras.steps import Step, split
from wia_quant.keras.tf_keras.config import WiaQuantizeConfig
from wia_quant.keras.tf_keras.layers import LAYERS
from wia_quant.keras.tf_keras.model import MODELS, linked
from wia_quant.keras.tf_keras.quantizers import WiaActivationQuantizer, WiaWeightQuantizer
from wia_quant.keras.trace import Keras, require_float32, trace
from wia_quant.keras.walk import is_known
from wia_quant.keras.weights import WEIGHTS
from wia_quant.keras.wrappers import UNWRAP

#: What a saved model mentions.
_OBJECTS: Final = {c.__name__: c for c in (WiaQuantizeConfig, WiaActivationQuantizer, WiaWeightQuantizer)}


def quantize_scope(*args: Any) -> Any:
    """As tfmot's own, with the classes of the wia scheme: for loading models that are quantized with it.

    Models of tfmot's own schemes load in it, too; as .keras files, only in it.
    """
    stack = contextlib.ExitStack()
    stack.enter_context(tfmot.quantize_scope(*args, _OBJECTS))
    stack.enter_context(tf_keras.utils.custom_object_scope({**LAYERS, **MODELS}))
    return stack


def quantize_annotate_layer(layer: Keras, quantize_config: Any = None) -> Keras:
    """As tfmot's own: this layer is to be quantized; with ``quantize_apply(model, WiaQuantizeScheme())``."""
    return tfmot.quantize_annotate_layer(layer, quantize_config)


class WiaQuantizeScheme(tfmot.QuantizeScheme):
    """The second argument of ``tfmot.quantization.keras.quantize_apply``; call it in ``quantize_scope``."""

    def get_layout_transformer(self) -> Any:
        return _Layout()

    def get_quantize_registry(self) -> Any:
        return _Registry()


class _InputQuantizer(default_8bit_transforms.InputLayerQuantize):
    """A quantizer of ours behind each input."""

    def replacement(self, match_layer: Any) -> Any:
        node = super().replacement(match_layer)
        node.layer["config"]["quantizer"] = {"class_name": "WiaActivationQuantizer", "config": {}}
        return node

    def custom_objects(self) -> dict[str, Any]:
        return {**super().custom_objects(), **_OBJECTS}


class _Layout(quantize_layout_transform.QuantizeLayoutTransform):
    """Splits SeparableConvs, puts quantizers behind inputs, and says for each layer what becomes of it."""

    def apply(self, model: Keras, layer_quantize_map: dict[str, Any]) -> Any:
        transforms = [
            default_8bit_transforms.SeparableConv1DQuantize(),
            default_8bit_transforms.SeparableConvQuantize(),
        ]
        chosen = set(layer_quantize_map)
        model, places = model_transformer.ModelTransformer(model, transforms, chosen, layer_quantize_map).transform()
        wanted = _configs(model, places)
        if wanted.pop(_INPUT):
            model, places = model_transformer.ModelTransformer(
                model, [_InputQuantizer()], set(places), places
            ).transform()
        quantizers = {q.name: p for q in model.layers if isinstance(q, quantize_layer.QuantizeLayer)
                      if (p := places.get(q.name)) is not None}  # fmt: skip
        # tfmot clones what it gets here, its class included, unless it is a Sequential.
        return linked(model), {**quantizers, **wanted}


#: In the result of _configs: whether any input is quantized.
_INPUT: Final = ""


def _configs(model: Keras, places: dict[str, Any]) -> dict[str, Any]:
    """Layer -> its QuantizeConfig, of the layers that were annotated and have something to quantize."""
    found = trace(model, is_known)
    require_float32(found)
    steps = split(found, key_of, UNWRAP)
    names = {layer.name for layer in model.layers}
    excluded = frozenset(step.name for step in steps if _layer_of(step, names) not in places)
    placement = place(steps, found.inputs, found.outputs, excluded)
    configs: dict[str, Any] = {}
    for step in steps:
        name = _layer_of(step, names)
        given = places.get(name, {}).get("quantize_config")
        if given is not None:
            configs[name] = {"quantize_config": given}
            continue
        config = configs.setdefault(name, {"quantize_config": WiaQuantizeConfig(quantize_output=False)})
        if placement.roles[id(step)] is Role.PRODUCT:
            weight = WEIGHTS[step.key]
            config["quantize_config"].weights[weight.legacy] = weight.channels
        # An activation inside a layer ends it: only the last of its steps has the result.
        config["quantize_config"].quantize_output = id(step.outputs[0]) in placement.quantized
    nothing = WiaQuantizeConfig(quantize_output=False)
    kept = {name: c for name, c in configs.items() if name in places and c["quantize_config"] != nothing}
    return {**kept, _INPUT: any(id(v) in placement.quantized for v in found.inputs)}


def _layer_of(step: Step, names: set[str]) -> str:
    """The layer of the model that a step belongs to; a second call of a layer has a number behind its name."""
    base = step.name.partition("/")[0]
    return base if base in names else base.rpartition("_")[0]


class _Registry(quantize_registry.QuantizeRegistry):
    """For a layer that is not annotated itself but feeds one that is: its result is quantized."""

    def supports(self, layer: Keras) -> bool:
        return key_of(layer) is not None

    def get_quantize_config(self, layer: Keras) -> Any:
        return WiaQuantizeConfig()


def quantize_model(model: Keras, *, exclude: Iterable[str] = (), biased: frozenset[str] = frozenset()) -> Keras:
    """A tf_keras model ready for quantization-aware training with ``WiaQuantizeScheme``.

    Args:
        model: functional or sequential; not changed.
        exclude: names of layers that stay float.
        biased: names of layers without a bias that get one, of zeros.

    Raises:
        ExportError: a layer that tfmot cannot quantize or that has no ONNX form here; names it.
        UsageError: a name of ``exclude`` is no layer.
    """
    names = {layer.name for layer in model.layers}
    unknown = next((name for name in exclude if name not in names), None)
    if unknown is not None:
        raise UsageError(f"exclude '{unknown}': the model has no such layer; see model.summary()")
    for layer in model.layers:
        if type(layer).__name__ in UNWRAP:
            raise UsageError(f"model '{model.name}' is quantized already")
        if type(layer).__name__ in ("TFOpLambda", "SlicingOpLambda"):
            raise ExportError(
                f"layer '{layer.name}': tensorflow-model-optimization cannot quantize models that call TensorFlow"
                " functions directly; use a layer (tf_keras.layers.Add), or Keras 3"
            )
        if isinstance(layer, tf_keras.Model):
            raise ExportError(
                f"layer '{layer.name}' is a model: tensorflow-model-optimization cannot quantize nested models; call"
                " its layers in the outer model, or use Keras 3"
            )
        if key_of(layer) == "SeparableConv1D":
            raise ExportError(
                f"layer '{layer.name}' (SeparableConv1D): tensorflow-model-optimization makes Lambda layers of it,"
                " which have no ONNX form; use DepthwiseConv1D and Conv1D, or Keras 3"
            )
        if key_of(layer) is None and type(layer).__name__ not in ("InputLayer", *DECOMPOSE):
            raise ExportError(
                f"layer '{layer.name}' ({type(layer).__name__}) has no ONNX form here; see docs/keras.md for what has"
            )
    kept = set(exclude)
    # The BatchNorm of an excluded layer goes into its weights.
    kept |= {
        layer.name
        for layer in model.layers
        if type(layer).__name__ == "BatchNormalization"
        and kept & {node.outbound_layer.name for n in layer._inbound_nodes for node in n.parent_nodes}
    }

    # They stay float: tfmot has no wrapper for layers of several inputs.
    kept |= {layer.name for layer in model.layers if type(layer).__name__ in DECOMPOSE}

    model = _with_biases(model, biased & names)

    def annotate(layer: Keras) -> Keras:
        return layer if layer.name in kept else tfmot.quantize_annotate_layer(layer)

    with tfmot.quantize_scope(_OBJECTS):
        try:
            annotated = tf_keras.models.clone_model(model, clone_function=annotate)
            annotated.set_weights(model.get_weights())
            return linked(tfmot.quantize_apply(annotated, WiaQuantizeScheme()))
        except WiaError:
            raise
        except Exception as error:  # whatever tfmot raises on layers that it cannot rebuild
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ExportError(
                f"model '{model.name}': tensorflow-model-optimization cannot quantize it: {reason[:300]}"
            ) from error


def _with_biases(model: Keras, names: frozenset[str]) -> Keras:
    """A copy in which these layers have a bias of zeros; the model itself where there are none."""
    if not names:
        return model

    def copy(layer: Keras) -> Keras:
        more = {"use_bias": True} if layer.name in names else {}
        return type(layer).from_config({**layer.get_config(), **more})

    copied = tf_keras.models.clone_model(model, clone_function=copy)
    for old, new in zip(model.layers, copied.layers, strict=True):
        given = old.get_weights()
        new.set_weights([*given, *(np.zeros(w.shape, np.float32) for w in new.weights[len(given) :])])
    return copied
