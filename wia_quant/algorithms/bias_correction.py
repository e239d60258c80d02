# SPDX-License-Identifier: Apache-2.0
"""Fast bias correction: rounding a product's input and weight shifts its channels' means; the bias takes it back.

For each product alone, on float inputs put on their grid: ``b += mean(w x + b) - mean(w_q x_q + b)`` over samples
and positions, by channel. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction"
(2019), section 4.2, with measured instead of assumed means. All products are corrected independently, so the order
does not matter and errors are not passed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from wia_quant.algorithms.base import Draft, Feeds, Progress
from wia_quant.algorithms.local import Twin, products, run_beside
from wia_quant.calibrators.base import State
from wia_quant.graph import Graph, Model, Node
from wia_quant.policy import WeightPlan


def bias_correction(draft: Draft, batches: Sequence[Feeds], progress: Progress | None) -> dict[str, Any]:
    """Correct the bias of every product that has, or can have, one."""
    shifts: dict[str, str] = {}

    def differences(twin: Twin, node: Node, use: WeightPlan) -> list[str]:
        twin.add(node, use)
        name = twin.by_channel(node, twin.emit("Sub", [twin.exact, twin.rounded], f"{node.name}/difference"))
        shifts[node.name] = name
        return [name]

    def named(done: int, total: int | None, what: str) -> None:
        if progress:
            progress(done, total, "correcting biases")

    means = run_beside(draft, batches, differences, ChannelMean, named)
    corrected = 0
    owners = {node.name: graph for graph, node in draft.model.nodes()}
    for node, _ in products(draft):
        observed = means.get(shifts[node.name])
        if not isinstance(observed, ChannelMean) or observed.n_values == 0:
            continue
        corrected += _add(draft.model, owners[node.name], node, observed.mean())
    draft.model.drop_unused()
    draft.model.infer()
    return {"products": corrected, "batches": len(batches)}


class ChannelMean:
    """The mean of each channel along axis 1, over everything else and all batches."""

    def __init__(self) -> None:
        self.n_values = 0
        self._total: npt.NDArray[np.float64] = np.zeros(0)
        self._count = 0

    def observe(self, x: npt.NDArray[Any]) -> None:
        if x.size == 0:
            return
        self.n_values += x.size
        total = x.sum(axis=tuple(i for i in range(x.ndim) if i != 1), dtype=np.float64)
        self._total = total + (self._total if self._total.size else 0.0)
        self._count += x.size // x.shape[1]

    def mean(self) -> npt.NDArray[np.float64]:
        """[channels]; empty until a value was observed."""
        return self._total / max(1, self._count)

    def merge(self, other: Self) -> None:
        raise NotImplementedError("means are taken in one process")

    def state(self) -> State:
        raise NotImplementedError("means are not stored")

    @classmethod
    def from_state(cls, state: State) -> Self:
        raise NotImplementedError("means are not stored")


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
