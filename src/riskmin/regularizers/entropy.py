"""Relative entropies, with exponential transfer functions as in the Winnow family of online algorithms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays.namespace import as_array_like, largest_exponent, namespace, to_numpy
from riskmin.core import Array, NDArray
from riskmin.core.blas_threads import scipy_module
from riskmin.core.deadline import check_each
from riskmin.regularizers.base import ArrayDataclass, Regularizer, by_feature, check_setting, find_root


@dataclass(frozen=True, eq=False, repr=False)
class Entropy(ArrayDataclass, Regularizer):
    r"""The entropy of w relative to a prior,

    .. math:: \Omega(w) = \sum_j w_j \ln\frac{w_j}{\mu_j} - w_j + \mu_j, \qquad w \ge 0,

    and, normalized, :math:`\sum_j w_j = A = \sum_j \mu_j`. The constants make :math:`\Omega \ge 0`, with the
    minimum 0 at the prior. The transfer function is :math:`w_j = \mu_j e^{v_j}`, or
    :math:`A \mu_j e^{v_j} / \sum_k \mu_k e^{v_k}` if normalized.

    Parameters
    ----------
    prior : float or (p,) array
        The :math:`\mu_j > 0`.
    normalized : bool
        Whether the sum of the weights must be that of the prior.
    balanced : bool
        Whether w may have any sign: each :math:`w_j = w_j^+ - w_j^-`, both with prior :math:`\mu_j`, as if
        the data were :math:`[x, -x]` (no copy is made). :math:`\Omega(w)` is the minimum of the entropy over
        such pairs, so its conjugate is that of the pair at :math:`[v, -v]`, and w has p entries.

    References
    ----------
    T. Zhang, On the dual formulation of regularized linear systems with convex risks, Machine Learning 46,
    2002, sections 5.1 and 6.1.

    Examples
    --------
    >>> import numpy as np
    >>> Entropy(prior=0.5).conjugate_grad(np.array([0.0, np.log(4.0)])).round(6).tolist()
    [0.2, 0.8]
    >>> Entropy(prior=0.5, normalized=False).conjugate_grad(np.array([0.0, np.log(4.0)])).tolist()
    [0.5, 2.0]
    >>> signed = Entropy(prior=0.5, normalized=False, balanced=True)
    >>> signed.conjugate_grad(np.array([0.0, -1.0])).round(4).tolist()
    [0.0, -1.1752]
    """

    prior: float | NDArray = 1.0
    normalized: bool = True
    balanced: bool = False

    def __post_init__(self) -> None:
        # the squares of the prior must be finite and nonzero
        check_setting(
            self, "prior", lambda v: (v >= 1e-100) & (v <= 1e100), "numbers > 0, from 1e-100 to 1e100"
        )
        # settings parsed from a name are floats
        for name in ("normalized", "balanced"):
            object.__setattr__(self, name, bool(vars(self)[name]))
        total = ", sum w = sum prior" if self.normalized else ""
        object.__setattr__(self, "formula", f"sum w ln(w / prior) - w + prior{total}")

    def _mu(self, w: Array) -> Any:
        """Return the prior as an array like w."""
        return by_feature(self.prior, w, "prior") + 0.0 * w

    def _total(self, mu: Array) -> float:
        """Return the sum A of the prior, over both signs if balanced."""
        return (2 if self.balanced else 1) * float(namespace(mu).sum(mu))

    # ------------------------------------------------------------ primal
    def value(self, w: Array) -> float:
        """Return Omega(w); infinite outside the domain."""
        xp, mu = namespace(w), self._mu(w)
        total = self._total(mu)
        if self.balanced:
            # of all pairs w+ - w- = w, that with w+ w- = (tau mu)^2 has the least entropy for its sum
            tau = _pair_factor(w, mu, total) if self.normalized else 1.0
            return math.inf if tau is None else _pair_value(w, mu, tau)
        if bool(xp.any(w < -self.DOMAIN_TOLERANCE * mu)):
            return math.inf
        if self.normalized and abs(float(xp.sum(w)) - total) > 1e-9 * total:
            return math.inf
        return max(float(xp.sum(_w_log_ratio(w, mu) - w + mu)), 0.0)

    def slope(self, w: Array, d: Array) -> float:
        """Return the derivative of Omega at w along d."""
        xp, mu = namespace(w), self._mu(w)
        if self.balanced:
            # w = 2 tau mu sinh(v), so that dOmega/dw_j = v_j = asinh(w_j / (2 tau mu_j))
            tau = _pair_factor(w, mu, self._total(mu)) if self.normalized else 1.0
            return float(xp.asinh(w / (2 * mu * max(tau or 0.0, 1e-300))) @ d)
        # dOmega/dw_j = ln(w_j / mu_j); limited at w_j = 0, where it is minus infinity
        tiny = 1e-300 + 0.0 * w
        return float(xp.log(xp.maximum(w / mu, tiny)) @ d)

    def reach(self, w: Array, d: Array) -> float:
        """Return the largest t for which w + t d is in the domain."""
        xp = namespace(w)
        if self.balanced and not self.normalized:
            return math.inf
        if self.balanced:
            return _max_step_in_l1_ball(w, d, self._total(self._mu(w)))
        # the first coordinate with d_j < 0 that reaches zero
        ahead = xp.where(d < 0, w / xp.where(d < 0, -d, 1.0 + 0.0 * d), math.inf + 0.0 * d)
        return max(float(xp.min(ahead)), 0.0)

    def is_finite(self, dim: int) -> bool:
        """Whether w may have any signs and any sum."""
        return self.balanced and not self.normalized

    def domain_support(self, a: Array) -> float:
        """Return the largest a @ w: the domain is a simplex, an L1 ball if balanced, or an orthant."""
        xp = namespace(a)
        if self.normalized:
            total = self._total(self._mu(a))
            return total * float(xp.max(xp.abs(a) if self.balanced else a))
        if self.balanced:
            return super().domain_support(a)
        return math.inf if bool(xp.any(a > 0)) else 0.0

    def prox(self, v: Array, step: float) -> Array:
        """Return argmin_w step Omega(w) + |w - v|^2 / 2; with step 0, the projection onto the domain."""
        # scalar root searches run on the CPU
        x = to_numpy(v).astype(np.float64, copy=False)
        mu = self._mu(x)
        prox = _pair_prox if self.balanced else _unsigned_prox
        w = _prox_with_total(self, x, mu, step) if self.normalized else prox(x, mu, step, 0.0)
        return w.astype(v.dtype, copy=False) if namespace(v) is np else as_array_like(w, v)

    # ------------------------------------------------------------ dual
    def conjugate(self, u: Array) -> float:
        """Return sum_j mu_j (e^u_j - 1), or A ln(sum_j mu_j e^u_j / A) if normalized.

        If balanced, the sums are over u and -u.
        """
        xp, mu = namespace(u), self._mu(u)
        top = float(xp.max(xp.abs(u) if self.balanced else u))
        # by expm1, and by e^u + e^-u - 2 = 4 sinh(u / 2)^2 if balanced: full relative precision for small u
        if not self.normalized or -1 < float(xp.min(u)) <= top < 1:
            half = xp.sinh(0.5 * _clip_exponent(xp.abs(u))) if self.balanced else None
            grown = float(xp.sum(mu * (xp.expm1(_clip_exponent(u)) if half is None else 4 * half * half)))
            return self._total(mu) * math.log1p(grown / self._total(mu)) if self.normalized else grown
        # log-sum-exp relative to the largest exponent
        signed = [u, -u] if self.balanced else [u]
        total = self._total(mu)
        return total * (top + math.log(sum(float(xp.sum(mu * xp.exp(s - top))) for s in signed) / total))

    def conjugate_grad(self, u: Array) -> Array:
        """Return mu e^u, normalized or not; if balanced, the difference for u and -u."""
        parts = self._transfer(u)
        return parts[0] - parts[1] if self.balanced else parts[0]

    def conjugate_hessian_product(self, u: Array, A: Array) -> Array:
        """Return A H A' for the Hessian H of the conjugate.

        H is diag(w), or diag(w+ + w-) if balanced; if normalized, minus the outer product of the mean, which
        makes it the total times the covariance matrix.
        """
        xp, parts = namespace(u), self._transfer(u)
        mean = A @ self.conjugate_grad(u) / self._total(self._mu(u)) if self.normalized else 0.0 * A[:, 0]
        halves = [(s * A - mean[:, None]) * xp.sqrt(part) for s, part in zip((1, -1), parts, strict=False)]
        return sum(half @ half.T for half in halves)

    def _transfer(self, u: Array) -> list[Array]:
        """Return [w], or [w+, w-] if balanced."""
        xp, mu = namespace(u), self._mu(u)
        signed = [u, -u] if self.balanced else [u]
        if not self.normalized:
            return [mu * xp.exp(_clip_exponent(s)) for s in signed]
        # exponents relative to the largest, which cancels in the normalization
        top = max(float(xp.max(s)) for s in signed)
        parts = [mu * xp.exp(s - top) for s in signed]
        norm = self._total(mu) / sum(float(xp.sum(part)) for part in parts)
        return [norm * part for part in parts]


def _clip_exponent(u: Array) -> Array:
    """Return u, clipped where exp(u) overflows: such u give no useful bound."""
    xp = namespace(u)
    return xp.minimum(u, 1.9 * largest_exponent(u) + 0.0 * u)


def _w_log_ratio(w: Array, mu: Array) -> Array:
    """Return w ln(w / mu), and zero at w = 0."""
    xp = namespace(w)
    positive = w > 0
    return xp.where(positive, w * xp.log(xp.where(positive, w, mu) / mu), 0.0 * w)


# ---------------------------------------------------------------- pairs w+ - w- = w
def _pair_value(w: Array, mu: Array, tau: float) -> float:
    """Return the entropy of the pair w+ - w- = w with w+ w- = (tau mu)^2, the minimum for its sum."""
    xp = namespace(w)
    # the larger of w+ and w- is (|w| + hypotenuse) / 2; the smaller follows from their product, without
    # cancellation
    hypotenuse = xp.sqrt(w * w + 4 * (tau * mu) ** 2)
    large = 0.5 * (xp.abs(w) + hypotenuse)
    small = xp.where(large > 0, (tau * mu) ** 2 / xp.where(large > 0, large, mu), 0.0 * w)
    both = _w_log_ratio(large, mu) + _w_log_ratio(small, mu) - large - small + 2 * mu
    return max(float(xp.sum(both)), 0.0)


def _pair_factor(w: Array, mu: Array, total: float) -> float | None:
    """Return the tau for which pairs with w+ w- = (tau mu)^2 have that total; None if |w|_1 exceeds it."""
    xp = namespace(w)
    size = float(xp.sum(xp.abs(w)))
    if size >= total:
        return None if size > total * (1 + 1e-9) else 0.0
    # sum sqrt(w^2 + 4 mu^2 t) is concave in t = tau^2: Newton's method from the left converges monotonically;
    # the variable tau holds t until the return
    tau = 0.0
    for k in range(200):
        hypotenuse = xp.sqrt(w * w + 4 * tau * mu * mu)
        deficit = total - float(xp.sum(hypotenuse))
        if k and deficit <= 1e-15 * total:
            break
        tiny = 1e-12 * mu + 0.0 * w
        step = deficit / float(xp.sum(2 * mu * mu / xp.maximum(hypotenuse, tiny)))
        if tau and step <= 1e-16 * tau:
            break
        tau += step
    return math.sqrt(tau)


def _max_step_in_l1_ball(w: Array, d: Array, total: float) -> float:
    """Return the largest t with |w + t d|_1 <= total, by bisection (the norm is convex in t)."""
    xp = namespace(w)
    speed = float(xp.sum(xp.abs(d)))
    if speed == 0:
        return math.inf
    lo, hi = 0.0, (total + float(xp.sum(xp.abs(w)))) / speed
    for _ in check_each(range(100)):
        mid = 0.5 * (lo + hi)
        lo, hi = (mid, hi) if float(xp.sum(xp.abs(w + mid * d))) <= total else (lo, mid)
    return lo


# ---------------------------------------------------------------- proximal points


def _unsigned_prox(v: NDArray, mu: NDArray, step: float, shift: float) -> NDArray:
    """Return the w >= 0 with step ln(w / mu) + w = v - shift, by Wright's omega function."""
    if step == 0:
        return np.maximum(v - shift, 0.0)
    return np.asarray(step * scipy_module("special").wrightomega((v - shift) / step + np.log(mu / step)))


def _pair_prox(v: NDArray, mu: NDArray, step: float, log_tau: float) -> NDArray:
    """Return the w with step asinh(w / (2 tau mu)) + w = v.

    For v > 0 the left side is concave in w >= 0, so that Newton's method from below converges monotonically.
    """
    if step == 0:
        return v
    half, size = mu * math.exp(log_tau), np.abs(v)
    # start: asinh(x) <= ln(2 x + 1), and that equation is solved by Wright's omega function
    w = np.maximum(_unsigned_prox(size + half, half, step, 0.0) - half, 0.0)
    for _ in check_each(range(100)):
        # Newton step for the equation, kept between the last w and |v|
        deficit = size - step * np.arcsinh(w / (2 * half)) - w
        new = np.minimum(np.maximum(w + deficit / (1 + step / np.sqrt(w * w + 4 * half * half)), w), size)
        if np.all(new - w <= 4e-16 * new):
            break
        w = new
    return np.sign(v) * w


def _prox_with_total(reg: Entropy, v: NDArray, mu: NDArray, step: float) -> NDArray:
    """Return the proximal point with the required total, by a root search for the multiplier of the sum."""
    total = reg._total(mu)
    if not reg.balanced:
        return _unsigned_prox_with_sum(v, mu, total, step)
    # the smallest log(tau): tau^2 does not underflow
    lo, hi = -340.0, 0.0

    def excess(log_tau: float) -> float:
        w = _pair_prox(v, mu, step, log_tau)
        return float(np.sqrt(w * w + 4 * (mu * math.exp(log_tau)) ** 2).sum()) - total

    # one entry of each pair is numerically zero: the other is the proximal point of the unsigned entropy
    if excess(lo) > 0:
        return np.sign(v) * _unsigned_prox_with_sum(np.abs(v), mu, total, step)
    log_tau_root = find_root(excess, lo, hi) if excess(hi) > 0 else hi
    return _pair_prox(v, mu, step, log_tau_root)


def _unsigned_prox_with_sum(v: NDArray, mu: NDArray, total: float, step: float) -> NDArray:
    """Return the point of given sum among `_unsigned_prox(v, mu, step, shift)`, over all shifts.

    It is invariant to a constant added to v.
    """
    v = v - v.max()
    # the exact projection onto the scaled simplex
    if step == 0:
        top = -np.sort(-v)
        over = (np.cumsum(top) - total) / np.arange(1, len(v) + 1)
        shift = over[np.flatnonzero(top > over)[-1]]
        return np.asarray(np.maximum(v - shift, 0.0))
    spread = step * float(np.abs(np.log(mu / (total / len(v)))).max())
    # bracket of the shift: from one entry with the entire sum to all entries with equal parts of it
    lo, hi = -total - spread - step * math.log(len(v)), spread

    def excess(shift: float) -> float:
        return float(_unsigned_prox(v, mu, step, shift).sum()) - total

    # without a sign change, an end of the bracket is the root up to rounding
    shift_root = find_root(excess, lo, hi) if excess(lo) > 0 > excess(hi) else hi
    w = _unsigned_prox(v, mu, step, shift_root)
    return np.asarray(w * (total / w.sum()))
