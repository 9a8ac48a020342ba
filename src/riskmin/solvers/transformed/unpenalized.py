r"""Newton's method for risks without a penalty, with a proof by self-concordance.

A loss with :math:`|l'''| \le M\, l''` (Bach 2010) has, at every point w, the global lower bound

.. math:: \min R \ge R(w) - \frac{u + (1 - u) \log(1 - u)}{M^2 \rho^2} \quad\text{if}\quad
    u = M \rho\, \nu < 1, \qquad \nu^2 = g^\top H^{-1} g, \qquad \rho^2 = \max_i x_i^\top H^{-1} x_i,

with the gradient g and the Hessian H of R at w: along a line w + t d, the scores change by at most
:math:`r = \rho \|d\|_H` per unit of t, so that :math:`R'' \ge R''(0)\, e^{-M r t}`; integrate twice, and
minimize over d. For M = 0 the bound is :math:`\nu^2 / 2`. With several classes, :math:`x_i^\top d` is the
change of a difference of scores.

Where columns are dependent, as with more columns than rows, many weights have the same scores: the solver
returns those of minimum norm, as ``numpy.linalg.lstsq`` does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.matrix import is_stored
from riskmin.core import Array, Cut, Iterate, NDArray, Solver
from riskmin.core.blas_threads import scipy_linalg
from riskmin.losses.hessian import hessian_product
from riskmin.numerics.precision import CUT_ROUNDING
from riskmin.problem.objective import Objective
from riskmin.regularizers.unpenalized import NoPenalty

NO_MINIMUM = (
    "without a penalty (alpha=0) there is no minimum, since weights grow without end where columns separate "
    "classes, or counts of zero, perfectly: give alpha > 0, such as 1e-6"
)


@dataclass(frozen=True)
class UnpenalizedNewton(Solver):
    """Newton's method for a risk of a self-concordant loss without a penalty, such as logistic regression.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Objective, linear_risk, minimize
    >>> from riskmin.regularizers.unpenalized import NoPenalty
    >>> X, y = np.array([[1.0], [2.0], [3.0], [2.5]]), np.array([-1.0, 1.0, 1.0, -1.0])
    >>> J = Objective(linear_risk(X, y, "logistic", fit_intercept=True), NoPenalty(), lam=1.0)
    >>> minimize(J, UnpenalizedNewton(), tol=1e-9).status
    'converged'
    """

    MAX_ENTRIES = 2**25
    """Largest number of entries of X, which is copied as a dense array with standardized columns."""
    MAX_WEIGHTS = 3000

    def supports(self, obj: Objective) -> str | None:
        """None for self-concordant losses of local rows, of moderate size."""
        risk: Any = obj.risk
        name = type(risk.loss.chosen).__name__
        if not isinstance(obj.reg.penalized_part, NoPenalty) or not math.isfinite(risk.loss.self_concordance):
            return f"without a penalty (alpha=0), {name} has no proof: give alpha > 0, such as 1e-9"
        if obj.reg.penalized_part.domain is not None:
            return (
                f"without a penalty (alpha=0), bounds of the weights of {name} have no proof: give alpha > 0"
            )
        return self.size_reason(obj)

    @classmethod
    def size_reason(cls, obj: Objective) -> str | None:
        """Return why the rows cannot be copied and standardized; None if they can."""
        risk: Any = obj.risk
        if risk.rows is None or not is_stored(risk.rows.X):
            return "without a penalty (alpha=0), all rows must be in this process: give alpha > 0"
        if np.prod(risk.rows.X.shape) > cls.MAX_ENTRIES or risk.dim > cls.MAX_WEIGHTS:
            return f"without a penalty (alpha=0), {cls.MAX_WEIGHTS} weights are the limit: give alpha > 0"
        return None

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield points with constant cuts, R >= b."""
        self.check_supports(obj)
        problem = _StandardizedRisk(obj.risk)
        theta = problem.from_weights(w0)
        # a start where second derivatives vanish is no better than zero
        _, z, dz = problem.evaluate(theta)
        problem.newton_step(theta, z, dz)
        theta = theta if problem.rank == problem.full_rank else 0.0 * theta
        while True:
            value, z, dz = problem.evaluate(theta)
            if problem.separated(z):
                raise ValueError(NO_MINIMUM)
            step, decrement, leverage = problem.newton_step(theta, z, dz)
            # curvature vanishes only where scores are infinite
            if problem.rank < problem.full_rank or not math.isfinite(decrement):
                raise ValueError(NO_MINIMUM)
            u = problem.M * leverage * decrement
            gap = _gap(u, decrement, problem.M * leverage) * (1 + 1e-9) if problem.resolved else math.inf
            lower = max(value - gap - problem.rounding(value, z, dz), 0.0)
            w = problem.to_weights(theta)
            yield Iterate(w, value, Cut(np.zeros(len(w)), lower), {"decrement": decrement}, None, False)
            theta = theta + problem.step_size(theta, step, value, decrement, u) * step


def _gap(u: float, decrement: float, ratio: float) -> float:
    """Return the bound of R(w) - min R; infinite if it is not known."""
    if u < 1e-4:  # the series, where the difference would cancel: (u^2 / 2 + u^3 / 6 + ...) / ratio^2
        return decrement**2 * (0.5 + u / 6 + u * u)
    # where there is no minimum, u tends to 1: half of it leaves rounding no say
    return math.inf if u > 0.5 else (u + (1 - u) * math.log1p(-u)) / ratio**2


class StandardizedRows:
    r"""The rows of a risk as a function of theta, one row per column of Z, and one column per output.

    Z is a basis of the columns of X, standardized, that is orthonormal for the weights c of the rows:
    :math:`Z^\top \mathrm{diag}(c)\, Z = I`. So the Hessian is as well conditioned as the second derivatives
    of the loss, also for nearly dependent columns and for rows of very different weights.
    """

    MIN_SINGULAR_VALUE = 1e-14
    """Singular values of the columns that are smaller, relative to the largest, are rounding."""
    MAX_DROPPED_SCORE = 1e-12
    """Directions without curvature may change no score by more than this per unit, or nothing is proved."""

    def __init__(self, risk: Any) -> None:
        self.risk, self.loss = risk, risk.loss
        X, y, c = risk.rows.X, risk.rows.y, risk.rows.c
        used = np.flatnonzero(c > 0)
        rows = (X.as_scipy().toarray() if X.sparse else np.asarray(X.array, dtype=np.float64))[used]
        self.y, self.c = y[used], c[used]
        self.intercept = bool(risk.intercept.fitted)
        self.k = risk.linear_map.columns
        # a common shift of all scores is the intercept, or changes nothing
        centered = self.intercept or self.loss.shift_invariant
        self.shift = self.c @ rows if centered else np.zeros(rows.shape[1])
        columns, self.scale = _standardized(rows, self.shift)
        columns = np.column_stack([np.ones(len(rows)), columns]) if self.intercept else columns
        # singular values and row space of the columns: X'X would square their condition, U is not needed
        triangle = np.linalg.qr(np.sqrt(self.c)[:, None] * columns, mode="r")
        _, sizes, V = np.linalg.svd(triangle, full_matrices=False)
        keep = sizes > self.MIN_SINGULAR_VALUE * columns.shape[1] * sizes[0]
        # standardized weights are V' (theta / sizes), and theta is from_columns @ standardized weights
        self.V, self.sizes, self.from_columns = V[keep], sizes[keep, None], sizes[keep, None] * V[keep]
        self.Z = columns @ (self.V.T / sizes[keep])
        self.row_space = None if keep.all() and len(V) == len(V.T) else self._row_space()
        """The row space in units of X, as factors Q and R; None if it has all weights."""
        dropped = 0.0 if self.row_space is None else _largest(columns - (columns @ self.V.T) @ self.V)
        self.resolved = bool(dropped <= self.MAX_DROPPED_SCORE * columns.shape[1])
        """Whether the directions that are left out change no score."""

    # ------------------------------------------------------------ weights in units of X
    def from_weights(self, w: NDArray) -> NDArray:
        """Return theta; a profiled intercept starts at zero."""
        W, b = self._split(np.asarray(w, dtype=np.float64))
        columns = W * self.scale[:, None]
        columns = np.vstack([b + self.shift @ W, columns]) if self.intercept else columns
        return np.asarray(self.from_columns @ columns)

    def _split(self, w: NDArray) -> tuple[NDArray, NDArray]:
        m = self.risk.n_intercepts
        return (w[: len(w) - m].reshape(-1, self.k), w[len(w) - m :] if m else np.zeros(self.k))

    def to_weights(self, theta: NDArray) -> NDArray:
        """Return w of minimum norm, with its intercepts if they are entries of it."""
        units = self._units()[:, None]
        weights = self.V.T @ (theta / self.sizes) / units
        if self.row_space is not None:
            Q, R = self.row_space
            target, weights = theta / self.sizes, 0.0 * weights
            for _ in range(2):  # the second step is iterative refinement
                residual = target - self.V @ (units * weights)
                weights += Q @ scipy_linalg().solve_triangular(R, residual, trans="T")
        W = weights[1:] if self.intercept else weights
        b = weights[0] - self.shift @ W if self.risk.n_intercepts else np.zeros(0)
        return np.concatenate([W.reshape(-1), b])

    def _units(self) -> NDArray:
        """Return the units of the columns of Z's basis: 1 for that of the intercept."""
        return np.append(1.0, self.scale) if self.intercept else self.scale

    def _row_space(self) -> tuple[NDArray, NDArray]:
        """Return Q and R of V diag(units), whose rows span the weights of minimum norm.

        The column of the intercept is orthogonal to the others, which are centered, so that it is unaffected.
        """
        Q, R = np.linalg.qr((self.V * self._units()).T)
        return Q, R


class _StandardizedRisk(StandardizedRows):
    """R as a function of theta, with its Newton steps."""

    MIN_CURVATURE = 1e-13
    """Second derivatives that are smaller, relative to those at zero, show that there is no minimum."""

    def __init__(self, risk: Any) -> None:
        super().__init__(risk)
        self.M = float(risk.loss.self_concordance)
        self.min_curvature, self.full_rank = 0.0, 0
        zero = np.zeros((self.Z.shape[1], self.k))
        eigenvalues = scipy_linalg().eigvalsh(self._hessian(*self.evaluate(zero)[1:]))
        self.min_curvature = self.MIN_CURVATURE * len(eigenvalues) * float(eigenvalues.max(initial=0.0))
        # a common shift of all classes has no curvature
        self.full_rank = self.rank = int((eigenvalues > 1e-9 * eigenvalues.max(initial=0.0)).sum())

    def evaluate(self, theta: NDArray) -> tuple[float, NDArray, NDArray]:
        """Return R, the scores, and the gradient in the scores."""
        z = self.Z @ theta
        z = z if self.risk.multi_output else z[:, 0]
        value, dz = self.loss.value_grad(z, self.y, self.c)
        return float(value), z, np.asarray(dz)

    def rounding(self, value: float, z: NDArray, dz: NDArray) -> float:
        """Return a bound of the rounding error of R: its terms, and slopes times scores."""
        return CUT_ROUNDING * (
            value + float(np.sum(np.abs(dz) * np.abs(z))) + float(self.loss.terms(z, self.y, self.c))
        )

    def separated(self, z: NDArray) -> bool:
        """Whether all rows are on the right side of the classes: then larger weights are better."""
        if not self.loss.probabilistic:
            return False
        if z.ndim == 1:
            return bool((self.y * z > 0).all())
        true = z[np.arange(len(z)), self.y.astype(np.intp)]
        others = z.copy()
        others[np.arange(len(z)), self.y.astype(np.intp)] = -np.inf
        return bool((true > others.max(axis=1)).all())

    def newton_step(self, theta: NDArray, z: NDArray, dz: NDArray) -> tuple[NDArray, float, float]:
        """Return the Newton step, the decrement nu, and the largest leverage rho."""
        k, q = self.k, self.Z.shape[1]
        H = self._hessian(z, dz)
        g = (self.Z.T @ dz.reshape(-1, k)).T.reshape(-1)  # by output, then by column
        eigenvalues, Q = scipy_linalg().eigh(H)
        keep = eigenvalues > self.min_curvature
        self.rank = int(keep.sum())
        A = Q[:, keep] / np.sqrt(eigenvalues[keep])
        projected = A.T @ g
        step = -(A @ projected).reshape(k, q).T
        decrement = float(np.linalg.norm(projected))
        if not self.M:  # then the bound does not depend on it
            return step, decrement, 0.0
        pairs = [(A, np.zeros((k * q, 1)))] if k == 1 else self._pairs(A)
        leverage = max(float(np.max(np.sum((self.Z @ (a - b)) ** 2, axis=1))) for a, b in pairs)
        return step, decrement, math.sqrt(leverage)

    def _pairs(self, A: NDArray) -> list[tuple[NDArray, NDArray]]:
        """Return the blocks of A for all pairs of outputs."""
        blocks = A.reshape(self.k, self.Z.shape[1], -1)
        return [(blocks[a], blocks[b]) for a in range(self.k) for b in range(a)]

    def _hessian(self, z: NDArray, dz: NDArray) -> NDArray:
        """Return the Hessian of R in theta, by output and then by column."""
        if not self.risk.multi_output:
            return np.asarray(self.Z.T @ hessian_product(self.loss.hessian(z, self.y, self.c), self.Z))
        q, blocks = self.Z.shape[1], self.loss.block_hessian(dz.copy(), self.y, self.c)
        H = np.empty((self.k, q, self.k, q))
        for b in range(self.k):
            V = blocks.product(np.tile(np.eye(self.k)[b], (len(z), 1)), slice(None))
            for a in range(self.k):
                H[a, :, b] = self.Z.T @ (V[:, a, None] * self.Z)
        return H.reshape(self.k * q, self.k * q)

    def step_size(self, theta: NDArray, step: NDArray, value: float, decrement: float, u: float) -> float:
        """Return 1 near the minimum, else the result of halving, or log(1 + u) / u, which always lowers R."""
        if u < 0.5:
            return 1.0
        sure, t = math.log1p(u) / u, 1.0
        while t > sure and not self.evaluate(theta + t * step)[0] <= value - 0.25 * t * decrement**2:
            t *= 0.5
        return max(t, sure)


def _largest(rows: NDArray) -> float:
    """Return the largest norm of a row."""
    return float(np.sqrt((rows * rows).sum(axis=1).max(initial=0.0)))


def _standardized(rows: NDArray, shift: NDArray) -> tuple[NDArray, NDArray]:
    """Return the columns less their shift, in units of their largest deviation, and these units."""
    columns = rows - shift
    scale = np.abs(columns).max(axis=0, initial=0.0)
    # what is left of a constant column is rounding
    constant = scale <= len(rows) * np.finfo(float).eps * np.abs(rows).max(axis=0, initial=0.0)
    columns[:, constant] = 0.0
    scale = np.where(constant, 1.0, scale)
    return columns / scale, scale
