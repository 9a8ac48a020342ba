"""Regularizers that are not sums over coordinates: quadratic forms and powers of norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sparse

from riskmin.arrays.namespace import as_array_like, namespace, to_numpy
from riskmin.arrays.sparse_checks import validated_sparse
from riskmin.core import Array, Cut, NDArray
from riskmin.core.blas_threads import scipy_linalg, scipy_module
from riskmin.core.deadline import check, check_each
from riskmin.regularizers.base import (
    ArrayDataclass,
    Regularizer,
    find_root,
    quadratic_bound,
    quadratic_line,
    quadratic_scale,
)

# untyped: the stubs of scipy.sparse do not cover matrices that are sparse or dense
sp: Any = sparse


def _linalg() -> Any:
    return scipy_module("sparse.linalg")


@dataclass(frozen=True, eq=False, repr=False)
class Quadratic(ArrayDataclass, Regularizer):
    r"""A quadratic form, :math:`\Omega(w) = \tfrac12 w^\top K w`; its conjugate is that of :math:`K^{-1}`.

    Parameters
    ----------
    K : (p, p) array, sparse matrix or linear operator
        Symmetric and positive definite, or semidefinite with at most 1000 columns: directions without a
        penalty then have 1e-12 of the largest one, without which nothing could be proved.
    solve : callable, optional
        ``solve(u)`` returns :math:`K^{-1} u`. By default, dense and sparse matrices are factorized, and
        systems with a linear operator are solved by conjugate gradients.

    Examples
    --------
    >>> import numpy as np
    >>> reg = Quadratic(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> reg.value(np.array([1.0, 1.0])), reg.conjugate_grad(np.array([3.0, 3.0])).round(12).tolist()
    (3.0, [1.0, 1.0])
    """

    EIGENVALUE_MAX_COLUMNS = 1000
    """The eigenvalues of a dense K are computed for at most this many columns."""

    UNPENALIZED_SHARE = 1e-12
    """The share of the largest eigenvalue that eigenvalues of zero have."""

    K: Any
    solve: Callable[[NDArray], NDArray] | None = None

    formula = "w' K w / 2"

    def __post_init__(self) -> None:
        K = self.K
        if sp.issparse(K):
            # the diagonal format has no max()
            object.__setattr__(self, "K", sp.csr_array(validated_sparse(K)))
        elif not self._is_operator:
            object.__setattr__(self, "K", K if type(K) is np.ndarray else np.asarray(K, dtype=np.float64))
        if len(self.K.shape) != 2 or self.K.shape[0] != self.K.shape[1]:
            raise ValueError(f"Quadratic needs a square K, not one of shape {self.K.shape}")
        if self._is_operator:
            return
        # symmetric up to rounding: a relative deviation of 1e-10
        largest = float(abs(self.K).max()) if self.K.shape[0] else 0.0
        if not (math.isfinite(largest) and abs(self.K - self.K.T).max() <= 1e-10 * largest):
            raise ValueError("Quadratic needs K to be symmetric and finite: give (K + K.T) / 2")
        if self.solve is None and 0 < self.K.shape[0] <= self.EIGENVALUE_MAX_COLUMNS:
            self._lift_zero_eigenvalues()

    def _lift_zero_eigenvalues(self) -> None:
        """Replace eigenvalues of zero, up to rounding, by a share of the largest one."""
        dense = self.K.toarray() if sp.issparse(self.K) else self.K
        size = float(abs(dense).sum(axis=1).max())  # at least the largest eigenvalue
        floor = 0.5 * self.UNPENALIZED_SHARE * size / len(dense)
        try:  # a factorization costs a tenth of the eigenvalues
            scipy_linalg().cho_factor(dense - floor * np.eye(len(dense)), lower=True)
            return
        except np.linalg.LinAlgError:
            values, vectors = np.linalg.eigh(dense)
        share = self.UNPENALIZED_SHARE * float(values[-1])
        if values[0] < -share or not share > 0:
            return  # `_solve` refuses it
        lifted = (vectors * np.maximum(values, share)) @ vectors.T
        object.__setattr__(self, "K", 0.5 * (lifted + lifted.T))

    @property
    def _is_operator(self) -> bool:
        """Whether K is a linear operator of SciPy, which only gives products."""
        return isinstance(self.K, _linalg().LinearOperator)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle: without the factors of K, which SciPy cannot pickle."""
        return {name: v for name, v in vars(self).items() if name != "_solve"}

    @cached_property
    def _solve(self) -> Callable[[NDArray], NDArray]:
        if self.solve is not None:
            return self.solve
        K: Any = self.K
        if self._is_operator:
            return lambda u: _conjugate_gradients(K, u)
        if sp.issparse(K):
            # with diagonal pivoting only, all pivots are positive if and only if K is positive definite
            try:
                factors = _linalg().splu(
                    sp.csc_array(K), "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
                )
            except RuntimeError:
                raise ValueError(_NOT_DEFINITE) from None
            if not ((factors.perm_r == factors.perm_c).all() and (factors.U.diagonal() > 0).all()):
                raise ValueError(_NOT_DEFINITE)
            solve: Callable[[NDArray], NDArray] = factors.solve
            return solve
        try:
            chol = scipy_linalg().cho_factor(K, lower=True)
        except np.linalg.LinAlgError:
            raise ValueError(_NOT_DEFINITE) from None
        return lambda u: np.asarray(scipy_linalg().cho_solve(chol, u))

    def scaled(self, s: NDArray) -> Quadratic | None:
        """Return the same function of v = w / s; None if K is a linear operator."""
        # (s v)' K (s v) = v' diag(s) K diag(s) v
        if self._is_operator:
            return None
        if sp.issparse(self.K):
            return Quadratic(sp.diags_array(s) @ self.K @ sp.diags_array(s))
        return Quadratic(s[:, None] * self.K * s)

    def strong_convexity(self, w: Array) -> float:
        """Return the smallest eigenvalue of a small dense K, less rounding."""
        if self._is_operator or sp.issparse(self.K) or len(self.K) > self.EIGENVALUE_MAX_COLUMNS:
            return 0.0
        # the relative 1e-6 covers the rounding of the eigenvalue solver: the modulus is never overestimated
        return max(0.0, (1 - 1e-6) * float(np.linalg.eigvalsh(self.K)[0]))

    def value(self, w: Array) -> float:
        """Return w' K w / 2."""
        return 0.5 * float(w @ self.grad(w))

    def grad(self, w: Array) -> Array:
        """Return K w."""
        self._check(w)
        return self.K @ w

    def _check(self, w: Array) -> None:
        if len(w) != self.K.shape[0]:
            raise ValueError(
                f"K has shape {self.K.shape}, but w has {len(w)} entries: give a row and a column for each"
            )

    def prox(self, v: Array, step: float) -> Array:
        """Return the solution of (I + step K) w = v."""
        if step == 0:
            return v
        K: Any = self.K
        if sp.issparse(K):
            return _linalg().spsolve(sp.csc_array(sp.eye_array(len(v)) + step * K), v)
        if not self._is_operator:
            return np.linalg.solve(np.eye(len(v)) + step * K, v)
        # an operator is not factorized: conjugate gradients on I + step K
        shifted = _linalg().LinearOperator(K.shape, matvec=lambda x: x + step * (K @ x), dtype=float)
        return _conjugate_gradients(shifted, v)

    def conjugate(self, u: Array) -> float:
        """Return u' K^-1 u / 2."""
        return 0.5 * float(u @ self.conjugate_grad(u))

    def conjugate_grad(self, u: Array) -> Array:
        """Return K^-1 u."""
        self._check(u)
        return self._solve(u)

    def inverse_metric_product(self, A: Array, a: Array) -> Array:
        """Return A K^-1 a."""
        return A @ self._solve(a)

    scale = quadratic_scale
    bound = quadratic_bound
    line = quadratic_line


_NOT_DEFINITE = "Quadratic needs a positive definite K: add a small multiple of the identity"


def _conjugate_gradients(K: Any, u: NDArray) -> NDArray:
    """Solve K w = u by conjugate gradients; raise a ValueError if they do not converge."""
    # accept an unconverged solution if its relative residual is at most 1e-8
    w, failed = _linalg().cg(K, u, rtol=1e-13, atol=0.0, maxiter=20 * len(u), callback=lambda _: check())
    if failed and not np.linalg.norm(K @ w - u) <= 1e-8 * np.linalg.norm(u):
        raise ValueError("conjugate gradients do not solve with K: is it positive definite? give its solve")
    return np.asarray(w)


@dataclass(frozen=True)
class QNorm(Regularizer):
    r"""A power of a norm, :math:`\Omega(w) = \tfrac1{q'} \|w\|_q^{q'}`.

    Its conjugate is :math:`\tfrac1{p'} \|u\|_p^{p'}` with :math:`1/p + 1/q = 1/p' + 1/q' = 1`. The transfer
    function with q' = 2 is that of the p-norm algorithms; q = q' = 2 is `L2`.

    Parameters
    ----------
    q : float
        The order of the norm, above 1: close to 1 it is similar to `L1`, a large q favors weights of equal
        size.
    power : float
        The power q', above 1.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002, section 5.1.

    Examples
    --------
    >>> import numpy as np
    >>> round(QNorm(q=1.5, power=2.0).value(np.array([1.0, -1.0])), 6)  # 2^(4/3) / 2
    1.259921
    """

    q: float = 1.5
    power: float = 2.0

    formula = "|w|_q^power / power"

    def __post_init__(self) -> None:
        if not (1 < self.q < math.inf and 1 < self.power < math.inf):
            raise ValueError(f"QNorm needs q > 1 and power > 1, not q={self.q!r} and power={self.power!r}")

    @property
    def _conjugate_exponents(self) -> tuple[float, float]:
        return self.q / (self.q - 1), self.power / (self.power - 1)

    def value(self, w: Array) -> float:
        """Return |w|_q^q' / q'."""
        return _power_or_inf(_norm(w, self.q), self.power) / self.power

    def grad(self, w: Array) -> Array:
        """Return sgn(w) |w|^(q-1) |w|_q^(q'-q)."""
        return _power_grad(w, self.q, self.power)

    def conjugate(self, u: Array) -> float:
        """Return |u|_p^p' / p'."""
        p, power = self._conjugate_exponents
        return _power_or_inf(_norm(u, p), power) / power

    def conjugate_grad(self, u: Array) -> Array:
        """Return sgn(u) |u|^(p-1) |u|_p^(p'-p)."""
        return _power_grad(u, *self._conjugate_exponents)

    def conjugate_hessian_product(self, u: Array, A: Array) -> Array:
        """Return A H A' for the Hessian H of the conjugate: a diagonal plus an outer product."""
        xp, (p, power) = namespace(u), self._conjugate_exponents
        norm = _norm(u, p)
        if norm == 0:
            return A @ A.T
        # H = |u|^(p'-2) [(p - 1) diag(t^(p-2)) + (p' - p) g g'] with t = |u_j| / |u|_p, g = sgn(u) t^(p-1)
        t, size = xp.abs(u) / norm, _power_or_inf(norm, power - 2)
        # for p < 2 the second derivative is infinite at zero: it is limited by |u_j| / |u|_p >= 1e-8
        half = A * xp.sqrt((p - 1) * size * xp.maximum(t, 1e-8 + 0.0 * t) ** (p - 2))
        Aq = A @ (xp.sign(u) * t ** (p - 1))
        return half @ half.T + (power - p) * size * Aq[:, None] * Aq[None, :]

    def prox(self, v: Array, step: float) -> Array:
        """Return the proximal point, by a root search for its norm N.

        Given N, each |w_j| solves w + step N^(q'-q) w^(q-1) = |v_j|; N must be the norm of the solution.
        """
        N0 = _norm(v, self.q)
        if step == 0 or N0 == 0:
            return v
        # scalar root searches run on the CPU
        x = to_numpy(v)
        size = np.abs(x)

        def excess(log_norm: float) -> float:
            """Return log(norm of the solution for N) - log(N), which changes its sign once."""
            norm = _norm(_solve_prox_equations(size, step, (self.power - self.q) * log_norm, self.q), self.q)
            return math.log(norm) - log_norm if norm > 0 else -1.0

        # the norm of the proximal point is below |v|_q
        hi = math.log(N0)
        lo = hi - 1.0
        # move the lower end down until the sign changes; exp(-700) is close to underflow
        while excess(lo) <= 0 and lo > -700:
            lo -= 2 * (hi - lo)
        if excess(hi) < 0 < excess(lo):
            hi = find_root(excess, lo, hi)
        return as_array_like(
            np.sign(x) * _solve_prox_equations(size, step, (self.power - self.q) * hi, self.q), v
        )

    def scale(self, cut: Cut, lam: float) -> float:
        """Return the maximizer of s b - lam (s |a|_p / lam)^p' / p' over [0, 1]."""
        p, _ = self._conjugate_exponents
        size = _norm(cut.a, p)
        if size == 0 or cut.b <= 0:
            return float(cut.b > 0)
        # (b / |a|)^(q'-1) lam / |a|, in logarithms, because powers overflow
        log = (self.power - 1) * (math.log(cut.b) - math.log(size)) + math.log(lam) - math.log(size)
        return math.exp(min(log, 0.0))


def _norm(w: Array, q: float) -> float:
    """Return |w|_q, computed relative to the largest entry, because powers overflow."""
    xp = namespace(w)
    largest = float(xp.max(xp.abs(w)))
    return largest * float(xp.sum((xp.abs(w) / largest) ** q)) ** (1 / q) if largest else 0.0


def _power_or_inf(norm: float, power: float) -> float:
    """Return the power of a norm, and infinity on overflow."""
    try:
        return float(norm**power)
    except OverflowError:
        return math.inf


def _power_grad(w: Array, q: float, power: float) -> Array:
    """Return the gradient of |w|_q^power / power, in powers of w / |w|_q, because powers overflow."""
    # sgn(w_j) (|w_j| / |w|_q)^(q-1) |w|_q^(power-1)
    xp, norm = namespace(w), _norm(w, q)
    if norm == 0:
        return xp.zeros_like(w)
    return xp.sign(w) * (xp.abs(w) / norm) ** (q - 1) * _power_or_inf(norm, power - 1)


def _solve_prox_equations(a: NDArray, step: float, log_factor: float, q: float) -> Any:
    """Return the w in [0, a] with w + step e^log_factor w^(q-1) = a, by Newton's method, elementwise.

    It starts from the side on which it converges monotonically: from the right if the left side is convex in
    w (q >= 2), from the left if it is concave.
    """
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        # exp(700) is close to overflow; the start for q < 2 is below the root: both terms are at most a / 2
        k = step * np.exp(min(log_factor, 700.0))
        other = (a / (2 * k)) ** (1 / (q - 1))
        w = np.fmin(a, (a / k) ** (1 / (q - 1))) if q >= 2 else np.fmin(0.5 * a, other)
        for _ in check_each(range(100)):
            # Newton step for f(w) = w + k w^(q-1) - a, kept in [0, a]; NaN (inf / inf) counts as no step
            excess = w + k * w ** (q - 1) - a
            new = np.clip(w - np.nan_to_num(excess / (1 + k * (q - 1) * w ** (q - 2))), 0.0, a)
            if np.all(np.abs(new - w) <= 4e-16 * a):
                return new
            w = new
    return w
