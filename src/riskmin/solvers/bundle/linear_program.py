r"""The model of a bundle with an L1-type regularizer: a linear program, warm-started in HiGHS.

.. math:: \min_{w, \xi \ge 0} \xi + \lambda \sum_j l_j |w_j| \quad\text{with}\quad \xi \ge a_t^\top w + b_t,
          \; lower \le w \le upper.

Cuts are rows. Features are columns, added by column generation once their reduced cost is negative: most
never are.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, to_numpy
from riskmin.core import Array, NDArray
from riskmin.core.deadline import check, interruptible_call
from riskmin.regularizers.base import Regularizer


class LinearProgram:
    """The linear program of the cuts so far, with its last basis."""

    INTERRUPTIBLE_ABOVE_SIZE = 2**16
    """Run HiGHS interruptibly above this number of rows times columns; smaller programs take up to 0.1 s."""
    COLUMNS_PER_PRICING = 1000
    """Largest number of columns added per pricing round and sign, most negative reduced cost first."""
    FREE_VARIABLE_RADIUS = 1e3
    """Bound on the distance of the unpenalized entries from their center."""
    HIGHS_MAX_COEFFICIENT = 9e14
    """HiGHS rejects coefficients of 1e15 and bounds of 1e20 or more: cuts are scaled to stay below."""

    # HiGHS rejects coefficients of 1e15 or more.
    max_entry = 1e12

    def __init__(self, reg: Regularizer, lam: float, dim: int, n_free: int = 0) -> None:
        """Set up the program for `dim` entries of w, of which the last `n_free` are not penalized."""
        import highspy

        terms = reg.terms(np.zeros(dim - n_free))
        sizes = dim - n_free, n_free
        l1, lower, upper = (
            np.append(np.broadcast_to(np.asarray(v, float), sizes[0]), np.full(n_free, end))
            for v, end in zip((terms[0], *terms[2:]), (1 / lam, 0.0, 0.0), strict=True)
        )
        # Columns are scaled to lam l_j w_j / unit, so that all have cost 1: HiGHS tolerances are absolute.
        self.cost, self.n_free = lam * l1, n_free
        # The size of J, known with the first cut.
        self.unit = 1.0
        # w = u - v with u, v >= 0: sign +1 is u, sign -1 is v. Bounds are those of the scaled columns.
        self.bounds = {
            +1: (self.cost * np.maximum(lower, 0.0), self.cost * np.maximum(upper, 0.0)),
            -1: (self.cost * np.maximum(-upper, 0.0), self.cost * np.maximum(-lower, 0.0)),
        }
        self.inf = highspy.kHighsInf
        self.highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        # The tolerances are absolute, and the gap cannot fall below them.
        for kind in ("primal", "dual"):
            self.highs.setOptionValue(f"{kind}_feasibility_tolerance", 1e-10)
        # A warm start needs only a few simplex steps; perturbed costs would double them.
        self.highs.setOptionValue("dual_simplex_cost_perturbation_multiplier", 0.0)
        self.highs.addCol(1.0, 0.0, self.inf, 0, np.empty(0, np.int32), np.empty(0))
        # Feature and sign of each column after the first, which is xi.
        self.features = np.empty(0, dtype=np.intp)
        self.signs = np.empty(0)
        # Factor <= 1 by which each row is scaled: still a cut, since R >= 0.
        self.row_scale = np.empty(0)
        self.in_program = {s: np.zeros(dim, dtype=bool) for s in (+1, -1)}

    def _add_first_columns(self, b: float) -> None:
        """Set the unit by the offset of the first cut, and add the columns that are in every program."""
        if 0 < abs(b) < math.inf:
            self.unit = 2.0 ** math.frexp(b)[1]
        dim = len(self.cost)
        self._add_columns(np.arange(dim - self.n_free, dim), +1, np.empty((0, dim)))
        for j in range(1, 1 + self.n_free):
            self.highs.changeColCost(j, 0.0)
        # Features that cannot be zero.
        for sign, (lower_bound, _) in self.bounds.items():
            self._add_columns(np.flatnonzero(lower_bound > 0), sign, np.empty((0, dim)))

    def set_center(self, center: NDArray) -> None:
        """Restrict the unpenalized entries to a neighborhood of `center`."""
        for j, b in enumerate(center, 1):
            lower, upper = float(b) - self.FREE_VARIABLE_RADIUS, float(b) + self.FREE_VARIABLE_RADIUS
            self.highs.changeColBounds(j, lower / self.unit, upper / self.unit)

    def add(self, A: Array, b: NDArray) -> None:
        """Add a row for the last cut."""
        a = to_numpy(A[-1])
        if not len(self.row_scale):
            self._add_first_columns(float(b[-1]))
        offset = float(b[-1]) / self.unit
        columns = np.arange(1, 1 + len(self.features), dtype=np.int32)
        largest = float(np.max(np.abs(a) / self.cost, initial=abs(offset)))
        scale = 1.0 if largest <= self.HIGHS_MAX_COEFFICIENT else self.HIGHS_MAX_COEFFICIENT / largest
        self.row_scale = np.append(self.row_scale, scale)
        # xi - a'w >= b, in the scaled columns cost_j w_j.
        row = -self.signs * (scale * a[self.features] / self.cost[self.features])
        used = np.flatnonzero(row)
        self.highs.addRow(
            scale * offset,
            self.inf,
            1 + len(used),
            np.append(np.int32(0), columns[used]).astype(np.int32),
            np.append(1.0, row[used]),
        )

    def keep(self, rows: NDArray) -> None:
        """Delete the rows of all other cuts."""
        deleted = np.setdiff1d(np.arange(self.highs.getNumRow()), rows).astype(np.int32)
        self.highs.deleteRows(len(deleted), deleted)
        self.row_scale = self.row_scale[rows]

    def solve(self, A: Array, b: NDArray, alpha: NDArray) -> tuple[NDArray, Array]:
        """Return the multipliers of the cuts and the minimizer of the model."""
        A_host = to_numpy(A)
        while True:
            self._run()
            solution = self.highs.getSolution()
            alpha = np.maximum(np.asarray(solution.row_dual), 0.0)
            # Normalized, so that the mixture is a cut despite rounding.
            alpha /= max(1.0, alpha.sum())
            alpha *= self.row_scale
            if not self._price(alpha @ A_host, A_host):
                break
        w = np.zeros(A_host.shape[1])
        # Column 0 is xi.
        values = np.asarray(solution.col_value)[1:]
        # Infinite where HiGHS failed: any point is allowed, no certificate depends on it.
        values = self.unit * np.where(np.isfinite(values), values, 0.0)
        np.add.at(w, self.features, self.signs * values / self.cost[self.features])
        return alpha, as_array_like(w, A)

    def _run(self) -> None:
        """Solve the program; a large one in a thread that can be canceled at a deadline."""
        size = self.highs.getNumRow() * self.highs.getNumCol()
        if size < self.INTERRUPTIBLE_ABOVE_SIZE:
            check()
            self.highs.run()
            return
        # From now on HiGHS checks in each of its steps whether it was canceled.
        if not self.highs.HandleUserInterrupt:
            self.highs.HandleUserInterrupt = True
        interruptible_call(math.inf, self.highs.run, cancel=self.highs.cancelSolve)

    def _price(self, a: NDArray, A: NDArray) -> bool:
        """Add the columns with negative reduced cost; return whether there were any."""
        added = False
        for sign in (+1, -1):
            # gain = -(reduced cost); columns already present, or fixed at zero, cannot enter.
            gain = -sign * a - self.cost * (1 + 1e-9)
            gain[self.in_program[sign] | (self.bounds[sign][1] <= 0)] = 0.0
            entering = np.flatnonzero(gain > 0)
            if len(entering) > self.COLUMNS_PER_PRICING:
                entering = np.sort(
                    entering[
                        np.argpartition(-gain[entering], self.COLUMNS_PER_PRICING)[: self.COLUMNS_PER_PRICING]
                    ]
                )
            self._add_columns(entering, sign, A)
            added = added or len(entering) > 0
        return added

    def _add_columns(self, features: NDArray, sign: int, A: NDArray) -> None:
        """Add the columns of some features with the given sign."""
        if not len(features):
            return
        lower, upper = self.bounds[sign]
        values = -sign * (self.row_scale * A[:, features].T / self.cost[features, None])
        row, column = np.nonzero(values)
        starts = np.searchsorted(row, np.arange(len(features))).astype(np.int32)
        self.highs.addCols(
            len(features),
            np.ones(len(features)),
            lower[features] / self.unit,
            np.minimum(upper[features] / self.unit, self.inf),
            len(row),
            starts,
            column.astype(np.int32),
            values[row, column],
        )
        self.features = np.append(self.features, features)
        self.signs = np.append(self.signs, np.full(len(features), float(sign)))
        self.in_program[sign][features] = True
