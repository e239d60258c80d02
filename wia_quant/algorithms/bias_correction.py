# SPDX-License-Identifier: Apache-2.0
"""Fast bias correction: rounding a product's input and weight shifts its channels' means; the bias takes it back.

For each product alone, on float inputs put on their grid: ``b += mean(w x + b) - mean(w_q x_q + b)`` over samples
and positions, by channel; both are linear, so means of the inputs are enough. Nagel et al., "Data-Free Quantization
Through Weight Equalization and Bias Correction" (2019), section 4.2, with measured instead of assumed means. All
products are corrected independently, so the order does not matter and errors are not passed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.algorithms.base import Draft, Feeds, Progress
from wia_quant.algorithms.products import Product, products, show_rows, weights_of
from wia_quant.graph import Graph, Model, Node

#: Batches looked at, and rows drawn from them for each product: the noise of their mean is a 500th of the
#: rounding's.
MAX_BATCHES: Final = 32
N_ROWS: Final = 512


def bias_correction(draft: Draft, batches: Sequence[Feeds], progress: Progress | None) -> dict[str, Any]:
    """Correct the bias of every product that has, or can have, one."""
    found, batches = products(draft), batches[:MAX_BATCHES]
    means = {p.node.name: _Means() for p in found}
    for product, rows in show_rows(draft, [(p, N_ROWS) for p in found], batches, progress, "correcting biases"):
        means[product.node.name].add(rows, product.on_grid(rows))
    grids = draft.grids()
    shifts = {
        p.node.name: means[p.node.name].shift(p, *weights_of(draft, p, grids)) for p in found if means[p.node.name].n
    }
    corrected = 0
    for product in found:
        if product.node.name in shifts:
            corrected += _add(draft.model, draft.model.main, product.node, shifts[product.node.name])
    draft.model.drop_unused()
    draft.model.infer()
    return {"products": corrected, "batches": len(batches)}


class _Means:
    """Of a product's inputs [groups, K], as they are and on their grid. The mean of a product is that of its means."""

    def __init__(self) -> None:
        self.n = 0
        self._exact: npt.NDArray[np.float64] = np.zeros(0)
        self._rounded: npt.NDArray[np.float64] = np.zeros(0)

    def add(self, exact: npt.NDArray[Any], rounded: npt.NDArray[Any]) -> None:
        sums = exact.sum(axis=1, dtype=np.float64), rounded.sum(axis=1, dtype=np.float64)
        self._exact, self._rounded = (self._exact + sums[0], self._rounded + sums[1]) if self.n else sums
        self.n += exact.shape[1]

    def shift(self, product: Product, exact: npt.NDArray[Any], rounded: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """By how much the mean of each channel is too small, from the weights [groups, outputs, K]."""
        wanted = np.matmul(exact.astype(np.float64), self._exact[..., None] / self.n)
        got = np.matmul(rounded.astype(np.float64), self._rounded[..., None] / self.n)
        shift: npt.NDArray[np.float64] = (wanted - got).reshape(-1, product.taps).sum(axis=1)
        if product.node.op_type == "ConvTranspose":
            # Each value meets every tap once, and there are ``prod(strides)`` results a value.
            shift /= prod(product.node.integers("strides") or [1])
        return shift


def _add(model: Model, graph: Graph, node: Node, shift: npt.NDArray[np.float64]) -> bool:
    """Add ``shift`` to the bias; False when there is none and none can be given."""
    if not np.isfinite(shift).all() or not shift.any():
        return False
    if node.op_type == "MatMul":
        return _add_behind(model, graph, node, shift)
    if node.input(2):
        old = model.floats(node.inputs[2])
        if old.size != shift.size:
            return False
        new = (old.reshape(-1) + shift).astype(np.float32).reshape(old.shape)
    else:
        new = shift.astype(np.float32)
    name = model.add_constant(graph, f"{node.name}/corrected", new)
    node.inputs[2:] = [name]
    model.index()
    return True


def _add_behind(model: Model, graph: Graph, node: Node, shift: npt.NDArray[np.float64]) -> bool:
    add = model.only_reader(node.outputs[0])
    if add is None or add.op_type != "Add":
        return False
    for i, value in enumerate(add.inputs):
        old = model.array(value)
        if old is not None and old.size == shift.size and old.shape[-1] == shift.size:
            new = (model.floats(value).reshape(-1) + shift).astype(np.float32).reshape(old.shape)
            add.inputs[i] = model.add_constant(graph, f"{node.name}/corrected", new)
            model.index()
            return True
    return False
