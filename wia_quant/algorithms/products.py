# SPDX-License-Identifier: Apache-2.0
"""Products with constant weights as matrices: rows [groups, n, K] times a weight [groups, outputs, K].

Rows are what meets the weights at one place of the result: a patch for Conv, a value's channels for ConvTranspose, a
row for Gemm and MatMul. A few thousand of them, drawn from many batches, tell what rounding does to the result, and
cost a hundredth of running the product again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.affine import QParams
from wia_quant.algorithms.base import Draft, Feeds, Progress
from wia_quant.graph import Node
from wia_quant.grids import Grids
from wia_quant.observe import Instrumented
from wia_quant.policy import WeightPlan

Matrices = npt.NDArray[np.float32]

#: Spatial axes begin here in an activation and in a weight.
_SPATIAL: Final = 2


@dataclass(frozen=True, eq=False)
class Product:
    """One product of the main graph whose weight becomes integers.

    Attributes:
        node: Conv, ConvTranspose, Gemm or MatMul.
        use: its weight.
        shape: of the weight as the model stores it.
        grid: of its input; None where that stays float.
    """

    node: Node
    use: WeightPlan
    shape: tuple[int, ...]
    grid: QParams | None

    @property
    def groups(self) -> int:
        """1 but for convolutions."""
        return self.node.integer("group", 1) if len(self.shape) > _SPATIAL else 1

    @property
    def taps(self) -> int:
        """Results that one row of a ConvTranspose has a part in, a channel; 1 otherwise."""
        return prod(self.shape[_SPATIAL:]) if self.node.op_type == "ConvTranspose" else 1

    def matrices(self, w: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """A weight as [groups, outputs, K]; those of a ConvTranspose are [channels * taps]."""
        g = self.groups
        if self.node.op_type == "Conv":
            return w.reshape(g, w.shape[0] // g, -1)
        if self.node.op_type == "ConvTranspose":
            return w.reshape(g, w.shape[0] // g, -1).transpose(0, 2, 1)
        return w[None] if self._columns_last else w.T[None]

    def stored(self, matrices: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The inverse of ``matrices``."""
        if self.node.op_type == "ConvTranspose":
            return matrices.transpose(0, 2, 1).reshape(self.shape)
        if len(self.shape) > _SPATIAL or self._columns_last:
            return matrices.reshape(self.shape)
        return np.ascontiguousarray(matrices[0].T)

    @property
    def _columns_last(self) -> bool:
        return bool(self.node.op_type == "Gemm" and self.node.integer("transB", 0))

    def rows(self, x: npt.NDArray[Any], n: int, seed: int) -> Matrices:
        """``n`` rows of ``x`` [groups, n, K], drawn with ``seed``; all of them when there are no more."""
        if self.node.op_type == "Conv":
            return self._patches(x, n, seed)
        if self.node.op_type == "ConvTranspose":
            flat = np.moveaxis(x, 1, -1).reshape(-1, x.shape[1])
        else:
            flat = x.reshape(-1, x.shape[-1])
        chosen = flat[_drawn(len(flat), n, seed)].astype(np.float32)
        return np.ascontiguousarray(chosen.reshape(len(chosen), self.groups, -1).transpose(1, 0, 2))

    def on_grid(self, rows: Matrices, grid: QParams | None = None) -> Matrices:
        """What the integers make of rows."""
        grid = grid or self.grid
        if grid is None:
            return rows
        # fake_quantize in place; rows are finite, or calibration would have failed.
        zero_point = np.float32(grid.zero_point)
        levels = np.rint(np.divide(rows, grid.scale))
        np.clip(levels, grid.qtype.qmin - zero_point, grid.qtype.qmax - zero_point, out=levels)
        return np.multiply(levels, grid.scale, out=levels)

    def _patches(self, x: npt.NDArray[Any], n: int, seed: int) -> Matrices:
        kernel, sizes = self.shape[_SPATIAL:], x.shape[_SPATIAL:]
        strides, dilations, before, places = _window(self.node, kernel, sizes)
        at = np.unravel_index(_drawn(x.shape[0] * prod(places), n, seed), (x.shape[0], *places))
        rank, n = len(kernel), len(at[0])
        index: list[npt.NDArray[np.int64]] = [at[0].reshape(-1, *[1] * rank)]
        inside = np.ones([1] * (rank + 1), dtype=bool)
        for axis in range(rank):
            places_read = at[axis + 1][:, None] * strides[axis] - before[axis]
            places_read = places_read + np.arange(kernel[axis]) * dilations[axis]
            shape = [n, *(kernel[axis] if i == axis else 1 for i in range(rank))]
            inside = inside & ((places_read >= 0) & (places_read < sizes[axis])).reshape(shape)
            index.append(np.clip(places_read, 0, sizes[axis] - 1).reshape(shape))
        found = np.moveaxis(x, 1, -1)[tuple(index)]  # [n, *kernel, channels]
        if not inside.all():
            found *= inside[..., None]
        rows = np.moveaxis(found, -1, 1).reshape(n, self.groups, -1).transpose(1, 0, 2)
        return np.ascontiguousarray(rows, dtype=np.float32)


def products(draft: Draft) -> list[Product]:
    """The products that will work on integers with a constant matrix or kernel, in the main graph."""
    uses = {(w.node, w.index): w for w in draft.plan.weights}
    quantized = {d.node for d in draft.plan.decisions if d.quantized}
    grids, plan = draft.grids(), draft.plan
    found = []
    for node in draft.model.main.nodes:
        use = uses.get((node.name, 1))
        if node.name not in quantized or use is None or node.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
            continue
        shape = draft.model.floats(use.tensor).shape
        if node.op_type == "MatMul" and len(shape) != _SPATIAL:
            continue  # a stack of matrices
        value = node.inputs[0]
        grid = grids.of(plan, value) if value in plan.activations else None
        found.append(Product(node, use, shape, grid))
    return found


def weights_of(draft: Draft, product: Product, grids: Grids) -> tuple[Matrices, Matrices]:
    """A product's weight as it is and as its levels say, both [groups, outputs, K]."""
    w = draft.model.floats(product.use.tensor)
    return product.matrices(w), product.matrices(grids.rounded_weight(w, product.use))


def show_rows(
    draft: Draft,
    chosen: Sequence[tuple[Product, int]],
    batches: Sequence[Feeds],
    progress: Progress | None,
    what: str,
) -> Iterator[tuple[Product, Matrices]]:
    """Run the float model on the batches and give each product's rows.

    Args:
        draft: of it the float model is run.
        chosen: products, each with how many rows it needs of all batches together.
        batches: drawn from evenly.
        progress: called as ``progress(batches done, of how many, what)``.
        what: for ``progress``.
    """
    readers: dict[str, list[tuple[Product, int]]] = {}
    for product, n in chosen:
        readers.setdefault(product.node.inputs[0], []).append((product, -(-n // max(1, len(batches)))))
    if not readers:
        return
    with Instrumented(draft.model.to_proto(), list(readers)) as instrumented:
        for done, batch in enumerate(batches):
            for name, value in instrumented.run(batch):
                if value.size:
                    for product, n in readers[name]:
                        yield product, product.rows(value, n, seed=done)
            if progress:
                progress(done + 1, len(batches), what)


def _drawn(n_all: int, n: int, seed: int) -> npt.NDArray[np.int64]:
    if n >= n_all:
        return np.arange(n_all)
    return np.sort(np.random.default_rng(seed).integers(n_all, size=n))


def _window(
    node: Node, kernel: Sequence[int], sizes: Sequence[int]
) -> tuple[list[int], list[int], list[int], list[int]]:
    """Strides, dilations, padding before and number of places along each spatial axis of a Conv."""
    rank = len(kernel)
    strides, dilations = node.integers("strides") or [1] * rank, node.integers("dilations") or [1] * rank
    pads = node.integers("pads") or [0] * (2 * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = node.attribute("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        places = [-(-size // s) for size, s in zip(sizes, strides, strict=True)]
        all_pads = [max(0, (o - 1) * s + k - i) for o, s, k, i in zip(places, strides, spans, sizes, strict=True)]
        return strides, dilations, [p // 2 if auto == "SAME_UPPER" else p - p // 2 for p in all_pads], places
    if auto == "VALID":
        pads = [0] * (2 * rank)
    places = [(sizes[i] + pads[i] + pads[rank + i] - spans[i]) // strides[i] + 1 for i in range(rank)]
    return strides, dilations, pads[:rank], places
