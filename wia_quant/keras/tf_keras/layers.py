# SPDX-License-Identifier: Apache-2.0
"""tfmot's layers whose weights are the same ones in the same order, whatever is frozen, and however often built."""

from __future__ import annotations

from typing import Any, Final

from tensorflow_model_optimization.python.core.quantization.keras import quantize_layer, quantize_wrapper

from wia_quant.keras.trace import Keras


class _BuiltOnce:
    """tfmot's layers do not say that they are built; when a .keras file is loaded they are built twice."""

    built: bool

    def build(self, input_shape: Any) -> None:
        if self.built:
            return
        inner = getattr(self, "layer", None)
        if inner is not None and not inner.built:  # as when the model was made: its weights are listed in that order
            inner.build(input_shape)
            inner.built = True
        super().build(input_shape)  # type: ignore[misc]
        self.built = True
        if isinstance(self, quantize_wrapper.QuantizeWrapperV2):
            _list_frozen(self)


class _Freezes:
    """tfmot's wrappers go on to train weights that are frozen, and then list them twice."""

    trainable: bool

    @property
    def trainable_weights(self) -> list[Any]:
        return super().trainable_weights if self.trainable else []  # type: ignore[misc]

    @property
    def non_trainable_weights(self) -> list[Any]:
        found: list[Any] = super().non_trainable_weights  # type: ignore[misc]
        if not self.trainable:
            trained = super().trainable_weights  # type: ignore[misc]
            found = self._dedup_weights([*trained, *found])  # type: ignore[attr-defined]
        return found


def _list_frozen(wrapper: Keras) -> None:
    """What a wrapper holds of a layer that was frozen when it was built: as of one that was not."""
    if wrapper.layer.trainable:
        return
    given = [variable for variable, _, _ in wrapper._weight_vars]
    others = [variable for layer in wrapper.layer._flatten_layers() for variable in layer._trainable_weights]
    wrapper._trainable_weights[:] = [*wrapper._dedup_weights([*given, *others]), *given]


_WRAPPERS: Final = {
    cls: type(cls.__name__, (_BuiltOnce, _Freezes, cls), {})
    for cls in (quantize_wrapper.QuantizeWrapper, quantize_wrapper.QuantizeWrapperV2)
}

#: What a saved model mentions.
LAYERS: Final = {
    **{cls.__name__: ours for cls, ours in _WRAPPERS.items()},
    "QuantizeLayer": type("QuantizeLayer", (_BuiltOnce, quantize_layer.QuantizeLayer), {}),
}


def settle(model: Keras) -> Keras:
    """The same model, its wrappers ours."""
    for layer in model._flatten_layers():
        if type(layer) in _WRAPPERS:
            if type(layer) is quantize_wrapper.QuantizeWrapperV2 and layer.built:
                _list_frozen(layer)
            layer.__class__ = _WRAPPERS[type(layer)]
            layer.built = hasattr(layer, "_weight_vars")
    return model
