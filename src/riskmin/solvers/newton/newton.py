r"""Newton's method, for smooth losses and for a sequence of smoothed problems with decreasing mu.

Each stage of a nonsmooth loss smooths it around a center, the multipliers at the end of the previous stage.
This is the proximal point method for the dual problem, with a semismooth Newton method for each subproblem.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.core import Array, Cut, Iterate, Solver
from riskmin.core.messages import check_whole
from riskmin.core.registry import repr_of_changes
from riskmin.problem.objective import Objective
from riskmin.solvers.newton.multi_output.stages import MultiOutputNewton, multi_output_reason
from riskmin.solvers.newton.row_model import has_multipliers, has_score_hessian
from riskmin.solvers.newton.stages import StagedNewton


@dataclass(frozen=True, repr=False)
class Newton(Solver):
    r"""Newton's method, with a certificate; for nonsmooth losses, on the smoothed objective.

    A step solves

    .. math:: (\lambda K + X^\top H X)\, d = -\nabla J(w),

    followed by a line search on cached scores: one forward and one adjoint pass over X.

    **Losses of one score per row** have one loop, in the weights and the intercept together. A step is solved
    by factorizing the matrix of the columns or that of the rows with nonzero second derivatives, or by
    conjugate gradients with the last factorization or the diagonal as preconditioner, whichever has the least
    counted cost; a factorization is used again while the squared gradient norm falls a hundredfold per step.
    The multipliers that a step predicts are stationary at its end, so that the complementarity there is their
    gap. Losses without conjugates have tangents as cuts instead. Iterates are the start and points with a
    proved gap: 5e-4 first, then a thousandth of the last one.

    **Nonsmooth losses** that are a maximum over multipliers, such as `Hinge` and `RocArea`, become smooth
    when :math:`\tfrac\mu2 |\beta - \bar\beta|^2` is subtracted inside the maximum. The multipliers of
    any point are feasible for the unsmoothed loss, so each step gives a cut of the risk
    itself. The certified gap is the sum of two terms: complementarity, which only a smaller :math:`\mu` or
    another center :math:`\bar\beta` decreases, and stationarity, which only more steps decrease. As soon as
    stationarity is below half of complementarity, the center moves to the multipliers of the point and
    :math:`\mu` decreases. Losses of pairs have too many multipliers to store, so their center stays 0.

    **Losses of several scores per row** with `L2` and local rows take the same stages. The matrix of all
    weights is factorized by its columns or its rows, or conjugate gradients are preconditioned by the
    diagonal, by one matrix for all outputs or by the matrix itself.

    If X is an array of torch or CuPy, vectors with one entry per row stay beside it, and float32 matrices are
    multiplied by tensor cores; one score per row is supported there.

    From w = 0 with many rows per column, a run starts at the end of runs on samples of the rows; all
    certificates are for all rows. For `L2` and `Quadratic`.

    Parameters
    ----------
    direct : int
        The largest dimension of a factorized matrix: of the features, or of the rows with nonzero second
        derivatives.
    sampled : bool
        Whether starting points and matrices may be computed from samples of the rows.
    mu_decrease : float
        The factor by which mu decreases after a stage, between 0 and 1, for nonsmooth losses.

    References
    ----------
    R.-E. Fan, K.-W. Chang, C.-J. Hsieh, X.-R. Wang, C.-J. Lin, LIBLINEAR: a library for large linear
    classification, Journal of Machine Learning Research 9, 2008. R. H. Byrd, G. M. Chin, W. Neveitt,
    J. Nocedal, On the use of stochastic Hessian information in optimization methods for machine learning,
    SIAM Journal on Optimization 21, 2011. X. Li, D. Sun, K.-C. Toh, A highly efficient semismooth Newton
    augmented Lagrangian method for solving Lasso problems, SIAM Journal on Optimization 28, 2018.
    O. Chapelle, S. S. Keerthi, Efficient algorithms for ranking with SVMs, Information Retrieval 13, 2010.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import Hinge, L2, Logistic, Newton, Objective, linear_risk, minimize
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((500, 4)) * [1, 10, 100, 1000]
    >>> y = np.where(X @ [1, 0.1, 0.01, 0.001] + rng.standard_normal(500) > 0, 1.0, -1.0)
    >>> for loss in (Logistic(), Hinge()):
    ...     result = minimize(Objective(linear_risk(X, y, loss), L2(), lam=1e-6), Newton(), tol=1e-9)
    ...     print(result.status, result.n_iter < 50)
    converged True
    converged True
    """

    # passes per digit without a factorization; nearly all rows of a nonsmooth loss are active there
    WIDE_PASSES_PER_DIGIT, WIDE_NONSMOOTH_PASSES_PER_DIGIT = 20.0, 1000.0

    direct: int = 2500
    sampled: bool = True
    mu_decrease: float = 0.3

    __repr__ = repr_of_changes

    def __post_init__(self) -> None:
        check_whole(self, "direct")
        if not 0 < self.mu_decrease < 1:
            raise ValueError(f"Newton needs mu_decrease between 0 and 1, not {self.mu_decrease!r}")

    def supports(self, obj: Objective) -> str | None:
        """None for local or remote rows with second derivatives and a quadratic regularizer."""
        risk: Any = obj.risk
        if risk.multi_output:
            return multi_output_reason(obj)
        table = risk.row_metadata
        if table is None:
            return "Newton needs a linear_risk, with one score per row: use Auto, Smoothing or Bundle"
        if not (obj.reg.quadratic and obj.reg.smooth):
            return f"Newton needs L2() or Quadratic(K), not {obj.reg!r}: use Bundle"
        name = type(risk.loss.chosen).__name__
        # beside X there is one multiplier per row
        if namespace(table.y) is not np and not has_multipliers(risk.loss):
            return f"Newton on arrays of torch or CuPy needs a loss of single rows, not {name}: use Auto"
        if not has_score_hessian(risk.loss):
            return (
                f"Newton needs second derivatives, and {name} has none: "
                "use Bundle, or Lbfgs if the loss is smooth"
            )
        return None

    def passes_per_digit(self, obj: Objective) -> float | None:
        """About 20 factorizations of the matrix of the features, besides 8 passes; for local X."""
        risk: Any = obj.risk
        if risk.rows is None or risk.multi_output or not risk.rows.X.nnz:
            return None
        (n, p), nnz = risk.rows.X.shape, risk.rows.X.nnz
        if p <= self.direct and n >= p:
            # a factorization takes the time of p^3 / 6 entries, a pass that of nnz entries
            return float(8.0 + risk.dim**3 / (6.0 * nnz))
        return self.WIDE_PASSES_PER_DIGIT if risk.loss.smooth else self.WIDE_NONSMOOTH_PASSES_PER_DIGIT

    def iterates(self, obj: Objective, w0: Array) -> Iterator[Iterate]:
        """Yield the start, then points with proved gaps."""
        self.check_supports(obj)
        if namespace(w0) is not np:  # vectors with one entry per column are NumPy's
            return (_beside(w0, it) for it in self.iterates(obj, to_numpy(w0)))
        staged = self._staged(obj)
        if self.sampled and not w0.any():
            return staged.iterates(staged.sampled_start())
        return staged.iterates(staged.start(staged.augmented(w0)))

    def _staged(self, obj: Objective) -> StagedNewton:
        """The loop for an objective."""
        kind = MultiOutputNewton if obj.risk.multi_output else StagedNewton
        return kind.of(obj, self.direct, self.mu_decrease)

    def warm_start(
        self, obj: Objective, state: dict[str, Array], before: Objective
    ) -> Iterator[Iterate] | None:
        """Start from the point and the multipliers of a run on the same risk, of this or a dual method."""
        self.check_supports(obj)
        return self._staged(obj).warm_started(state)

    def verifies_states(self, obj: Objective) -> bool:
        """Scores and cuts are computed again."""
        return True

    def resume(self, obj: Objective, state: dict[str, Array]) -> Iterator[Iterate]:
        """Continue from a saved state."""
        self.check_supports(obj)
        staged = self._staged(obj)
        return staged.iterates(staged.restored(state), resumed=True)


def _beside(w0: Array, it: Iterate) -> Iterate:
    """An iterate whose point and cut are in the library of w0."""
    return it._replace(w=as_array_like(it.w, w0), cut=Cut(as_array_like(it.cut.a, w0), it.cut.b))
