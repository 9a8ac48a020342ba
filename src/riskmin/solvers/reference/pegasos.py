"""Pegasos: projected subgradient steps of length 1 / (lam t), on all rows or on samples (paper B)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.matrix import is_stored
from riskmin.core import Array, Cut, Iterate, NDArray, Solver
from riskmin.core.messages import check_whole
from riskmin.problem.objective import Objective
from riskmin.solvers.base import local_rows_reason, mix_two, mixture
from riskmin.solvers.state_checks import check_state


@dataclass(frozen=True)
class Pegasos(Solver):
    r"""Projected subgradient steps for `L2`: the primal method with which paper B compares bundle methods.

    .. math:: w_{t+1} = P\Bigl(w_t - \frac{1}{\lambda t} (\lambda w_t + g_t)\Bigr), \qquad
              \min_{s \le t} J(w_s) - J^* = O\Bigl(\frac{\log t}{\lambda t}\Bigr),

    where :math:`g_t` is a subgradient of the risk, of all rows or of a sample of `batch_size` rows, and P the
    projection onto the ball :math:`\tfrac\lambda2 \|w\|^2 \le J(0)`, in which the minimum is.

    With all rows, the certificate is the mean of the cuts at :math:`w_1, \ldots, w_t`, mixed with the last
    one: without projections, the step leads to the minimizer of lam Omega plus that mean. With samples, J is
    evaluated once per pass over the rows, at the average of the points of that pass, and the mean is that of
    the cuts there. `Quadratic` regularizers take the same step in their metric.

    Parameters
    ----------
    batch_size : int or None
        The number of rows of a stochastic step; None for all rows.
    seed : int
        Seed of the samples.

    References
    ----------
    S. Shalev-Shwartz, Y. Singer, N. Srebro, Pegasos: primal estimated sub-gradient solver for SVM, ICML 2007.
    A. Smola, S. V. N. Vishwanathan, Q. Le, Bundle methods for machine learning, NIPS 2007, section 5.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, L2, Objective, Pegasos, linear_risk, minimize
    >>> X, y = np.array([[1.0, 0.5], [-2.0, 1.0], [0.3, 0.1]]), np.array([1.0, -1.0, 1.0])
    >>> J = Objective(linear_risk(X, y, Hinge()), L2(), lam=0.5)
    >>> result = minimize(J, Pegasos(), tol=1e-2)
    >>> result.status, result.lower <= result.value
    ('converged', True)
    """

    batch_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole(self, "batch_size", optional=True)
        check_whole(self, "seed", 0)

    def supports(self, obj: Objective) -> str | None:
        """None for `L2` and `Quadratic`, without intercepts in w; with samples, for local rows."""
        if not obj.has_inverse_metric or obj.n_intercepts:
            return f"{self.name} is for L2 and Quadratic, without intercepts in w: use Bundle or Auto"
        if self.batch_size is None:
            return None
        if reason := local_rows_reason(self, obj):
            return reason
        X = obj.risk.rows.X
        if obj.risk.intercept.profiled or not is_stored(X):
            return f"{self.name} with samples needs NumPy rows without an intercept: use Pegasos() or Auto"
        return None

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield a point per step, or per pass over the rows for stochastic steps."""
        self.check_supports(obj)
        return self._run(obj, w0, 0, None, math.nan)

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        # numbers: iterates so far, the offset of the mean cut, and J(0)
        check_state(state, {"w": "d", "mean": "d", "numbers": "3"}, d=obj.risk.dim)
        t, b, at_zero = (float(v) for v in state["numbers"])
        return self._run(obj, state["w"], int(t), Cut(state["mean"], b), at_zero)

    def _run(self, obj: Objective, w: Array, t: int, mean: Cut | None, at_zero: float) -> Iterator[Iterate]:
        if mean is None:
            at_zero = max(obj(0.0 * w)[0], 0.0)  # rounding may leave it negative
        while True:
            point = w
            if self.batch_size is not None:
                w, point = self._epoch(obj, w, t, at_zero)
            t += 1
            value, g, cut = obj(point)
            # the mean of t cuts is a cut
            mean = cut if mean is None else mixture(mean, cut, 1 / t)
            if self.batch_size is None:
                w = self._step(obj, w, g, t, at_zero)
            # the last cut is the better one where the loss is smooth
            best, _ = mix_two(mean, cut, obj)
            yield Iterate(point, value, best, {}, _snapshot(w, mean, t, at_zero))

    def _step(self, obj: Objective, w: Array, g: Array, t: int, at_zero: float) -> Array:
        """The point after step t, projected onto the ball."""
        # w - (w + K^-1 g / lam) / t, in the metric K of Omega; K = 1 for L2
        w = w + (obj.reg.conjugate_grad(-1 / obj.lam * g) - w) / t
        value = obj.lam * obj.reg.value(w)
        return w if value <= at_zero else math.sqrt(at_zero / value) * w

    def _epoch(self, obj: Objective, w: NDArray, epoch: int, at_zero: float) -> tuple[NDArray, NDArray]:
        """The last and the average point of as many steps as visit each row once."""
        risk: Any = obj.risk
        rows, rng = risk.rows, np.random.default_rng([self.seed, epoch])
        n, k = len(rows.y), min(self.batch_size or 1, len(rows.y))
        array, matrix = rows.X.array, rows.X.as_scipy()
        X = array if array is not None else matrix.tocsr()
        n_steps, total = -(-n // k), np.zeros_like(w)
        for step in range(n_steps):
            index = rng.integers(n, size=k)
            part = X[index]
            # the mean over samples of n c_i l_i is the risk
            _, dz = risk.loss.value_grad(part @ w, rows.y[index], n / k * rows.c[index])
            w = self._step(obj, w, part.T @ dz, epoch * n_steps + step + 1, at_zero)
            total += w
        return w, total / n_steps


def _snapshot(w: Array, mean: Cut, t: int, at_zero: float) -> Any:
    return lambda: {"w": w, "mean": mean.a, "numbers": np.array([t, mean.b, at_zero])}
