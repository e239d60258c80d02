# SPDX-License-Identifier: Apache-2.0
"""The table: class of a layer -> what writes it. One line a layer; docs/keras.md lists it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from wia_quant.builder import Builder, Tensor
from wia_quant.keras.emit import activations, merging, normalization, pooling, products, recurrent, shapes
from wia_quant.keras.emit.operations import FUNCTIONS, OPERATIONS
from wia_quant.keras.steps import Step
from wia_quant.keras.trace import Keras

#: From the layer and its first argument, a tensor or a list of tensors, to its result.
Emit = Callable[[Builder, Step, Any], Tensor]

LAYERS: Final[Mapping[str, Emit]] = MappingProxyType(
    {
        # Products.
        "Conv1D": products.conv,
        "Conv2D": products.conv,
        "Conv3D": products.conv,
        "DepthwiseConv1D": products.depthwise_conv,
        "DepthwiseConv2D": products.depthwise_conv,
        "SeparableConv1D": products.separable_conv,
        "SeparableConv2D": products.separable_conv,
        "Conv1DTranspose": products.conv_transpose,
        "Conv2DTranspose": products.conv_transpose,
        "Conv3DTranspose": products.conv_transpose,
        "Dense": products.dense,
        "Embedding": products.embedding,
        # Functions of one value.
        "activation": activations.activation,
        "Activation": activations.activation_layer,
        "ReLU": activations.relu_layer,
        "LeakyReLU": activations.leaky_relu_layer,
        "PReLU": activations.prelu_layer,
        "ELU": activations.elu_layer,
        "Softmax": activations.softmax_layer,
        # Pooling.
        "MaxPooling1D": pooling.max_pooling,
        "MaxPooling2D": pooling.max_pooling,
        "MaxPooling3D": pooling.max_pooling,
        "AveragePooling1D": pooling.average_pooling,
        "AveragePooling2D": pooling.average_pooling,
        "AveragePooling3D": pooling.average_pooling,
        "GlobalAveragePooling1D": pooling.global_average_pooling,
        "GlobalAveragePooling2D": pooling.global_average_pooling,
        "GlobalAveragePooling3D": pooling.global_average_pooling,
        "GlobalMaxPooling1D": pooling.global_max_pooling,
        "GlobalMaxPooling2D": pooling.global_max_pooling,
        "GlobalMaxPooling3D": pooling.global_max_pooling,
        # Several inputs.
        "Add": merging.merge("Add"),
        "Subtract": merging.merge("Sub"),
        "Multiply": merging.merge("Mul"),
        "Maximum": merging.merge("Max"),
        "Minimum": merging.merge("Min"),
        "Average": merging.average,
        "Concatenate": merging.concatenate,
        # Normalizations and scaling.
        "BatchNormalization": normalization.batch_normalization,
        "LayerNormalization": normalization.layer_normalization,
        "GroupNormalization": normalization.group_normalization,
        "RMSNormalization": normalization.rms_normalization,
        "UnitNormalization": normalization.unit_normalization,
        "LayerScale": normalization.layer_scale,
        "Rescaling": normalization.rescaling,
        "Normalization": normalization.normalization,
        # Recurrent.
        "LSTM": recurrent.recurrent("LSTM"),
        "GRU": recurrent.recurrent("GRU"),
        "SimpleRNN": recurrent.recurrent("SimpleRNN"),
        "Bidirectional": recurrent.bidirectional,
        # What moves values.
        "Flatten": shapes.flatten,
        "Reshape": shapes.reshape,
        "Permute": shapes.permute,
        "RepeatVector": shapes.repeat_vector,
        "ZeroPadding1D": shapes.zero_padding,
        "ZeroPadding2D": shapes.zero_padding,
        "ZeroPadding3D": shapes.zero_padding,
        "Cropping1D": shapes.cropping,
        "Cropping2D": shapes.cropping,
        "Cropping3D": shapes.cropping,
        "UpSampling1D": shapes.up_sampling,
        "UpSampling2D": shapes.up_sampling,
        "UpSampling3D": shapes.up_sampling,
        "Resizing": shapes.resizing,
        # Nothing in inference.
        **dict.fromkeys(
            (
                "Identity", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "AlphaDropout",
                "GaussianDropout", "GaussianNoise", "StochasticDepth", "ActivityRegularization", "RandomBrightness",
                "RandomContrast",
                "RandomCrop", "RandomFlip", "RandomHeight", "RandomRotation", "RandomTranslation", "RandomWidth",
                "RandomZoom",
            ),
            shapes.same,
        ),
    }
)  # fmt: skip

#: Before the name of an operation, so that it is not taken for the layer of that name.
OPERATION: Final = "ops."


def key_of(layer: Keras) -> str | None:
    """The line of the table for a layer or an operation; None when there is none.

    A user's subclass counts as the layer it derives from as long as it has that layer's ``call``.
    """
    cls: Any = type(layer)
    if cls.__name__ in ("TFOpLambda", "SlicingOpLambda"):
        name = FUNCTIONS.get(str(layer.symbol))
        return None if name is None else OPERATION + name
    if cls.__module__.startswith("keras.src.ops"):
        return OPERATION + cls.__name__ if cls.__name__ in OPERATIONS else None
    for base in cls.__mro__:
        if base.__name__ in LAYERS and base.__module__.partition(".")[0] in ("keras", "tf_keras"):
            return base.__name__ if cls.call is base.call else None
    return None
