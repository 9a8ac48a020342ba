"""Checks before a run: of a loss at random scores, and of a risk at random points."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from riskmin.arrays.namespace import array_shape, as_array_like, namespace
from riskmin.core import Array
from riskmin.executors.base import coordination_of
from riskmin.problem.convexity.scores import (
    CHECK_SECONDS,
    absolute_tolerance,
    check_scores,
    relative_tolerance,
)
from riskmin.problem.objective import describe, is_builtin, is_foreign, loss_components

GRADIENT_STEPS = (0.1, 1.0, 10.0)
"""Distances of test points along the negative gradient, in units of the step to where the tangent is zero."""
RANDOM_STEPS = (0.01, 1.0, 100.0)
"""Distances in two random directions, in units of max(1, |w0|)."""


def check(risk: Any, reg: Any, w0: Array) -> None:
    """Raise a ValueError if a user-defined loss, risk or regularizer violates what lower bounds rest on."""
    if not is_builtin(reg.penalized_part):
        _check_conjugate(reg.penalized_part, w0[: len(w0) - reg.n_unpenalized])
    given = risk.source
    if not is_foreign(risk) or _last() is given:
        return
    # a loss of scores is checked at random scores; any other user code is checked at random w
    has_score_loss = risk.linear_map is not None and not risk.linear_map.shared
    with np.errstate(all="ignore"):
        if has_score_loss and not all(is_builtin(part) for part in loss_components(risk)):
            check_scores(
                next(type(part).__name__ for part in loss_components(risk) if not is_builtin(part)), risk
            )
        if not (is_builtin(given) and (has_score_loss or risk.cuts_always_valid)):
            _check_points(risk, reg, w0)
    _remember(given)


def _check_conjugate(reg: Any, w0: Array) -> None:
    """Raise a ValueError if a regularizer and its conjugate violate the inequality of Fenchel and Young."""
    rng, name = np.random.default_rng(0), type(reg).__name__
    for size in RANDOM_STEPS:
        v, other = (as_array_like(size * rng.standard_normal(len(w0)), w0) for _ in range(2))
        p = reg.prox(v, 1.0)
        # v - p is a subgradient at p, where the inequality is an equation
        for w, u in ((p, v - p), (p, other), (v, other)):
            total, product = float(reg.value(w)) + float(reg.conjugate(u)), float(w @ u)
            slack = 10 * relative_tolerance(w) * (1 + abs(product) + float(namespace(w).sum(abs(w * u))))
            if total < product - slack:
                raise ValueError(
                    f"{name}.conjugate does not fit {name}.value: their sum at some u and w is {total:.6g}, "
                    f"below w @ u = {product:.6g}; let conjugate(u) be the largest u @ w - value(w)"
                )


def _remember(risk: Any) -> None:
    """Remember the risk: the runs of a path share one risk, which is checked once."""
    global _last
    with contextlib.suppress(TypeError):  # some objects allow no weak references
        _last = weakref.ref(risk)


_last: Callable[[], Any] = lambda: None  # noqa: E731


def _check_points(risk: Any, reg: Any, w0: Array) -> None:
    """Check a risk on lines from the start, within a time limit."""
    name, coordination = describe(risk), coordination_of(risk)
    evaluated: list[tuple[Array, float, Array]] = []
    value, grad = _evaluate(risk, w0)
    end = time.perf_counter() + CHECK_SECONDS  # after the first call, which may compile
    if not (math.isfinite(value) and bool(namespace(grad).all(namespace(grad).isfinite(grad)))):
        what = f"{name} is {value:g}" if not math.isfinite(value) else f"the gradient of {name} is not finite"
        raise ValueError(f"{what} where the run starts: return finite numbers there, or give another w0")
    for w in _points(reg, w0, value, grad):
        # all processes stop at the same point: the clock of the root decides
        if len(evaluated) > 2 and coordination.broadcast_from_root(lambda: time.perf_counter() > end):
            break
        value, grad = (value, grad) if w is w0 else _evaluate(risk, w)
        largest = max([abs(value), *(other for _, other, _ in evaluated)])
        if not math.isfinite(largest):  # overflow far from the start; a run that gets there reports it
            continue
        slack = absolute_tolerance(grad, largest)
        # R >= 0, and for every pair of points R(v) >= R(w) + g_w'(v - w), in both directions
        if value < -slack:
            raise ValueError(f"{name} is {value:.4g} at a point: it must be >= 0, so add a constant")
        for v, other, slope in evaluated:
            _compare(name, (v, other, slope), (w, value), slack)
            _compare(name, (w, value, grad), (v, other), slack)
        evaluated.append((w, value, grad))


def _evaluate(risk: Any, w: Array) -> tuple[float, Array]:
    """R(w) and its gradient, after checking their types and shapes; infinity on overflow."""
    try:
        value, grad, *_ = risk.source(w)
    except ArithmeticError:
        return math.inf, w
    if array_shape(grad) != tuple(w.shape):
        raise ValueError(
            f"the gradient of {describe(risk)} has shape {array_shape(grad)}, but w has "
            f"{tuple(w.shape)}: give one number per weight"
        )
    return float(value), grad


def _points(reg: Any, w0: Array, value: float, grad: Array) -> Iterator[Array]:
    """The start, and points on lines from it, projected to the domain of the regularizer."""
    yield w0
    # along the negative gradient; at t = 1 the tangent, R + t g'd with d = -R g / |g|^2, is zero
    rng, size = np.random.default_rng(0), float(grad @ grad)
    lines = [(-value / size * grad, GRADIENT_STEPS)] if size > 0 and value > 0 else []
    distance = max(1.0, float(w0 @ w0) ** 0.5)
    for _ in range(2):
        d = rng.standard_normal(len(w0))
        lines.append((as_array_like(distance / float(np.linalg.norm(d)) * d, w0), RANDOM_STEPS))
    for d, steps in lines:
        for t in steps:
            yield reg.prox(w0 + t * d, 0.0)


def _compare(
    name: str, point: tuple[Array, float, Array], other_point: tuple[Array, float], slack: float
) -> None:
    """Raise a ValueError if a risk lies below its tangent at another point, R(v) < R(w) + g'(v - w)."""
    (w, value, grad), (v, other) = point, other_point
    # g'(v - w), and the sum of its absolute terms, to which rounding errors are proportional
    products = grad * (v - w)
    rise, terms = float(namespace(products).sum(products)), float(namespace(products).sum(abs(products)))
    slack += 10 * relative_tolerance(grad) * (abs(value) + abs(other) + terms)
    if math.isfinite(rise) and value + rise - other > slack:
        raise ValueError(
            f"{name} is not convex, or its gradient is wrong: it is {other:.4g} at a point where its tangent "
            f"at another one has {value + rise:.4g}; a bound is true of convex risks only, so correct it"
        )
