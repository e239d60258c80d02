# SPDX-License-Identifier: Apache-2.0
"""Weights rounded one after the other, each making good in those still to come what rounding it did to the result.

A weight's nearest level is not the best one: inputs are correlated, so the error of one weight can be taken back by
its neighbours. With H the covariance of a product's inputs, the columns of the weight are rounded in their order and
what is left is moved so that ``(w - w_q) H (w - w_q)`` stays least: Frantar et al., "GPTQ" (2022), with its Cholesky
form. The covariance is centred because the mean is the bias correction's; it is shrunk towards its diagonal
by ``K / (K + n)``, so that few rows (a classifier sees one a picture) leave the weights at their nearest levels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wia_quant.algorithms.base import Draft, Feeds, Progress
from wia_quant.algorithms.products import Matrices, Product, products, show_rows
from wia_quant.grids import Grids, Rounded, uses_of_weights

#: Batches looked at.
MAX_BATCHES: Final = 16

#: Rows drawn for each input of the product, and at least.
ROWS_PER_INPUT: Final = 4
LEAST_ROWS: Final = 512

#: Products of more inputs keep the nearest levels: the time grows with the cube.
MAX_INPUTS: Final = 2048

#: Bytes of covariances held at a time; more are measured in a further pass over the batches.
MAX_BYTES: Final = 64 << 20

#: Added to the variance of every input, as a share of their mean: inputs that never change have none.
DAMPING: Final = 1e-3

#: Columns whose errors reach those behind them in one matrix product.
BLOCK: Final = 64


def weight_rounding(draft: Draft, batches: Sequence[Feeds], progress: Progress | None) -> dict[str, Any]:
    """Choose the levels of every weight that one product uses; their scales stay."""
    shared = {key for key, uses in uses_of_weights(draft.plan).items() if len(uses) > 1}
    found = [p for p in products(draft) if (p.use.tensor, p.use.axis) not in shared]
    fit = [p for p in found if _n_inputs(p) <= MAX_INPUTS]
    grids = draft.grids()
    batches = batches[:MAX_BATCHES]
    rounded = 0
    for some in _passes(fit):
        seen = {p.node.name: _Covariance() for p in some}
        needed = [(p, max(LEAST_ROWS, ROWS_PER_INPUT * _n_inputs(p))) for p in some]
        for product, rows in show_rows(draft, needed, batches, progress, "rounding weights"):
            seen[product.node.name].add(product.on_grid(rows))
        for product in some:
            rounded += _round(draft, grids, product, seen.pop(product.node.name))
    return {"products": rounded, "too_wide": len(found) - len(fit)}


def _n_inputs(product: Product) -> int:
    per_group = product.shape[0] // product.groups if product.node.op_type == "ConvTranspose" else None
    return per_group or int(np.prod(product.shape)) // _n_outputs(product)


def _n_outputs(product: Product) -> int:
    axis = 0 if product.node.op_type == "Conv" or product.node.integer("transB", 0) else -1
    return product.shape[axis]


def _passes(found: Sequence[Product]) -> Iterator[list[Product]]:
    """The products in order, in runs whose covariances fit into MAX_BYTES."""
    some: list[Product] = []
    held = 0
    for product in found:
        size = 4 * product.groups * _n_inputs(product) ** 2
        if some and held + size > MAX_BYTES:
            yield some
            some, held = [], 0
        some.append(product)
        held += size
    if some:
        yield some


class _Covariance:
    """Of rows [groups, n, K]."""

    def __init__(self) -> None:
        self.n = 0
        self._squares: Matrices = np.zeros(0, dtype=np.float32)
        self._sums: npt.NDArray[np.float64] = np.zeros(0)

    def add(self, rows: Matrices) -> None:
        squares, sums = np.matmul(rows.transpose(0, 2, 1), rows), rows.sum(axis=1, dtype=np.float64)
        self._squares = self._squares + squares if self.n else squares
        self._sums = self._sums + sums if self.n else sums
        self.n += rows.shape[1]

    def shrunk(self) -> npt.NDArray[np.float64]:
        """[groups, K, K], positive definite."""
        mean = self._sums / self.n
        found: npt.NDArray[np.float64] = self._squares.astype(np.float64) / self.n
        found -= mean[:, :, None] * mean[:, None, :]
        n_inputs = found.shape[-1]
        diagonal = np.arange(n_inputs)
        variances = np.maximum(found[:, diagonal, diagonal], 0.0)
        found *= self.n / (n_inputs + self.n)
        found[:, diagonal, diagonal] = variances + DAMPING * variances.mean(axis=1, keepdims=True) + _TINY
        return found


_TINY: Final = 1e-12


def _round(draft: Draft, grids: Grids, product: Product, covariance: _Covariance) -> bool:
    """Put the chosen levels into the draft; False when nothing was seen or the numbers do not allow it."""
    if covariance.n == 0:
        return False
    use = product.use
    w = draft.model.floats(use.tensor)
    scale = grids.weights[(use.tensor, use.axis)]
    spread = product.matrices(grids.spread_scale(w.shape, use)).astype(np.float64)
    middle = use.qtype.middle
    bounds = use.qtype.qmin - middle, use.qtype.qmax - middle
    try:
        levels = _levels(product.matrices(w).astype(np.float64), spread, covariance.shrunk(), bounds) + middle
    except np.linalg.LinAlgError:
        return False
    draft.rounded[(use.tensor, use.axis)] = Rounded(product.stored(levels).astype(use.qtype.dtype), scale)
    return True


def _levels(
    w: npt.NDArray[np.float64],
    scale: npt.NDArray[np.float64],
    covariance: npt.NDArray[np.float64],
    bounds: tuple[int, int],
) -> npt.NDArray[np.float64]:
    """Levels of ``w`` [groups, outputs, K], its scales of the same shape, inputs' covariance [groups, K, K].

    With covariance = R R^T, R upper triangular, the error of the result is |(w - w_q) R|^2. Its column j has no part of
    later weights, so w_q[j] is chosen to bring it nearest to 0.
    """
    upper = np.linalg.cholesky(covariance[:, ::-1, ::-1])[:, ::-1, ::-1]
    diagonal = np.arange(w.shape[-1])
    pull = np.ascontiguousarray(upper / upper[:, None, diagonal, diagonal])
    errors, levels = np.zeros_like(w), np.zeros_like(w)
    for start in range(0, w.shape[-1], BLOCK):
        end = min(start + BLOCK, w.shape[-1])
        wanted = w[..., start:end] + np.matmul(errors[..., :start], pull[:, :start, start:end])
        for i in range(start, end):
            before = np.matmul(errors[..., start:i], pull[:, start:i, i, None])[..., 0]
            level = np.clip(np.rint((wanted[..., i - start] + before) / scale[..., i]), *bounds)
            levels[..., i] = level
            errors[..., i] = w[..., i] - level * scale[..., i]
    return levels
