"""Regularizers that tie the coordinates together: quadratic forms and powers of norms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sparse

from riskmin.arrays import like, namespace, to_numpy
from riskmin.blas import linalg, scipy
from riskmin.deadline import check, checking
from riskmin.regularizers.base import Comparable, by_values, root
from riskmin.sparse import sound
from riskmin.types import Array, Cut, NDArray

sp: Any = sparse  # its types leave no room for what is sparse or dense


def _linalg() -> Any:
    return scipy("sparse.linalg")


@dataclass(frozen=True, eq=False, repr=False)
class Quadratic(Comparable):
    r"""A quadratic form, :math:`\Omega(w) = \tfrac12 w^\top K w`, its conjugate with :math:`K^{-1}`.

    Parameters
    ----------
    K : (p, p) array, sparse matrix or linear operator
        Symmetric and positive definite.
    solve : callable, optional
        ``solve(u)`` is :math:`K^{-1} u`. Dense and sparse matrices are factorized where it is not given;
        for an operator it is then found by conjugate gradients.

    Examples
    --------
    >>> import numpy as np
    >>> reg = Quadratic(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> reg.value(np.array([1.0, 1.0])), reg.conjugate_grad(np.array([3.0, 3.0])).round(12).tolist()
    (3.0, [1.0, 1.0])
    """

    K: Any
    solve: Callable[[NDArray], NDArray] | None = None

    formula = "w' K w / 2"

    def __post_init__(self) -> None:
        K = self.K
        if sp.issparse(K):
            object.__setattr__(self, "K", sp.csr_array(sound(K)))  # diagonal storage knows no largest entry
        elif not isinstance(K, (np.ndarray, _linalg().LinearOperator)):
            object.__setattr__(self, "K", np.asarray(K, dtype=np.float64))
        if len(self.K.shape) != 2 or self.K.shape[0] != self.K.shape[1]:
            raise ValueError(f"Quadratic needs a square K, not one of shape {self.K.shape}")
        if isinstance(self.K, _linalg().LinearOperator):
            return
        largest = float(abs(self.K).max()) if self.K.shape[0] else 0.0
        if not (math.isfinite(largest) and abs(self.K - self.K.T).max() <= 1e-10 * largest):
            raise ValueError("Quadratic needs K to be symmetric and finite: give (K + K.T) / 2")

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: K, and not its factors, which SciPy cannot send to another process."""
        return {name: v for name, v in vars(self).items() if name != "_inverse"}

    @cached_property
    def _inverse(self) -> Callable[[NDArray], NDArray]:
        if self.solve is not None:
            return self.solve
        K: Any = self.K
        if isinstance(K, _linalg().LinearOperator):
            return lambda u: _conjugate_gradients(K, u)
        if sp.issparse(K):
            try:  # with no pivots but those of the diagonal, they are all positive if K is definite
                factors = _linalg().splu(
                    sp.csc_array(K), "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
                )
            except RuntimeError:
                raise ValueError(_NOT_DEFINITE) from None
            if not ((factors.perm_r == factors.perm_c).all() and (factors.U.diagonal() > 0).all()):
                raise ValueError(_NOT_DEFINITE)
            found: Callable[[NDArray], NDArray] = factors.solve
            return found
        try:
            chol = linalg().cho_factor(K, lower=True)
        except np.linalg.LinAlgError:
            raise ValueError(_NOT_DEFINITE) from None
        return lambda u: np.asarray(linalg().cho_solve(chol, u))

    def scaled(self, s: NDArray) -> Quadratic | None:
        """The same function of v = w / s; None of a K that is an operator."""
        if isinstance(self.K, np.ndarray):
            return Quadratic(s[:, None] * self.K * s)
        return Quadratic(sp.diags_array(s) @ self.K @ sp.diags_array(s)) if sp.issparse(self.K) else None

    def value(self, w: Array) -> float:
        """W' K w / 2."""
        return 0.5 * float(w @ self.grad(w))

    def grad(self, w: Array) -> Array:
        """K w."""
        self._check(w)
        return self.K @ w

    def _check(self, w: Array) -> None:
        if len(w) != self.K.shape[0]:
            raise ValueError(
                f"K has shape {self.K.shape}, but w has {len(w)} entries: give a row and a column for each"
            )

    def prox(self, v: Array, step: float) -> Array:
        """The solution of (I + step K) w = v."""
        if step == 0:
            return v
        K: Any = self.K
        if isinstance(K, np.ndarray):
            return np.linalg.solve(np.eye(len(v)) + step * K, v)
        if sp.issparse(K):
            return _linalg().spsolve(sp.csc_array(sp.eye_array(len(v)) + step * K), v)
        shifted = _linalg().LinearOperator(K.shape, matvec=lambda x: x + step * (K @ x), dtype=float)
        return _conjugate_gradients(shifted, v)

    def conjugate(self, u: Array) -> float:
        """U' K^-1 u / 2."""
        return 0.5 * float(u @ self.conjugate_grad(u))

    def conjugate_grad(self, u: Array) -> Array:
        """K^-1 u."""
        self._check(u)
        return self._inverse(u)

    def gram(self, A: Array, a: Array) -> Array:
        """The inner products of the conjugate's norm."""
        return A @ self._inverse(a)

    def scale(self, cut: Cut, lam: float) -> float:
        """The maximizer of s b - s^2 a' K^-1 a / (2 lam) over [0, 1]."""
        q = 2 * self.conjugate(cut.a)
        return min(1.0, max(0.0, lam * cut.b / q)) if q > 0 else float(cut.b > 0)

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """T -> Omega(w + t d) and its slope, from three products."""
        Kd = self.grad(d)
        ww, wd, dd = 2 * self.value(w), float(w @ Kd), float(d @ Kd)
        return lambda t: (0.5 * ww + t * wd + 0.5 * t * t * dd, wd + t * dd)

    def reach(self, w: Array, d: Array) -> float:
        """Any distance."""
        return math.inf


_NOT_DEFINITE = "Quadratic needs a positive definite K: add a small multiple of the identity"


def _conjugate_gradients(K: Any, u: NDArray) -> NDArray:
    w, failed = _linalg().cg(K, u, rtol=1e-13, atol=0.0, maxiter=20 * len(u), callback=lambda _: check())
    if failed and not np.linalg.norm(K @ w - u) <= 1e-8 * np.linalg.norm(u):
        raise ValueError("conjugate gradients do not solve with K: is it positive definite? give its solve")
    return np.asarray(w)


@dataclass(frozen=True)
class QNorm:
    r"""A power of a norm, :math:`\Omega(w) = \tfrac1{q'} \|w\|_q^{q'}`.

    Its conjugate is :math:`\tfrac1{p'} \|u\|_p^{p'}` with :math:`1/p + 1/q = 1/p' + 1/q' = 1`. The transfer
    function with q' = 2 is that of the p-norm algorithms; q = q' = 2 is `L2`.

    Parameters
    ----------
    q : float
        Which norm, above 1: near 1 it is almost `L1`, for large q it evens the weights out.
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
    def _dual(self) -> tuple[float, float]:
        return self.q / (self.q - 1), self.power / (self.power - 1)

    def value(self, w: Array) -> float:
        """|w|_q^q' / q'."""
        return _to_the(_norm(w, self.q), self.power) / self.power

    def grad(self, w: Array) -> Array:
        """sgn(w) |w|^(q-1) |w|_q^(q'-q)."""
        return _power_grad(w, self.q, self.power)

    def conjugate(self, u: Array) -> float:
        """|u|_p^p' / p'."""
        p, power = self._dual
        return _to_the(_norm(u, p), power) / power

    def conjugate_grad(self, u: Array) -> Array:
        """sgn(u) |u|^(p-1) |u|_p^(p'-p)."""
        return _power_grad(u, *self._dual)

    def conjugate_bend(self, u: Array, A: Array) -> Array:
        """A H A' for the derivative H of `conjugate_grad`: a diagonal and one outer product."""
        xp, (p, power) = namespace(u), self._dual
        norm = _norm(u, p)
        if norm == 0:
            return A @ A.T
        t, size = xp.abs(u) / norm, _to_the(norm, power - 2)
        # p < 2: infinite curvature at zero, which a model need not follow all the way
        half = A * xp.sqrt((p - 1) * size * xp.maximum(t, 1e-8 + 0.0 * t) ** (p - 2))
        Aq = A @ (xp.sign(u) * t ** (p - 1))
        return half @ half.T + (power - p) * size * Aq[:, None] * Aq[None, :]

    def prox(self, v: Array, step: float) -> Array:
        """By its norm N: each |w_j| solves w + step N^(q'-q) w^(q-1) = |v_j|, and N is the norm of that."""
        N0 = _norm(v, self.q)
        if step == 0 or N0 == 0:
            return v
        x = to_numpy(v)  # scalar searches: on the host, wherever v is
        size = np.abs(x)

        def excess(log_norm: float) -> float:
            """How far the norm is above the one that it came from, in logarithms: falls through zero once."""
            norm = _norm(_roots(size, step, (self.power - self.q) * log_norm, self.q), self.q)
            return math.log(norm) - log_norm if norm > 0 else -1.0

        hi = math.log(N0)  # the root is below |v|_q
        lo = hi - 1.0
        while excess(lo) <= 0 and lo > -700:
            lo -= 2 * (hi - lo)
        if excess(hi) < 0 < excess(lo):
            hi = root(excess, lo, hi)
        return like(np.sign(x) * _roots(size, step, (self.power - self.q) * hi, self.q), v)

    def scale(self, cut: Cut, lam: float) -> float:
        """The maximizer of s b - lam (s |a|_p / lam)^p' / p' over [0, 1]."""
        p, _ = self._dual
        size = _norm(cut.a, p)
        if size == 0 or cut.b <= 0:
            return float(cut.b > 0)
        # (b / |a|)^(q'-1) lam / |a|, by logarithms: powers overflow
        log = (self.power - 1) * (math.log(cut.b) - math.log(size)) + math.log(lam) - math.log(size)
        return math.exp(min(log, 0.0))

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """T -> Omega(w + t d) and its slope."""
        return by_values(self, w, d)

    def slope(self, w: Array, d: Array) -> float:
        """The slope of Omega along d."""
        return float(self.grad(w) @ d)

    def reach(self, w: Array, d: Array) -> float:
        """Any distance."""
        return math.inf


def _norm(w: Array, q: float) -> float:
    """|w|_q, scaled by the largest entry: powers overflow."""
    xp = namespace(w)
    largest = float(xp.max(xp.abs(w)))
    return largest * float(xp.sum((xp.abs(w) / largest) ** q)) ** (1 / q) if largest else 0.0


def _to_the(norm: float, power: float) -> float:
    """The power of a norm, infinite where it is no number."""
    try:
        return float(norm**power)
    except OverflowError:
        return math.inf


def _power_grad(w: Array, q: float, power: float) -> Array:
    xp, norm = namespace(w), _norm(w, q)
    if norm == 0:
        return xp.zeros_like(w)
    return xp.sign(w) * (xp.abs(w) / norm) ** (q - 1) * _to_the(norm, power - 1)


def _roots(a: NDArray, step: float, log_factor: float, q: float) -> Any:
    """The w in [0, a] with w + step e^log_factor w^(q-1) = a, by Newton's method from its safe side."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        k = step * np.exp(min(log_factor, 700.0))
        # from the right where the function is convex, from the left where it is concave
        other = (a / (2 * k)) ** (1 / (q - 1))
        w = np.fmin(a, (a / k) ** (1 / (q - 1))) if q >= 2 else np.fmin(0.5 * a, other)
        for _ in checking(range(100)):
            excess = w + k * w ** (q - 1) - a
            new = np.clip(w - np.nan_to_num(excess / (1 + k * (q - 1) * w ** (q - 2))), 0.0, a)
            if np.all(np.abs(new - w) <= 4e-16 * a):
                return new
            w = new
    return w
