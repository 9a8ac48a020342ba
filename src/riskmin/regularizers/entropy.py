"""Relative entropies: exponentials for transfer functions, as in the Winnow family of online algorithms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from riskmin.arrays import largest_exponent, like, namespace, to_numpy
from riskmin.blas import scipy
from riskmin.deadline import checking
from riskmin.regularizers.base import (
    SLACK,
    Comparable,
    best_scale,
    by_feature,
    by_values,
    check_setting,
    root,
)
from riskmin.types import Array, Cut, NDArray


@dataclass(frozen=True, eq=False, repr=False)
class Entropy(Comparable):
    r"""The entropy of w relative to a prior,

    .. math:: \Omega(w) = \sum_j w_j \ln\frac{w_j}{\mu_j} - w_j + \mu_j, \qquad w \ge 0,

    and, normalized, :math:`\sum_j w_j = A = \sum_j \mu_j`. The constants make :math:`\Omega \ge 0`, least at
    the prior. The transfer function is :math:`w_j = \mu_j e^{v_j}`, or :math:`A \mu_j e^{v_j} / \sum_k \mu_k
    e^{v_k}` normalized.

    Parameters
    ----------
    prior : float or (p,) array
        The :math:`\mu_j > 0`.
    normalized : bool
        Whether the weights must keep the sum of the prior.
    balanced : bool
        Whether w may have any sign: each :math:`w_j = w_j^+ - w_j^-`, both with prior :math:`\mu_j`, as if
        the data were :math:`[x, -x]`, of which no copy is made. :math:`\Omega(w)` is the least entropy of
        such a pair, so its conjugate is that of the pair at :math:`[v, -v]`, and w stays p long.

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
        # squares of it must be numbers, too
        check_setting(
            self, "prior", lambda v: (v >= 1e-100) & (v <= 1e100), "numbers > 0, from 1e-100 to 1e100"
        )
        for name in ("normalized", "balanced"):  # from a name's settings they come as numbers
            object.__setattr__(self, name, bool(getattr(self, name)))

    @property
    def formula(self) -> str:
        """In one line of plain text."""
        return "sum w ln(w / prior) - w + prior" + (", sum w = sum prior" if self.normalized else "")

    def _mu(self, w: Array) -> Any:
        return by_feature(self.prior, w, "prior") + 0.0 * w

    def _total(self, mu: Array) -> float:
        return (2 if self.balanced else 1) * float(namespace(mu).sum(mu))

    # ------------------------------------------------------------ the primal side
    def value(self, w: Array) -> float:
        """Omega(w); infinite outside its domain."""
        xp, mu = namespace(w), self._mu(w)
        total = self._total(mu)
        if self.balanced:
            tau = _factor(w, mu, total) if self.normalized else 1.0
            return math.inf if tau is None else _pair_value(w, mu, tau)
        if bool(xp.any(w < -SLACK * mu)):
            return math.inf
        if self.normalized and abs(float(xp.sum(w)) - total) > 1e-9 * total:
            return math.inf
        return max(float(xp.sum(_times_log(w, mu) - w + mu)), 0.0)

    def slope(self, w: Array, d: Array) -> float:
        """The slope of Omega along d."""
        xp, mu = namespace(w), self._mu(w)
        if self.balanced:
            tau = _factor(w, mu, self._total(mu)) if self.normalized else 1.0
            return float(xp.asinh(w / (2 * mu * max(tau or 0.0, 1e-300))) @ d)
        tiny = 1e-300 + 0.0 * w
        return float(xp.log(xp.maximum(w / mu, tiny)) @ d)

    def line(self, w: Array, d: Array) -> Callable[[float], tuple[float, float]]:
        """T -> Omega(w + t d) and its slope."""
        return by_values(self, w, d)

    def reach(self, w: Array, d: Array) -> float:
        """How far w + t d stays in the domain."""
        xp = namespace(w)
        if self.balanced and not self.normalized:
            return math.inf
        if self.balanced:
            return _reach_of_norm(w, d, self._total(self._mu(w)))
        ahead = xp.where(d < 0, w / xp.where(d < 0, -d, 1.0 + 0.0 * d), math.inf + 0.0 * d)
        return max(float(xp.min(ahead)), 0.0)

    def prox(self, v: Array, step: float) -> Array:
        """argmin_w step Omega(w) + |w - v|^2 / 2; with step 0, the nearest point of the domain."""
        x = to_numpy(v).astype(np.float64, copy=False)  # scalar searches: on the host, wherever v is
        mu = self._mu(x)
        pull = _pair_prox if self.balanced else _plain_prox
        w = _with_total(self, x, mu, step) if self.normalized else pull(x, mu, step, 0.0)
        return w.astype(v.dtype, copy=False) if isinstance(v, np.ndarray) else like(w, v)

    # ------------------------------------------------------------ the dual side
    def conjugate(self, u: Array) -> float:
        """sum_j mu_j (e^u_j - 1), or A ln(sum_j mu_j e^u_j / A) normalized; of both signs if balanced."""
        xp, mu = namespace(u), self._mu(u)
        top = float(xp.max(xp.abs(u) if self.balanced else u))
        if not self.normalized or -1 < float(xp.min(u)) <= top < 1:  # all digits, however small u is
            half = xp.sinh(0.5 * _below(xp.abs(u))) if self.balanced else None
            grown = float(xp.sum(mu * (xp.expm1(_below(u)) if half is None else 4 * half * half)))
            return self._total(mu) * math.log1p(grown / self._total(mu)) if self.normalized else grown
        signed = [u, -u] if self.balanced else [u]
        total = self._total(mu)
        return total * (top + math.log(sum(float(xp.sum(mu * xp.exp(s - top))) for s in signed) / total))

    def conjugate_grad(self, u: Array) -> Array:
        """The exponentials of u, normalized or not; of u less those of -u if balanced."""
        parts = self._transfer(u)
        return parts[0] - parts[1] if self.balanced else parts[0]

    def conjugate_bend(self, u: Array, A: Array) -> Array:
        """A H A' for the derivative H of `conjugate_grad`: normalized, a covariance times the sum."""
        xp, parts = namespace(u), self._transfer(u)
        mean = A @ self.conjugate_grad(u) / self._total(self._mu(u)) if self.normalized else 0.0 * A[:, 0]
        halves = [(s * A - mean[:, None]) * xp.sqrt(part) for s, part in zip((1, -1), parts, strict=False)]
        return sum(half @ half.T for half in halves)

    def _transfer(self, u: Array) -> list[Array]:
        """w, or w+ and w- if balanced."""
        xp, mu = namespace(u), self._mu(u)
        signed = [u, -u] if self.balanced else [u]
        if not self.normalized:
            return [mu * xp.exp(_below(s)) for s in signed]
        top = max(float(xp.max(s)) for s in signed)
        parts = [mu * xp.exp(s - top) for s in signed]
        norm = self._total(mu) / sum(float(xp.sum(part)) for part in parts)
        return [norm * part for part in parts]

    def scale(self, cut: Cut, lam: float) -> float:
        """The best shrinkage, by a search along s."""
        return best_scale(self, cut, lam)


def _below(u: Array) -> Array:
    """U, or the largest exponent: beyond it nothing is a number, and no bound comes from there."""
    xp = namespace(u)
    return xp.minimum(u, 1.9 * largest_exponent(u) + 0.0 * u)


def _times_log(w: Array, mu: Array) -> Array:
    """W ln(w / mu), zero at w = 0."""
    xp = namespace(w)
    positive = w > 0
    return xp.where(positive, w * xp.log(xp.where(positive, w, mu) / mu), 0.0 * w)


# ---------------------------------------------------------------- pairs w+ - w- = w
def _pair_value(w: Array, mu: Array, tau: float) -> float:
    """The entropy of the pair with w+ w- = (tau mu)^2, which is the least for its sum."""
    xp = namespace(w)
    root = xp.sqrt(w * w + 4 * (tau * mu) ** 2)
    large = 0.5 * (xp.abs(w) + root)
    small = xp.where(large > 0, (tau * mu) ** 2 / xp.where(large > 0, large, mu), 0.0 * w)
    both = _times_log(large, mu) + _times_log(small, mu) - large - small + 2 * mu
    return max(float(xp.sum(both)), 0.0)


def _factor(w: Array, mu: Array, total: float) -> float | None:
    """The tau for which the pairs w+ w- = (tau mu)^2 have that total; None where |w|_1 is more."""
    xp = namespace(w)
    size = float(xp.sum(xp.abs(w)))
    if size >= total:
        return None if size > total * (1 + 1e-9) else 0.0
    tau = 0.0  # the sum of sqrt(w^2 + 4 mu^2 t) is concave in t = tau^2: Newton from the left is safe there
    for k in range(200):
        root = xp.sqrt(w * w + 4 * tau * mu * mu)
        lack = total - float(xp.sum(root))
        if k and lack <= 1e-15 * total:
            break
        tiny = 1e-12 * mu + 0.0 * w
        step = lack / float(xp.sum(2 * mu * mu / xp.maximum(root, tiny)))
        if tau and step <= 1e-16 * tau:
            break
        tau += step
    return math.sqrt(tau)


def _reach_of_norm(w: Array, d: Array, total: float) -> float:
    """How far |w + t d|_1 stays within the total: it is convex in t."""
    xp = namespace(w)
    speed = float(xp.sum(xp.abs(d)))
    if speed == 0:
        return math.inf
    lo, hi = 0.0, (total + float(xp.sum(xp.abs(w)))) / speed
    for _ in checking(range(100)):
        mid = 0.5 * (lo + hi)
        lo, hi = (mid, hi) if float(xp.sum(xp.abs(w + mid * d))) <= total else (lo, mid)
    return lo


# ---------------------------------------------------------------- proximal points
LEAST_LOG = -340.0
"""Of tau: its square is still a number."""


def _plain_prox(v: NDArray, mu: NDArray, step: float, shift: float) -> NDArray:
    """The w >= 0 with step ln(w / mu) + w = v - shift: Wright's omega function."""
    if step == 0:
        return np.maximum(v - shift, 0.0)
    return np.asarray(step * scipy("special").wrightomega((v - shift) / step + np.log(mu / step)))


def _pair_prox(v: NDArray, mu: NDArray, step: float, log_tau: float) -> NDArray:
    """The w with step asinh(w / (2 tau mu)) + w = v, by Newton's method from below, where it is concave."""
    if step == 0:
        return v
    half, size = mu * math.exp(log_tau), np.abs(v)
    # asinh(x) <= ln(2 x + 1), for which Wright's function has the root
    w = np.maximum(_plain_prox(size + half, half, step, 0.0) - half, 0.0)
    for _ in checking(range(100)):
        lack = size - step * np.arcsinh(w / (2 * half)) - w
        new = np.minimum(np.maximum(w + lack / (1 + step / np.sqrt(w * w + 4 * half * half)), w), size)
        if np.all(new - w <= 4e-16 * new):
            break
        w = new
    return np.sign(v) * w


def _with_total(reg: Entropy, v: NDArray, mu: NDArray, step: float) -> NDArray:
    """The proximal point whose sum is right, by bisection of its multiplier."""
    total = reg._total(mu)
    if not reg.balanced:
        return _with_sum(v, mu, total, step)
    lo, hi = LEAST_LOG, 0.0

    def excess(log_tau: float) -> float:
        w = _pair_prox(v, mu, step, log_tau)
        return float(np.sqrt(w * w + 4 * (mu * math.exp(log_tau)) ** 2).sum()) - total

    if excess(lo) > 0:  # one of each pair is all but zero: the other is that of the plain entropy
        return np.sign(v) * _with_sum(np.abs(v), mu, total, step)
    at = root(excess, lo, hi) if excess(hi) > 0 else hi
    return _pair_prox(v, mu, step, at)


def _with_sum(v: NDArray, mu: NDArray, total: float, step: float) -> NDArray:
    """The point of given sum among `_plain_prox(v, mu, step, shift)`: the same for v and v + constant."""
    v = v - v.max()
    if step == 0:  # exactly: the largest entries, less what makes their sum right
        top = -np.sort(-v)
        over = (np.cumsum(top) - total) / np.arange(1, len(v) + 1)
        shift = over[np.flatnonzero(top > over)[-1]]
        return np.asarray(np.maximum(v - shift, 0.0))
    spread = step * float(np.abs(np.log(mu / (total / len(v)))).max())
    # the largest entry alone may have the whole sum, or all of them the same part of it
    lo, hi = -total - spread - step * math.log(len(v)), spread

    def excess(shift: float) -> float:
        return float(_plain_prox(v, mu, step, shift).sum()) - total

    # the ends may be the root themselves, but for rounding
    at = root(excess, lo, hi) if excess(lo) > 0 > excess(hi) else hi
    w = _plain_prox(v, mu, step, at)
    return np.asarray(w * (total / w.sum()))
