# SPDX-License-Identifier: Apache-2.0
"""The table of layers that are opened into simpler ones: each as a functional model with the same weights.

What a trace sees, and training quantizes, are their products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from wia_quant.errors import ExportError
from wia_quant.keras.values import array

#: A layer or tensor of either Keras.
Keras = Any
Shape = tuple[int | None, ...]

#: From the framework, the layer, and what it is called with (tensors as ``None``), a model of its tensors in order.
Decompose = Callable[[Any, Keras, tuple[Any, ...], Mapping[str, Any], list[Keras], str], Keras]


def _dense(keras: Any, x: Keras, kernel: Any, bias: Any, name: str) -> Keras:
    layer = keras.layers.Dense(kernel.shape[1], use_bias=bias is not None, name=name)
    y = layer(x)
    layer.set_weights([kernel] if bias is None else [kernel, bias])
    return y


def _matmul(keras: Any, a: Keras, b: Keras) -> Keras:
    if keras.__name__ == "keras":
        return keras.ops.matmul(a, b)
    import tensorflow as tf  # what tf_keras models call outside layers

    return tf.matmul(a, b)


_ARGUMENTS: Final = ("query", "value", "key")


def multi_head_attention(
    keras: Any, layer: Keras, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: list[Keras], where: str
) -> Keras:
    """Four Dense layers, two products and a softmax; the scale of the scores is in the query's weights."""
    given = {**dict(zip(_ARGUMENTS, args, strict=False)), **kwargs}
    known = (*_ARGUMENTS, "use_causal_mask", "training")
    extra = [n for n, v in given.items() if n not in known and v is not None and v is not False]
    if extra or len(args) > len(_ARGUMENTS):
        raise ExportError(
            f"layer '{where}': a MultiHeadAttention with {', '.join(extra) or 'masks'} has no ONNX form here"
        )
    if getattr(layer, "_use_gate", False) or getattr(layer, "_sliding_window", None):
        raise ExportError(
            f"layer '{where}': a MultiHeadAttention with a gate or a sliding window has no ONNX form here"
        )
    tensors = dict(zip([n for n in _ARGUMENTS if given.get(n) is not None], inputs, strict=True))
    query, value = tensors["query"], tensors["value"]
    key = tensors.get("key", value)
    out = array(layer._output_dense.kernel)
    if len(query.shape) != 3 or len(value.shape) != 3 or out.ndim != 3:
        raise ExportError(f"layer '{where}': a MultiHeadAttention over other than one axis has no ONNX form here")
    layers, heads = keras.layers, out.shape[0]

    def project(x: Keras, dense: Keras, name: str, perm: tuple[int, int, int], scale: float = 1.0) -> Keras:
        kernel = array(dense.kernel)
        bias = None if dense.bias is None else array(dense.bias).reshape(-1) * np.float32(scale)
        flat = _dense(keras, x, kernel.reshape(kernel.shape[0], -1) * np.float32(scale), bias, name)
        split = layers.Reshape((x.shape[1] or -1, heads, kernel.shape[-1]), name=f"{name}_heads")(flat)
        return layers.Permute(perm, name=f"{name}_first")(split)

    q = project(query, layer._query_dense, "query", (2, 1, 3), 1 / math.sqrt(layer._key_dim))
    k = project(key, layer._key_dense, "key", (2, 3, 1))
    v = project(value, layer._value_dense, "value", (2, 1, 3))
    masks = {}
    if given.get("use_causal_mask"):
        if query.shape[1] is None or value.shape[1] is None:
            raise ExportError(f"layer '{where}': a causal mask needs inputs of known length")
        masks = {"mask": np.tri(query.shape[1], value.shape[1], dtype=bool)}
    probabilities = layers.Softmax(name="softmax")(_matmul(keras, q, k), **masks)
    context = _matmul(keras, probabilities, v)
    joined = layers.Reshape((query.shape[1] or -1, heads * out.shape[1]), name="joined")(
        layers.Permute((2, 1, 3), name="heads_last")(context)
    )
    bias = None if layer._output_dense.bias is None else array(layer._output_dense.bias)
    answer = _dense(keras, joined, out.reshape(-1, out.shape[-1]), bias, "attention_output")
    return keras.Model(inputs, answer)


def einsum_dense(
    keras: Any, layer: Keras, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: list[Keras], where: str
) -> Keras:
    """A Dense of the last axes, which the kernel has first."""
    (x,), kernel = inputs, array(layer.kernel)
    left, _, result = layer.equation.replace(" ", "").replace("...", "").partition("->")
    taken, _, weights = left.partition(",")
    n = next((i for i in range(1, len(weights)) if taken.endswith(weights[:i])), 0)
    kept = len(x.shape) - n
    plain = n and taken[: len(taken) - n] + weights[n:] == result and not set(weights[n:]) & set(taken)
    free = tuple(int(d) for d in kernel.shape[n:])
    bias = None if layer.bias is None else array(layer.bias)
    if not plain or kept < 1 or (bias is not None and bias.ndim > len(free)):
        raise ExportError(f"layer '{where}': an EinsumDense '{layer.equation}' has no ONNX form here")
    batch = [d if d is not None else -1 for d in x.shape[1:kept]]
    size = math.prod(kernel.shape[:n])
    if n > 1:
        x = keras.layers.Reshape((*batch, size), name="joined")(x)
    flat = None if bias is None else np.broadcast_to(bias, free).reshape(-1)
    y = _dense(keras, x, kernel.reshape(size, -1), flat, "dense")
    if len(free) > 1:
        y = keras.layers.Reshape((*batch, *free), name="split")(y)
    activation = getattr(layer.activation, "__name__", "linear")
    if activation != "linear":
        y = keras.layers.Activation(layer.activation, name="activation")(y)
    return keras.Model(inputs, y)


#: Layers that do the same to each vector of the last axis, however many axes there are.
_OF_THE_LAST_AXIS: Final = frozenset({"Dense", "Activation", "ReLU", "LeakyReLU", "ELU", "Dropout"})


def time_distributed(
    keras: Any, layer: Keras, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: list[Keras], where: str
) -> Keras:
    """A layer of the last axis, called on all steps at once."""
    inner = layer.layer
    if type(inner).__name__ not in _OF_THE_LAST_AXIS or kwargs.get("mask") is not None:
        raise ExportError(
            f"layer '{where}': a TimeDistributed {type(inner).__name__} has no ONNX form here; what acts on the last"
            f" axis has: {', '.join(sorted(_OF_THE_LAST_AXIS))}"
        )
    copy = type(inner).from_config(inner.get_config())
    y = copy(inputs[0])
    copy.set_weights(inner.get_weights())
    return keras.Model(inputs[0], y)


def attention(
    keras: Any, layer: Keras, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: list[Keras], where: str
) -> Keras:
    """The layer Attention: softmax of the products of queries and keys, times the values."""
    extra = [n for n in ("mask", "use_causal_mask", "return_attention_scores") if kwargs.get(n)]
    if extra or layer.score_mode != "dot":
        raise ExportError(
            f"layer '{where}': an Attention with {', '.join(extra) or layer.score_mode} has no ONNX form here"
        )
    query, value, *rest = inputs
    key = rest[0] if rest else value
    if layer.use_scale:
        scale = float(array(layer.scale if hasattr(layer, "scale") else layer._scale))
        query = keras.layers.Rescaling(scale, name="scaled")(query)
    turned = keras.layers.Permute((2, 1), name="key_turned")(key)
    probabilities = keras.layers.Softmax(name="softmax")(_matmul(keras, query, turned))
    return keras.Model(inputs, _matmul(keras, probabilities, value))


#: Class of a layer -> what opens it.
DECOMPOSE: Final[Mapping[str, Decompose]] = MappingProxyType(
    {
        "MultiHeadAttention": multi_head_attention,
        "Attention": attention,
        "EinsumDense": einsum_dense,
        "TimeDistributed": time_distributed,
    }
)
