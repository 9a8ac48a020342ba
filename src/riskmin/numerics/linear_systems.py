r"""Positive semidefinite linear systems: conjugate gradients, Cholesky factors, systems of the rows.

Matrices of data are singular in double precision more often than not: columns are copies of each other, or
differ by rounding; penalties vanish beside second derivatives. So none of the functions fails: conjugate
gradients end where nothing but rounding is left, and a factorization raises the diagonal until it succeeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.core import NDArray
from riskmin.core.blas_threads import cho_factor, scipy_linalg
from riskmin.core.deadline import check, interruptible_matmul

Solve = Callable[[NDArray], NDArray]
"""Maps a right-hand side to the solution, of the same shape."""
SaddleSolve = Callable[[NDArray, NDArray | float, float], tuple[NDArray, NDArray, float]]
"""Maps the right-hand sides of the three equations of a saddle-point system to its solution."""


# ---------------------------------------------------------------- conjugate gradients
@dataclass
class CgState:
    """A point x of conjugate gradients for A x = b: stop rules read it, and later steps continue from it."""

    x: NDArray
    residual: NDArray
    """b - A x, updated in each step."""
    direction: NDArray | None = None
    """Direction of the last step; None starts anew, as after a change of the preconditioner."""
    last_square: float = 0.0
    """r' M^-1 r before the last step."""
    steps: int = 0
    decrease: float = 0.0
    """By how much x' A x / 2 - b' x has decreased: b' x / 2 from x = 0 on."""
    done: bool = False
    """Whether the stop rule held, or nothing but rounding was left."""
    precondition: Solve | None = None
    _preconditioned: NDArray | None = None

    @property
    def preconditioned(self) -> NDArray:
        """M^-1 r, of which the next direction is made: a stop rule that reads it costs nothing more."""
        if self.precondition is None:
            return self.residual
        if self._preconditioned is None:
            self._preconditioned = self.precondition(self.residual)
        return self._preconditioned

    @property
    def square(self) -> float:
        """The squared norm r' M^-1 r: about twice what is left to gain, for a preconditioner M near A."""
        return float(np.vdot(self.residual, self.preconditioned))

    def take_step(self, product: Solve) -> bool:
        """Minimize along the next direction; return False, and stay, where it has no positive curvature."""
        square, last = self.square, self.last_square
        if not 0 < square < math.inf:
            return False
        if self.direction is None:
            self.direction = self.preconditioned.copy()
        else:  # conjugate to all earlier directions
            self.direction *= square / last
            self.direction += self.preconditioned
        image = product(self.direction)
        curvature = float(np.vdot(self.direction, image))
        if not 0 < curvature < math.inf:
            return False
        t = square / curvature
        image *= t
        self.residual -= image
        self.x += np.multiply(self.direction, t, out=image)
        self.last_square, self._preconditioned = square, None
        self.steps += 1
        self.decrease += 0.5 * t * square
        return True


def cg(
    product: Solve,
    rhs: NDArray,
    precondition: Solve | None = None,
    stop: Callable[[CgState], bool] = lambda at: False,
    state: CgState | None = None,
    max_steps: float = math.inf,
) -> CgState:
    r"""Solve A x = b for a positive semidefinite A by preconditioned conjugate gradients, in place.

    Step k minimizes :math:`\tfrac12 x^\top A x - b^\top x` over a Krylov space of dimension k, so that
    b'x > 0 after any number of steps: for b the negative gradient, x is a descent direction.

    Parameters
    ----------
    product : callable
        A d, in an array that may be overwritten.
    rhs : array
        b, of any shape; float32 computes in single precision.
    precondition : callable, optional
        M^-1 r for a positive definite M near A, in an array that is kept until the next call.
    stop : callable
        Called before each step with the state; true ends the run. By default, only rounding does.
    state : CgState, optional
        Where to continue; its arrays are changed. By default x = 0.
    max_steps : float
        The largest number of steps of this call.

    Returns
    -------
    CgState
        With `done`, unless the number of steps ended the run.

    Examples
    --------
    >>> import numpy as np
    >>> A, b = np.array([[4.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0])
    >>> cg(lambda d: A @ d, b).x.round(4).tolist()
    [0.0909, 0.6364]
    >>> cg(lambda d: A @ d, b, stop=lambda at: abs(at.residual).max() < 0.8).steps
    1
    """
    at = CgState(np.zeros_like(rhs), rhs.copy()) if state is None else state
    at.precondition, at.done, end = precondition, False, at.steps + max_steps
    while True:
        check()
        at.done = bool(stop(at))
        if at.done or at.steps >= end:
            return at
        if not at.take_step(product):
            at.done = True
            return at


# ---------------------------------------------------------------- factorizations
def shifted_cholesky(
    G: NDArray, penalty: NDArray | float = 0.0, sizes: NDArray | None = None, rounding: float = 1e-15
) -> Solve:
    r"""Return a function that solves (G + diag(penalty)) x = r, by a Cholesky factorization.

    Rounding may make a positive semidefinite G indefinite. So a share of each entry of the diagonal is added,
    and ten times as much where the factorization still fails. A share suits columns in any unit, since
    factorizations are invariant under scaling.

    Parameters
    ----------
    G : (p, p) array
        Its upper triangle.
    penalty : (p,) array or float
        What is added to the diagonal.
    sizes : (p,) array, optional
        The sums of the absolute terms of the diagonal, of which shares are added; by default the diagonal
        itself, with the penalty. A matrix whose terms cancel, as that of centered columns, has larger ones.
    rounding : float
        The first share: the relative rounding error of G.

    Returns
    -------
    callable
        From r, of shape (p,) or (p, k), to x. It divides by the diagonal if G is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> solve = shifted_cholesky(np.array([[4.0, 2.0], [2.0, 1.0]]), penalty=1.0)
    >>> solve(np.array([1.0, 0.0])).round(4).tolist()
    [0.3333, -0.3333]
    """
    given = G.diagonal() + penalty
    shift = np.array(given if sizes is None else sizes, dtype=np.float64)
    # a column of zeros without a penalty: any positive number does
    if shift.min(initial=1.0) <= 0:
        shift[shift <= 0] = float(shift.max()) or 1.0
    share = rounding
    while share < 1e3 * len(G):  # by then, the diagonal dominates any finite matrix
        # the upper triangle of an array in C order is the lower one of its transpose, in LAPACK's order
        matrix = np.array(G, dtype=np.float64, order="C")
        matrix.reshape(-1)[:: len(G) + 1] = given + share * shift
        try:
            factor, _ = cho_factor(matrix.T, lower=True, overwrite=True)
        except np.linalg.LinAlgError:
            share *= 10
            continue
        if not np.isfinite(factor.diagonal()).all():
            break
        potrs = scipy_linalg().lapack.dpotrs
        return lambda r: np.asarray(potrs(factor, r, lower=True)[0])
    scale = 1 / np.where(np.isfinite(given) & (given > 0), given, np.inf)
    return lambda r: np.asarray((scale * r.T).T)


def rows_system(
    X: Any,
    weight_curvature: NDArray,
    row_curvature: NDArray,
    *,
    intercept: bool = False,
    products: NDArray | None = None,
) -> SaddleSolve:
    r"""Return a function that solves a saddle-point system by its rows, if they are fewer than columns.

    .. math:: K\,w + X^\top a = r, \qquad L\,a - X w - b\,1 = s, \qquad 1^\top a = t,

    for diagonal :math:`K, L > 0`. With :math:`a = H (X w + b)`, :math:`L = H^{-1}` and s = 0, that is
    Newton's system :math:`(K + X^\top H X)\,w + X^\top H 1\,b = r`, :math:`1^\top H (X w + b) = t`
    (Woodbury's formula): leave out rows without curvature.

    Parameters
    ----------
    X : (m, p) array or sparse SciPy array
        The rows.
    weight_curvature, row_curvature : (p,) and (m,) arrays
        The diagonals of K and of L.
    intercept : bool
        Whether b is free; it is 0 otherwise, without the last equation.
    products : (m, m) array, optional
        :math:`X K^{-1} X^\top`, if it is known.

    Returns
    -------
    callable
        From (r, s, t) to (w, a, b).
    """
    K = weight_curvature
    if products is None:
        products = row_products(X, K)
    inverse = shifted_cholesky(products, row_curvature)
    ones = inverse(np.ones(len(row_curvature))) if intercept else None

    def solve(r: NDArray, s: NDArray | float, t: float) -> tuple[NDArray, NDArray, float]:
        # w = (r - X'a) / K, so that (L + X K^-1 X') a = s + X (r / K) + b
        a, b = inverse(s + X @ (r / K)), 0.0
        if ones is not None and (total := float(ones.sum())) > 0:  # 0 if all curvatures underflow
            b = (t - float(a.sum())) / total
            a += b * ones
        return (r - X.T @ a) / K, a, b

    return solve


def row_products(X: Any, weight_curvature: NDArray) -> NDArray:
    """Return X K^-1 X' for a diagonal K, of rows as an array or a sparse SciPy array."""
    if isinstance(X, np.ndarray):
        # both factors are the same array: BLAS computes one triangle
        scaled = X / np.sqrt(weight_curvature)
        return np.asarray(interruptible_matmul(scaled, scaled.T))
    return np.asarray((X.multiply(1 / weight_curvature) @ X.T).toarray())
