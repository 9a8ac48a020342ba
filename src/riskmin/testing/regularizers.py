"""Checks of the contract of regularizers."""

from __future__ import annotations

import math

import numpy as np

from riskmin.core import Array, Cut
from riskmin.regularizers.base import Regularizer
from riskmin.regularizers.from_conjugate import as_regularizer
from riskmin.testing.base import close, require


def check_regularizer(reg: Regularizer, dim: int = 9, seed: int = 0, n_cases: int = 30) -> None:
    """Check that a regularizer, its prox, its conjugate and its shrinkage of cuts are consistent.

    Each is checked by a property that characterizes it: the prox by the three-point inequality, the
    conjugate by Fenchel-Young with equality, `conjugate_hessian_product` by differences of the conjugate's
    gradient, `reach` by the ends of the domain, `scale` by the best of a grid and of its neighbours, and the
    resulting lower bound by values of the objective. Points of the domain are drawn by the prox.

    Parameters
    ----------
    reg : Regularizer
        The regularizer to check. If its conjugate has no unique gradient, `conjugate_grad` may raise a
        TypeError.
    dim : int
        The dimension of w.
    seed : int
        The seed of the random cases.
    n_cases : int
        The number of random cases.

    Raises
    ------
    AssertionError
        Names the property that fails.

    Examples
    --------
    >>> from riskmin.regularizers import L2
    >>> check_regularizer(L2())
    """
    reg, rng = as_regularizer(reg), np.random.default_rng(seed)
    for _ in range(n_cases):
        # points of the domain are proximal points of random vectors
        v, far = 3 * rng.standard_normal((2, dim))
        step, v_copy = float(10 ** rng.uniform(-2, 1)), v.copy()
        p, w = reg.prox(v, step), reg.prox(far, 1.0)
        require(np.array_equal(v, v_copy), reg, "prox changes its argument")
        require(math.isfinite(reg.value(p)), reg, "value(prox(v, step)) is not finite")
        _check_domain(reg, far, p, w)
        points = [far, w, *(p + t * (w - p) for t in (-1e-2, -1e-4, 1e-4, 1e-2))]
        _check_subgradient(reg, p, (v - p) / step, points, f"prox(v, {step:g}) is not the minimizer")
        if reg.smooth:
            _check_subgradient(reg, p, reg.grad(p), points, "grad is not the gradient of value")
        _check_conjugate(reg, v, (v - p) / step, p, far)
        _check_conjugate_hessian(reg, v, rng.standard_normal((3, dim)))
        _check_line(reg, p, w - p, float(rng.uniform(0.1, 0.9)))
        cut, lam = Cut(rng.standard_normal(dim), float(rng.normal())), float(10 ** rng.uniform(-2, 1))
        _check_bound(reg, cut, lam, [p, w])


def _check_subgradient(reg: Regularizer, p: Array, g: Array, points: list[Array], wrong: str) -> None:
    """Check Omega(u) >= Omega(p) + g @ (u - p) + m |u - p|^2 / 2 with the modulus m of strong convexity.

    With g = (v - p) / step it is the prox's three-point inequality. Distant points reveal a lack of
    convexity, near ones small errors of g.
    """
    m = reg.strong_convexity(p)
    for u in points:
        value, bound = reg.value(u), reg.value(p) + float((g + m / 2 * (u - p)) @ (u - p))
        require(value >= bound - 1e-9 * (1 + abs(bound)), reg, f"{wrong}: {value:.9g} < {bound:.9g}")


def _check_domain(reg: Regularizer, v: Array, p: Array, w: Array) -> None:
    """Check that prox(v, 0) projects onto the domain, and that reach is the distance to its boundary."""
    projection = reg.prox(v, 0.0)
    require(math.isfinite(reg.value(projection)), reg, "prox(v, 0) is not in the domain")
    for u in (p, w):  # the angle at the projection onto a convex set is obtuse
        product = float((v - projection) @ (u - projection))
        nearest = product <= 1e-9 * (1 + float(v @ v))
        require(nearest, reg, "prox(v, 0) is not the nearest point of the domain")
    convex = reg.reach(p, w - p) >= 1 - 1e-9
    require(convex, reg, "by reach, w + t d leaves a convex domain between two of its points")
    for d in (0.5 * (w - p), p - w):
        t = reg.reach(p, d)
        require(t >= 0, reg, f"reach is {t}, which is not a distance")
        # an infinite reach is tested at 1e3
        inside = min((1 - 1e-9) * t, 1e3)
        require(
            math.isfinite(reg.value(p + inside * d)), reg, f"reach is {t:.9g}, but the domain ends before"
        )
        if t < 1e3 and float(abs(d).max()) > 1e-3:
            beyond = reg.value(p + (1.001 * t + 1e-3) * d)
            require(math.isinf(beyond), reg, f"reach is {t:.9g}, but the domain goes on")


def _check_conjugate_hessian(reg: Regularizer, u: Array, A: Array) -> None:
    """Check `conjugate_hessian_product` against differences of conjugate_grad, and `inverse_metric_product`.

    H = A (d conjugate_grad / du) A' is compared with differences where conjugate_grad is differentiable.
    """
    try:
        x = reg.conjugate_grad(u)
    except TypeError:
        return
    if reg.quadratic:
        same = close(reg.inverse_metric_product(A, u), A @ x, 1e-9, 1e-9)
        require(same, reg, "inverse_metric_product(A, u) is not A @ conjugate_grad(u)")
        linear = close(reg.conjugate_grad(-2 * u), -2 * x, 1e-9, 1e-9)
        require(linear, reg, "it has inverse_metric_product, but conjugate_grad is not linear")
    if not reg.has_conjugate_hessian:
        return
    H, h = reg.conjugate_hessian_product(u, A), 1e-6
    wrong = f"conjugate_hessian_product has shape {H.shape} for {len(A)} rows"
    require(H.shape == (len(A), len(A)), reg, wrong)
    for k, a in enumerate(A):
        before, after = (A @ reg.conjugate_grad(u + t * a) for t in (-h, h))
        left, right = (A @ x - before) / h, (after - A @ x) / h
        tol = 1e-3 * (1 + float(np.max(np.abs(H))))
        if np.max(np.abs(left - right)) > tol:  # not differentiable within h, so no derivative to compare
            continue
        # (f(u + h a) - f(u - h a)) / (2 h)
        central = (left + right) / 2
        wrong = f"conjugate_hessian_product gives {H[:, k]}, but differences of conjugate_grad {central}"
        require(np.max(np.abs(central - H[:, k])) <= tol, reg, wrong)


def _check_conjugate(reg: Regularizer, v: Array, g: Array, p: Array, w: Array) -> None:
    """Check Fenchel-Young, with equality for the subgradient g at p, and at conjugate_grad."""
    for u in (v, g):
        below = float(w @ u)
        holds = reg.value(w) + reg.conjugate(u) >= below - 1e-9 * (1 + abs(below))
        require(holds, reg, "Fenchel-Young fails: value(w) + conjugate(u) < w @ u")
    # if the conjugate is an indicator, rounding may push g out of its domain: evaluate just inside
    total, product = reg.value(p) + reg.conjugate((1 - 1e-10) * g), float(p @ g)
    equal = close(total, product, 1e-7, 1e-7)
    require(
        equal, reg, f"value(p) + conjugate(g) is {total:.9g} for g in its subdifferential at p, not p @ g"
    )
    for u in (v, g):
        conjugate = reg.conjugate(u)
        try:
            x = reg.conjugate_grad(u)
        except TypeError:  # the conjugate has no unique gradient
            return
        attained = float(u @ x) - reg.value(x)
        equal = not math.isfinite(conjugate) or close(attained, conjugate, 1e-7, 1e-7)
        require(equal, reg, f"conjugate(u) is {conjugate:.9g}, but conjugate_grad(u) gives {attained:.9g}")


def _check_line(reg: Regularizer, w: Array, d: Array, t: float) -> None:
    """Check value and slope of t -> Omega(w + t d) as returned by `line`."""
    line, h = reg.line(w, d), 1e-6
    value, slope = line(0.0)
    require(close(value, reg.value(w), 1e-9, 1e-9), reg, f"line gives {value:.9g} at 0, not value(w)")
    for s in (1e-3, 1.0):  # at a nonsmooth point any subgradient is allowed: the tangent must stay below
        ahead, bound = reg.value(w + s * d), value + s * slope
        holds = ahead >= bound - 1e-9 * (1 + abs(bound))
        require(holds, reg, f"line gives the slope {slope:.9g} at 0, too much")
    (value, slope), direct = line(t), reg.value(w + t * d)
    require(close(value, direct, 1e-9, 1e-9), reg, f"line gives {value:.9g}, value(w + t d) is {direct:.9g}")
    difference = (reg.value(w + (t + h) * d) - reg.value(w + (t - h) * d)) / (2 * h)
    near = close(slope, difference, 1e-4, 1e-6 * (1 + abs(direct)))
    require(near, reg, f"line gives the slope {slope:.9g}, but differences give {difference:.9g}")


def _check_bound(reg: Regularizer, cut: Cut, lam: float, points: list[Array]) -> None:
    """Check that `scale` is the best shrinkage s of the cut (a, b), and that `bound` is valid, and that of s.

    It is s b - lam Omega*(-s a / lam) <= max(0, a @ w + b) + lam Omega(w) for every w.
    """

    def bound(s: float) -> float:
        return s * cut.b - lam * reg.conjugate(-s / lam * cut.a)

    s = reg.scale(cut, lam)
    require(0 <= s <= 1, reg, f"scale gives {s}, which is not in [0, 1]")
    # the bound is concave in s: if one is better, so is one beside s
    others = [*np.linspace(0, 1, 11), *np.clip([s - 1e-2, s - 1e-3, s + 1e-3, s + 1e-2], 0, 1)]
    best, lower = max(bound(float(t)) for t in others), bound(s)
    good = lower >= best - 1e-7 * (1 + abs(best))
    require(good, reg, f"scale gives s = {s:.9g} and the bound {lower:.9g}, but another s gives {best:.9g}")
    own = reg.bound(cut, lam)
    same = close(own, lower, 1e-9, 1e-12 * (abs(cut.b) + lam))
    require(same, reg, f"bound gives {own:.9g}, but the s of scale gives {lower:.9g}")
    for w in points:
        above = max(0.0, float(cut.a @ w) + cut.b) + lam * reg.value(w)
        valid = lower <= above + 1e-9 * (1 + abs(above))
        require(valid, reg, f"the lower bound {lower:.9g} exceeds the objective {above:.9g}")
