# SPDX-License-Identifier: Apache-2.0
"""Every error a user can meet: what is wrong, where (file, node, tensor), and what to do."""


class WiaError(Exception):
    """A mistake the user can correct; the CLI prints it as one line and exits with ``exit_code``."""

    exit_code = 1


class UsageError(WiaError):
    """The call itself is off: an unknown name, options that exclude each other."""

    exit_code = 2


class ModelError(WiaError):
    """A model file that cannot be read, is not valid, or holds what we cannot take."""


class DataError(WiaError):
    """Calibration or evaluation data that is missing, broken, or does not fit the model."""


class CalibrationError(WiaError):
    """Statistics that cannot give a range: no data, NaN, infinity."""


class PolicyError(WiaError):
    """A plan that cannot be made: a rule that matches nothing, a target that is not understood."""


class TableError(WiaError):
    """A calibration table that cannot be read or does not belong to this model."""


class ExportError(WiaError):
    """A model that cannot be written in the wia-quantized ONNX format."""


class RuntimeFault(WiaError):
    """libwia refused a model or an input."""


class UnsupportedError(RuntimeFault):
    """libwia lacks an operator or a form of it that the model needs; the message lists all of them."""


class MissingExtraError(WiaError, ImportError):
    """An optional package is not installed; the message names the extra that brings it."""
