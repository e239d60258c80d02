# SPDX-License-Identifier: Apache-2.0
"""The values of a variable or tensor of either framework, on whichever backend."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def array(variable: Any) -> npt.NDArray[Any]:
    """As numpy has them."""
    if hasattr(variable, "numpy"):
        found: npt.NDArray[Any] = np.asarray(variable.numpy())
        return found
    return np.asarray(variable)
