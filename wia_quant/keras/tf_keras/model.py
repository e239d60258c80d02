# SPDX-License-Identifier: Apache-2.0
"""tf_keras models that train as tensorflow-model-optimization made them and evaluate as their file does in libwia."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final

import tensorflow as tf
import tf_keras
from tensorflow_model_optimization.python.core.keras.utils import smart_cond
from tf_keras.src.engine.functional import Functional

from wia_quant.errors import WiaError
from wia_quant.keras import observing
from wia_quant.keras.tf_keras.evaluation import Evaluation
from wia_quant.keras.tf_keras.layers import settle
from wia_quant.keras.tf_keras.quantizers import WiaActivationQuantizer
from wia_quant.keras.trace import Keras
from wia_quant.keras.wrappers import UNWRAP

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Link:
    """An evaluation, None where there can be none, and the outputs for which it was made: a Sequential can grow."""

    outputs: Any
    evaluation: Evaluation | None


class _Exact:
    """``call`` in evaluation is that of the file, as soon as every quantizer saw data."""

    _link: _Link | None = None

    def _called(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        def trained() -> Any:
            return super(_Exact, self).call(inputs, training=training, mask=mask)  # type: ignore[misc]

        if training is None:
            training = tf_keras.backend.learning_phase()
        if observing.share is not None:
            return trained()
        return smart_cond(training, trained, lambda: self._evaluated(inputs, trained))

    call: Any = tf.autograph.experimental.do_not_convert(_called)

    def _evaluated(self, inputs: Any, trained: Any) -> Any:
        evaluation = self._linked()
        if evaluation is None:
            return trained()

        given = self._flatten_to_reference_inputs(inputs)  # type: ignore[attr-defined]
        tensors = [
            self._conform_to_reference_input(x, ref_input=r)  # type: ignore[attr-defined]
            for x, r in zip(given, self.inputs, strict=True)  # type: ignore[attr-defined]
        ]
        found = evaluation(tensors, lambda: tf.nest.flatten(trained()))
        return tf.nest.pack_sequence_as(self._nested_outputs, found)  # type: ignore[attr-defined]

    def _linked(self) -> Evaluation | None:
        if self._link is None or self._link.outputs is not self.outputs:  # type: ignore[attr-defined]
            try:
                found = Evaluation(self)
            except WiaError as error:
                name = self.name  # type: ignore[attr-defined]
                _log.warning("model '%s' evaluates as it trains, not as a file of it would: %s", name, error)
                found = None
            # Past Keras, which would save what it holds.
            object.__setattr__(self, "_link", _Link(self.outputs, found))  # type: ignore[attr-defined]
        assert self._link is not None
        return self._link.evaluation


class QuantizedModel(_Exact, Functional):
    """A functional model."""


class QuantizedSequential(_Exact, tf_keras.Sequential):
    """A sequential model."""


#: What a model becomes.
_CLASSES: Final = {Functional: QuantizedModel, tf_keras.Sequential: QuantizedSequential}

#: What a saved model mentions.
MODELS: Final = {cls.__name__: cls for cls in _CLASSES.values()}


def is_ours(model: Keras) -> bool:
    """Whether it was quantized with ``WiaQuantizeScheme``."""
    return any(
        isinstance(quantizer, WiaActivationQuantizer)
        for layer in model._flatten_layers()
        for quantizer in (getattr(layer, "quantizer", None), *(getattr(layer, "_output_quantizers", None) or ()))
    )


def linked(model: Keras) -> Keras:
    """The same model, evaluating as its file does; so do those inside it."""
    for part in model._flatten_layers():
        if type(part) in _CLASSES and any(type(layer).__name__ in UNWRAP for layer in part.layers):
            part.__class__ = _CLASSES[type(part)]
    settle(model)
    for cached in ("train_function", "test_function", "predict_function"):
        setattr(model, cached, None)
    return model
