r"""Dual block ascent for the soft margin of many classes with intercepts, and with weights of features.

A step of the proximal point method holds the intercepts near a centre, by
:math:`\tfrac\lambda{2 s^2} |b - b_0|^2`. That is a column of s more in X, and costs that are shifted,
:math:`\Delta_{yj} + b_{0j} - b_{0y}`: dual block ascent without intercepts does the rest. Then the centre
moves to where they are, and what holds them fades. Weights of features are none where these are divided by
their roots.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp

from riskmin.executors import Serial
from riskmin.intercepts import WithIntercepts
from riskmin.matrices import Csr, as_matrix, as_scipy
from riskmin.objective import Objective
from riskmin.regularizers import L2, penalized
from riskmin.risk import Risk
from riskmin.scorers import Multiclass
from riskmin.solvers.cuts import mix_two
from riskmin.solvers.dual_multiclass import BlockAscent, squared_norms
from riskmin.solvers.passes import mean_square, rows_together
from riskmin.solvers.states import checked
from riskmin.solvers.weights import of_features, scaled
from riskmin.types import Array, Cut, Iterate, NDArray, Shard

SCALE = 0.6
"""The column of the intercepts, by the root mean square of the lengths of rows."""
SHARE = 0.6
"""The centre moves when what is left of its own gap is this part of the whole one."""
STILL = 1e-12
"""A move by less, beside the centre and 1, is rounding."""


class Weighted:
    """A run with features divided by the roots of their weights, under an L2 that has none."""

    def __init__(self, solver: Any, obj: Objective) -> None:
        self.obj, risk = obj, obj.risk
        assert isinstance(risk, Risk)
        shard: Any = risk.rows
        self.k, self.roots = risk.scorer.columns, np.sqrt(of_features(obj.reg, risk.scorer.columns))
        self.each = np.repeat(self.roots, self.k) if np.ndim(self.roots) else self.roots
        X = rows_together(shard)
        rows = self._rows(X if penalized(obj.reg).plain else as_matrix(scaled(X, self.roots)), shard)
        dim = self.k * rows.X.shape[1]
        inner = Risk(risk.loss, Multiclass(self.k), Serial([rows]), dim, rows)
        self.inner = Objective(inner, L2(), obj.lam, obj.count)
        self.block = BlockAscent.of(solver, self.inner)

    def _rows(self, X: Any, shard: Shard) -> Shard:
        """The rows as they are visited."""
        return Shard(X, shard.y, shard.c, {})

    def started(self, w0: Array, beta: NDArray | None = None) -> Iterator[Iterate]:
        """From w0, and the multipliers of a run of before, if there was one."""
        return self._run(self.block.started(self.each * w0, beta), None)

    def restored(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """From a saved state."""
        checked(state, {"best": "d", "w": "d"}, d=self.obj.risk.dim)
        return self._run(self.block.restored(state | {"w": state["best"]}), None)

    def _run(self, steps: Iterator[Iterate], best: Cut | None) -> Iterator[Iterate]:
        for it in steps:
            w, cut, inner = it.w / self.each, Cut(it.cut.a * self.each, it.cut.b), it.state
            assert inner is not None
            found = inner() | {"w": w, "best": it.w}
            yield Iterate(w, it.value, cut, it.info, found.copy)


class Centres(Weighted):
    """A run: dual block ascent with one more column, and the centre of the intercepts."""

    def __init__(self, solver: Any, obj: Objective) -> None:
        assert isinstance(obj.risk, WithIntercepts)
        self.risk = obj.risk
        super().__init__(solver, obj)
        shard: Any = obj.risk.rows
        self.centre = np.zeros(self.k)
        self.empty = np.bincount(shard.y.astype(np.intp), shard.c, self.k) == 0

    def _rows(self, X: Any, shard: Shard) -> Shard:
        self.s = SCALE * mean_square(shard, of_features(self.obj.reg, self.k)) ** 0.5
        return Shard(as_matrix(_widened(X, self.s)), shard.y, shard.c, {})

    def move(self, shift: NDArray) -> None:
        """Move the centre; scores and best point stay where they are, all rows are looked at again."""
        block, k = self.block, self.k
        self.centre = self.centre + shift
        block.cost[:, :k] += shift - shift[:, None]
        block.best.w = np.append(block.best.w[:-k], block.best.w[-k:] - shift / self.s)
        block.best.z = block.best.z - shift
        block.active, block.order[:], block.since = len(block.rows), block.rows, block.visits
        # multipliers that are best for one centre are not for another, unless it is the same but for rounding
        block.moved |= bool(np.abs(shift).max() > STILL * (1.0 + np.abs(self.centre).max()))

    def started(self, w0: Array, beta: NDArray | None = None) -> Iterator[Iterate]:
        """From w0, and the multipliers of a run of before, if there was one."""
        self.move(w0[-self.k :])
        inside = np.append(self.each * w0[: -self.k], np.zeros(self.k))
        return self._run(self.block.started(inside, beta), None)

    def restored(self, state: dict[str, Array]) -> Iterator[Iterate]:
        """From a saved state."""
        shapes = {"best": "d", "w": "d", "centre": "k", "since": "1", "cut": "e"}
        checked(state, shapes, d=self.obj.risk.dim, k=self.k, e=self.obj.risk.dim + 1)
        self.centre = state["centre"]
        self.block.cost[:, : self.k] += self.centre - self.centre[:, None]
        self.block.since = float(state["since"][0])
        cut = Cut(state["cut"][:-1], float(state["cut"][-1]))
        return self._run(self.block.restored(state | {"w": state["best"]}), cut)

    def _run(self, steps: Iterator[Iterate], best: Cut | None) -> Iterator[Iterate]:
        obj, inner, k = self.obj, self.inner, self.k
        for it in steps:
            v = it.w[-k:]
            value = it.value - obj.lam * 0.5 * float(v @ v)
            best, _ = mix_two(best, self.risk.balanced(self._cut(it.cut)), obj)
            w = np.append(it.w[:-k] / self.each, self.centre + self.s * v)
            yield Iterate(w, value, best, it.info, self._state(it, w, best))
            if it.value - inner.lower(it.cut) <= SHARE * (value - obj.lower(best)):
                self.move(self.s * v - self._fall(it.cut))

    def _fall(self, cut: Cut) -> NDArray:
        """How much lower the centre goes where no row of a class has weight, and others still pull.

        No other slope makes up for theirs, so that each, however small, would leave nothing of the cut.
        """
        return np.where(self.empty & (cut.a[-self.k :] > 0), 1.0 + np.abs(self.centre), 0.0)

    def _cut(self, cut: Cut) -> Cut:
        """The cut of the risk with intercepts that the multipliers are."""
        slopes = cut.a[-self.k :] / self.s
        return Cut(np.append(cut.a[: -self.k] * self.each, slopes), cut.b - float(slopes @ self.centre))

    def _state(self, it: Iterate, w: NDArray, best: Cut) -> Any:
        centre, since, inner = self.centre, np.array([self.block.since]), it.state
        assert inner is not None
        return lambda: (
            inner()
            | {"w": w, "best": it.w, "centre": centre, "since": since, "cut": np.append(best.a, best.b)}
        )


def mean_length(shard: Shard) -> float:
    """The root of the mean square of the lengths of rows; 1 where all are empty.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Shard, as_matrix
    >>> rows = Shard(as_matrix(np.array([[3.0], [4.0]])), np.zeros(2), np.full(2, 0.5), {})
    >>> round(mean_length(rows) ** 2, 6)
    12.5
    """
    X = rows_together(shard)
    return float(np.sqrt(shard.c @ squared_norms(shard, X))) or 1.0


def _widened(X: Any, s: float) -> Any:
    """X with a column of s more."""
    if isinstance(X, Csr):
        parts: Any = [as_scipy(X), sp.csr_array(np.full((X.shape[0], 1), s, dtype=X.data.dtype))]
        return sp.hstack(parts, format="csr")
    return np.hstack([X.X, np.full((X.shape[0], 1), s, dtype=X.X.dtype)])
