"""Before a run: a loss is looked at on drawn scores, a risk at drawn points."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from riskmin.arrays import like, namespace
from riskmin.convexity.owner import is_foreign, is_own, named, parts, plain
from riskmin.convexity.scores import SECONDS, check_scores, exactness, rounding
from riskmin.executors.company import company_of
from riskmin.risk import Risk
from riskmin.structured.risk import MarginRisk
from riskmin.types import Array

STEPS = (0.1, 1.0, 10.0)
"""How far along the gradient a risk is looked at, relative to where its tangent is zero."""
AWAY = (0.01, 1.0, 100.0)
"""How far in two other directions, relative to the size of the start."""


def check(risk: Any, reg: Any, w0: Array) -> None:
    """Raise a ValueError where a loss or a risk of the user's own is seen not to be what bounds rest on.

    Examples
    --------
    >>> import numpy as np
    >>> from riskmin import L2, linear_risk
    >>> class Capped:
    ...     __module__, separable = "a_module_of_yours", True
    ...     def value_grad(self, z, y, c):
    ...         r = z - y
    ...         return c @ np.minimum(r * r, 4.0), 2 * c * r * (r * r < 4.0)
    >>> check(linear_risk(np.eye(2), [1.0, 2.0], Capped()), L2(), np.zeros(2))
    Traceback (most recent call last):
    ...
    ValueError: Capped is not convex: ...
    """
    if not is_foreign(risk) or _last() is risk:
        return
    inner = plain(risk)
    of_scores = isinstance(inner, Risk) and not getattr(inner.scorer, "shared", 0)
    with np.errstate(all="ignore"):
        if of_scores and not all(is_own(part) for part in parts(risk)):
            check_scores(next(type(part).__name__ for part in parts(risk) if not is_own(part)), inner)
        if not (is_own(risk) and (of_scores or isinstance(risk, MarginRisk))):
            _check_points(risk, reg, w0)
    _remember(risk)


def _remember(risk: Any) -> None:
    """The runs of a path are of one risk, which is looked at once."""
    global _last
    with contextlib.suppress(TypeError):  # some things cannot be referred to like that
        _last = weakref.ref(risk)


_last: Callable[[], Any] = lambda: None  # noqa: E731


def _check_points(risk: Any, reg: Any, w0: Array) -> None:
    """Look at a risk on lines from the start, as long as that takes little time."""
    name, company = named(risk), company_of(risk)
    seen: list[tuple[Array, float, Array]] = []
    value, grad = _ask(risk, w0)
    end = time.perf_counter() + SECONDS  # what is compiled is so by the first call
    if not (math.isfinite(value) and bool(namespace(grad).all(namespace(grad).isfinite(grad)))):
        what = f"{name} is {value:g}" if not math.isfinite(value) else f"the gradient of {name} is not finite"
        raise ValueError(f"{what} where the run starts: return finite numbers there, or give another w0")
    for w in _points(reg, w0, value, grad):
        if len(seen) > 2 and company.agree(lambda: time.perf_counter() > end):
            break
        value, grad = (value, grad) if w is w0 else _ask(risk, w)
        largest = max([abs(value), *(there for _, there, _ in seen)])
        if not math.isfinite(largest):  # far out; if the run comes there, it says so
            continue
        slack = rounding(grad, largest)
        if value < -slack:
            raise ValueError(f"{name} is {value:.4g} at a point: it must be >= 0, so add a constant")
        for v, there, slope in seen:
            _compare(name, (v, there, slope), (w, value), slack)
            _compare(name, (w, value, grad), (v, there), slack)
        seen.append((w, value, grad))


def _ask(risk: Any, w: Array) -> tuple[float, Array]:
    """R(w) and its gradient, if they are of the right kind."""
    try:
        value, grad = risk(w)
    except ArithmeticError:
        return math.inf, w
    if tuple(getattr(grad, "shape", ())) != tuple(w.shape):
        raise ValueError(
            f"the gradient of {named(risk)} has shape {tuple(getattr(grad, 'shape', ()))}, but w has "
            f"{tuple(w.shape)}: give a number for each weight"
        )
    return float(value), grad


def _points(reg: Any, w0: Array, value: float, grad: Array) -> Iterator[Array]:
    """The start, and points on lines from there, in the domain of the regularizer."""
    yield w0
    rng, size = np.random.default_rng(0), float(grad @ grad)
    lines = [(-value / size * grad, STEPS)] if size > 0 and value > 0 else []
    far = max(1.0, float(w0 @ w0) ** 0.5)
    for _ in range(2):
        d = rng.standard_normal(len(w0))
        lines.append((like(far / float(np.linalg.norm(d)) * d, w0), AWAY))
    for d, steps in lines:
        for t in steps:
            yield reg.prox(w0 + t * d, 0.0)


def _compare(name: str, at: tuple[Array, float, Array], there: tuple[Array, float], slack: float) -> None:
    """Raise a ValueError where a risk lies below its tangent at another point."""
    (w, value, grad), (v, other) = at, there
    each = grad * (v - w)
    rise, terms = float(namespace(each).sum(each)), float(namespace(each).sum(abs(each)))
    slack += 10 * exactness(grad) * (abs(value) + abs(other) + terms)
    if math.isfinite(rise) and value + rise - other > slack:
        raise ValueError(
            f"{name} is not convex, or its gradient is wrong: it is {other:.4g} at a point where its tangent "
            f"at another one has {value + rise:.4g}; a bound is true of convex risks only, so correct it"
        )
