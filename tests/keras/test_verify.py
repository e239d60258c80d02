# SPDX-License-Identifier: Apache-2.0
"""``export(verify=...)`` of models with several inputs, in both Kerases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wia_quant.keras as wq
from tests.keras.models import FRAMEWORKS, framework, randomize
from wia_quant.errors import UsageError

DATA = {
    "image": np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32),
    "meta": np.random.default_rng(1).standard_normal((16, 4)).astype(np.float32),
}


def of_two(name: str, by_name: bool) -> Any:
    keras = framework(name)
    i, j = keras.Input((8,), name="image"), keras.Input((4,), name="meta")
    k = keras.layers
    y = k.Dense(3, name="y")(k.Concatenate()([k.Dense(8, activation="relu")(i), k.Dense(8)(j)]))
    model = wq.quantize_model(randomize(keras.Model({"image": i, "meta": j} if by_name else [i, j], y)))
    return wq.observe(model, [DATA if by_name else list(DATA.values())])


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("by_name", [True, False])
def test_verify_takes_a_dict_by_input_name(name: str, by_name: bool) -> None:
    model = of_two(name, by_name)
    turned = dict(reversed(DATA.items()))
    for given in (DATA, turned, list(DATA.values()), tuple(DATA.values())):
        ((largest, _),) = wq.export(model, verify=given).differences.values()
        assert largest < 1e-5
    with pytest.raises(UsageError, match="verify: the model has no input picture and needs image; its inputs are"):
        wq.export(model, verify={"picture": DATA["image"], "meta": DATA["meta"]})
    with pytest.raises(UsageError, match="verify: the model needs meta; its inputs are image, meta"):
        wq.export(model, verify={"image": DATA["image"]})
    with pytest.raises(UsageError, match="verify: 1 arrays for 2 inputs: image, meta"):
        wq.export(model, verify=DATA["image"])
