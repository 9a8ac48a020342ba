"""The contract of regularizers."""

from __future__ import annotations

import math

import numpy as np

from riskmin.testing.base import close, require
from riskmin.types import Array, CurvedConjugate, Cut, Euclidean, Regularizer, Smooth


def check_regularizer(reg: Regularizer, dim: int = 9, seed: int = 0) -> None:
    """Check that a regularizer, its prox, its conjugate and its shrinkage belong together.

    The checks are properties that single each of them out: the three-point inequality for the prox,
    Fenchel-Young with equality for the conjugate, differences of its gradient for `conjugate_bend`, the ends
    of the domain for `reach`, the best of a grid for the shrinkage, and the lower bound that all of them
    serve. Points of the domain are drawn by the prox.

    Parameters
    ----------
    reg : Regularizer
        The regularizer to check. Where its conjugate has no unique gradient, `conjugate_grad` may raise a
        TypeError.
    dim : int
        The dimension of w.
    seed : int
        The seed of the random cases.

    Raises
    ------
    AssertionError
        Names the property that fails.

    Examples
    --------
    >>> from riskmin.regularizers import L2
    >>> check_regularizer(L2())
    """
    rng = np.random.default_rng(seed)
    for _ in range(30):
        v, far = 3 * rng.standard_normal((2, dim))
        step, kept = float(10 ** rng.uniform(-2, 1)), v.copy()
        p, w = reg.prox(v, step), reg.prox(far, 1.0)
        require(np.array_equal(v, kept), reg, "prox changes its argument")
        require(math.isfinite(reg.value(p)), reg, "value(prox(v, step)) is not finite")
        _check_domain(reg, far, p, w)
        points = [far, w, *(p + t * (w - p) for t in (-1e-2, -1e-4, 1e-4, 1e-2))]
        _check_subgradient(reg, p, (v - p) / step, points, f"prox(v, {step:g}) is not the minimizer")
        if isinstance(reg, Smooth):
            _check_subgradient(reg, p, reg.grad(p), points, "grad is not the gradient of value")
        _check_conjugate(reg, v, (v - p) / step, p, far)
        _check_bend(reg, v, rng.standard_normal((3, dim)))
        _check_line(reg, p, w - p, float(rng.uniform(0.1, 0.9)))
        cut, lam = Cut(rng.standard_normal(dim), float(rng.normal())), float(10 ** rng.uniform(-2, 1))
        _check_bound(reg, cut, lam, [p, w])


def _check_subgradient(reg: Regularizer, p: Array, g: Array, points: list[Array], wrong: str) -> None:
    """Omega(u) >= Omega(p) + g @ (u - p): for g = (v - p) / step, the three-point inequality of the prox.

    Far points show a want of convexity, near ones the smallest fault of g.
    """
    for u in points:
        there, bound = reg.value(u), reg.value(p) + float(g @ (u - p))
        require(there >= bound - 1e-9 * (1 + abs(bound)), reg, f"{wrong}: {there:.9g} < {bound:.9g}")


def _check_domain(reg: Regularizer, v: Array, p: Array, w: Array) -> None:
    """prox(v, 0) is the nearest point of the domain, and reach tells how far the domain goes."""
    near = reg.prox(v, 0.0)
    require(math.isfinite(reg.value(near)), reg, "prox(v, 0) is not in the domain")
    for u in (p, w):  # the angle is obtuse at the nearest point of a convex set
        angle = float((v - near) @ (u - near))
        require(angle <= 1e-9 * (1 + float(v @ v)), reg, "prox(v, 0) is not the nearest point of the domain")
    between = reg.reach(p, w - p) >= 1 - 1e-9
    require(between, reg, "reach says that w + t d leaves a convex domain between two points")
    for d in (0.5 * (w - p), p - w):
        t = reg.reach(p, d)
        require(t >= 0, reg, f"reach is {t}, which is not a distance")
        inside = min((1 - 1e-9) * t, 1e3)
        require(
            math.isfinite(reg.value(p + inside * d)), reg, f"reach is {t:.9g}, but the domain ends before"
        )
        if t < 1e3 and float(abs(d).max()) > 1e-3:
            beyond = reg.value(p + (1.001 * t + 1e-3) * d)
            require(math.isinf(beyond), reg, f"reach is {t:.9g}, but the domain goes on")


def _check_bend(reg: Regularizer, u: Array, A: Array) -> None:
    """`conjugate_bend` is the derivative of conjugate_grad, where it has one; `gram` its inner products."""
    try:
        x = reg.conjugate_grad(u)
    except TypeError:
        return
    if isinstance(reg, Euclidean):
        same = close(reg.gram(A, u), A @ x, 1e-9, 1e-9)
        require(same, reg, "gram(A, u) is not A @ conjugate_grad(u)")
        linear = close(reg.conjugate_grad(-2 * u), -2 * x, 1e-9, 1e-9)
        require(linear, reg, "it has a gram, but conjugate_grad is not linear")
    if not isinstance(reg, CurvedConjugate):
        return
    bend, h = reg.conjugate_bend(u, A), 1e-6
    require(bend.shape == (len(A), len(A)), reg, f"conjugate_bend has shape {bend.shape} for {len(A)} rows")
    for k, a in enumerate(A):
        before, after = (A @ reg.conjugate_grad(u + t * a) for t in (-h, h))
        left, right = (A @ x - before) / h, (after - A @ x) / h
        size = 1e-3 * (1 + float(np.max(np.abs(bend))))
        if np.max(np.abs(left - right)) > size:  # a kink, or nearly one
            continue
        wrong = f"conjugate_bend gives {bend[:, k]}, but differences of conjugate_grad {(left + right) / 2}"
        require(np.max(np.abs((left + right) / 2 - bend[:, k])) <= size, reg, wrong)


def _check_conjugate(reg: Regularizer, v: Array, g: Array, p: Array, w: Array) -> None:
    """Fenchel-Young, with equality for the subgradient g at p, and at conjugate_grad."""
    for u in (v, g):
        below = float(w @ u)
        holds = reg.value(w) + reg.conjugate(u) >= below - 1e-9 * (1 + abs(below))
        require(holds, reg, "Fenchel-Young fails: value(w) + conjugate(u) < w @ u")
    # just inside: where the conjugate is an indicator, rounding may push g out of its domain
    total, product = reg.value(p) + reg.conjugate((1 - 1e-10) * g), float(p @ g)
    equal = close(total, product, 1e-7, 1e-7)
    require(
        equal, reg, f"value(p) + conjugate(g) is {total:.9g} for g in its subdifferential at p, not p @ g"
    )
    for u in (v, g):
        conjugate = reg.conjugate(u)
        try:
            x = reg.conjugate_grad(u)
        except TypeError:  # the conjugate has no unique gradient, and says so
            return
        attained = float(u @ x) - reg.value(x)
        equal = not math.isfinite(conjugate) or close(attained, conjugate, 1e-7, 1e-7)
        require(equal, reg, f"conjugate(u) is {conjugate:.9g}, but conjugate_grad(u) gives {attained:.9g}")


def _check_line(reg: Regularizer, w: Array, d: Array, t: float) -> None:
    line, h = reg.line(w, d), 1e-6
    value, slope = line(0.0)
    require(close(value, reg.value(w), 1e-9, 1e-9), reg, f"line gives {value:.9g} at 0, not value(w)")
    for s in (1e-3, 1.0):  # whatever slope it gives where there is a kink, the tangent stays below
        there, bound = reg.value(w + s * d), value + s * slope
        require(
            there >= bound - 1e-9 * (1 + abs(bound)), reg, f"line gives the slope {slope:.9g} at 0, too much"
        )
    (value, slope), direct = line(t), reg.value(w + t * d)
    require(close(value, direct, 1e-9, 1e-9), reg, f"line gives {value:.9g}, value(w + t d) is {direct:.9g}")
    difference = (reg.value(w + (t + h) * d) - reg.value(w + (t - h) * d)) / (2 * h)
    near = close(slope, difference, 1e-4, 1e-6 * (1 + abs(direct)))
    require(near, reg, f"line gives the slope {slope:.9g}, but differences give {difference:.9g}")


def _check_bound(reg: Regularizer, cut: Cut, lam: float, points: list[Array]) -> None:
    """`scale` is the best shrinkage of the cut, and what it gives bounds max(0, a @ w + b) + lam Omega(w)."""

    def bound(s: float) -> float:
        return s * cut.b - lam * reg.conjugate(-s / lam * cut.a)

    s = reg.scale(cut, lam)
    require(0 <= s <= 1, reg, f"scale gives {s}, which is not in [0, 1]")
    best, lower = max(bound(float(t)) for t in np.linspace(0, 1, 101)), bound(s)
    good = lower >= best - 1e-7 * (1 + abs(best))
    require(good, reg, f"scale gives s = {s:.9g} and the bound {lower:.9g}, but another s gives {best:.9g}")
    for w in points:
        above = max(0.0, float(cut.a @ w) + cut.b) + lam * reg.value(w)
        valid = lower <= above + 1e-9 * (1 + abs(above))
        require(valid, reg, f"the lower bound {lower:.9g} exceeds the objective {above:.9g}")
