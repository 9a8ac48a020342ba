r"""The model of a bundle with an L1-type regularizer is a linear program, kept warm in HiGHS.

.. math:: \min_{w, \xi \ge 0} \xi + \lambda \sum_j l_j |w_j| \quad\text{with}\quad \xi \ge a_t^\top w + b_t,
          \; lower \le w \le upper.

Cuts come as rows, and features as columns once their reduced cost asks for them: most never do.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from riskmin.arrays import like, to_numpy
from riskmin.deadline import aside, check
from riskmin.regularizers import Separable
from riskmin.types import Array, NDArray

AT_ONCE = 1000
"""So many columns are let in at a time, the most wanted first."""
REACH = 1e3
"""How far what costs nothing may go from its centre."""
LARGE = 2**16
"""A program of fewer rows times columns takes a tenth of a second at most."""
LARGEST = 9e14
"""HiGHS refuses rows and columns with a coefficient of 1e15 or more: cuts are shrunk to less."""


class LinearProgram:
    """The linear program of the cuts so far, with its last basis."""

    most = 1e12  # HiGHS takes no larger numbers than 1e15

    def __init__(self, reg: Separable, lam: float, dim: int, free: int = 0) -> None:
        """Of so many entries of w, of which the last `free` cost nothing, and are near where `about` says."""
        import highspy

        terms = reg.terms(np.zeros(dim - free))
        many = dim - free, free
        l1, lower, upper = (
            np.append(np.broadcast_to(np.asarray(v, float), many[0]), np.full(free, end))
            for v, end in zip((terms[0], *terms[2:]), (1 / lam, 0.0, 0.0), strict=True)
        )
        # a column is lam l_j w_j, so that all cost 1: the tolerances of reduced costs are absolute
        self.cost, self.free = lam * l1, free
        # w = u - v, both >= 0
        self.bounds = {
            +1: (self.cost * np.maximum(lower, 0.0), self.cost * np.maximum(upper, 0.0)),
            -1: (self.cost * np.maximum(-upper, 0.0), self.cost * np.maximum(-lower, 0.0)),
        }
        self.inf = highspy.kHighsInf
        self.highs: Any = highspy.Highs()  # type: ignore[no-untyped-call]
        self.highs.setOptionValue("output_flag", False)
        self.highs.setOptionValue("threads", 1)
        for side in ("primal", "dual"):  # they are absolute, and the gap cannot get below them
            self.highs.setOptionValue(f"{side}_feasibility_tolerance", 1e-10)
        # from the last basis it is a few steps; perturbed costs would double them
        self.highs.setOptionValue("dual_simplex_cost_perturbation_multiplier", 0.0)
        self.highs.addCol(1.0, 0.0, self.inf, 0, np.empty(0, np.int32), np.empty(0))
        self.features = np.empty(0, dtype=np.intp)  # of the columns after the first, with their signs
        self.signs = np.empty(0)
        self.shrunk = np.empty(0)  # by how much each row is, since R >= 0 makes that a cut too
        self.inside = {s: np.zeros(dim, dtype=bool) for s in (+1, -1)}
        self._let_in(np.arange(dim - free, dim), +1, np.empty((0, dim)))
        for j in range(1, 1 + free):
            self.highs.changeColCost(j, 0.0)
        for sign, (least, _) in self.bounds.items():  # these cannot be zero
            self._let_in(np.flatnonzero(least > 0), sign, np.empty((0, dim)))

    def about(self, centre: NDArray) -> None:
        """Where the entries that cost nothing are to be, or near to it."""
        for j, b in enumerate(centre, 1):
            self.highs.changeColBounds(j, float(b) - REACH, float(b) + REACH)

    def add(self, A: Array, b: NDArray) -> None:
        """A row for the last cut."""
        a = to_numpy(A[-1])
        columns = np.arange(1, 1 + len(self.features), dtype=np.int32)
        largest = float(np.max(np.abs(a) / self.cost, initial=0.0))
        shrink = 1.0 if largest <= LARGEST else LARGEST / largest
        self.shrunk = np.append(self.shrunk, shrink)
        row = -self.signs * (shrink * a[self.features] / self.cost[self.features])
        used = np.flatnonzero(row)
        self.highs.addRow(
            shrink * float(b[-1]),
            self.inf,
            1 + len(used),
            np.append(np.int32(0), columns[used]).astype(np.int32),
            np.append(1.0, row[used]),
        )

    def keep(self, rows: NDArray) -> None:
        """Forget all other cuts."""
        gone = np.setdiff1d(np.arange(self.highs.getNumRow()), rows).astype(np.int32)
        self.highs.deleteRows(len(gone), gone)
        self.shrunk = self.shrunk[rows]

    def solve(self, A: Array, b: NDArray, alpha: NDArray) -> tuple[NDArray, Array]:
        """The multipliers of the cuts, and the minimizer of the model."""
        A_ = to_numpy(A)
        while True:
            self._run()
            found = self.highs.getSolution()
            alpha = np.maximum(np.asarray(found.row_dual), 0.0)
            alpha /= max(1.0, alpha.sum())  # so that the mixture is a cut, whatever the rounding
            alpha *= self.shrunk
            if not self._price(alpha @ A_, A_):
                break
        w = np.zeros(A_.shape[1])
        values = np.asarray(found.col_value)[1:]
        # infinite where HiGHS gave up: any point will do then, no proof rests on it
        values = np.where(np.isfinite(values), values, 0.0)
        np.add.at(w, self.features, self.signs * values / self.cost[self.features])
        return alpha, like(w, A)

    def _run(self) -> None:
        """Solve it; a large one where it can be given up, since HiGHS looks at no clock of ours."""
        size = self.highs.getNumRow() * self.highs.getNumCol()
        if size < LARGE:
            check()
            self.highs.run()
            return
        if not self.highs.HandleUserInterrupt:  # from now on it asks, at each of its steps, whether to go on
            self.highs.HandleUserInterrupt = True
        aside(math.inf, self.highs.run, cancel=self.highs.cancelSolve)

    def _price(self, a: NDArray, A: NDArray) -> bool:
        """Let in the columns that would lower the program; whether there were any."""
        some = False
        for sign in (+1, -1):
            wish = -sign * a - self.cost * (1 + 1e-9)
            wish[self.inside[sign] | (self.bounds[sign][1] <= 0)] = 0.0
            wanted = np.flatnonzero(wish > 0)
            if len(wanted) > AT_ONCE:
                wanted = np.sort(wanted[np.argpartition(-wish[wanted], AT_ONCE)[:AT_ONCE]])
            self._let_in(wanted, sign, A)
            some = some or len(wanted) > 0
        return some

    def _let_in(self, features: NDArray, sign: int, A: NDArray) -> None:
        if not len(features):
            return
        least, most = self.bounds[sign]
        values = -sign * (self.shrunk * A[:, features].T / self.cost[features, None])
        row, column = np.nonzero(values)
        starts = np.searchsorted(row, np.arange(len(features))).astype(np.int32)
        self.highs.addCols(
            len(features),
            np.ones(len(features)),
            least[features],
            np.minimum(most[features], self.inf),
            len(row),
            starts,
            column.astype(np.int32),
            values[row, column],
        )
        self.features = np.append(self.features, features)
        self.signs = np.append(self.signs, np.full(len(features), float(sign)))
        self.inside[sign][features] = True
