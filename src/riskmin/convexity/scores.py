r"""A loss on drawn scores: is it finite, nonnegative and convex, and is its gradient one?

Scores are drawn on lines, for some rows with the labels and weights that they have. Between any two points
of a line the subgradient inequality must hold, :math:`l(u) \ge l(z) + g^\top (u - z)`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays import like, namespace, to_numpy
from riskmin.losses.queries import ByQuery
from riskmin.types import Array, NDArray

SIZES = (0.01, 1.0, 100.0, 0.1, 10.0, 3.0, 30.0, 0.3, 0.03, 1e-4, 1e-6)
"""How far from the middle of a line it is looked at; the most telling distances first."""
ROWS, SINGLE = 32, 3
"""So many rows are drawn together, and so many each by itself."""
TWICE, APART = (0.01, 1.0, 0.1), 1.001
"""At these distances two points are close to each other: they tell of slopes that are a little wrong."""
ROUNDING = 5000.0
"""Values may err by so many units in the last place of the terms that they are made of."""
SECONDS = 0.25
"""A slow loss is looked at for so long, and at three points at least."""
LARGEST = 2**23
"""So many scores of a line are kept at most."""
MANY = 4096
"""From more rows than this, some are taken first."""


def exactness(a: Array) -> float:
    """Violations that are smaller than this, relative to the numbers compared, are taken for rounding.

    Examples
    --------
    >>> import numpy as np
    >>> exactness(np.ones(1)), exactness(np.ones(1, dtype=np.float32))
    (1e-07, 0.001)
    """
    return 1e-7 if getattr(getattr(a, "dtype", None), "itemsize", 8) >= 8 else 1e-3


def rounding(a: Array, largest: float) -> float:
    """What rounding may do to a risk that has all but vanished, where it was that large elsewhere.

    Examples
    --------
    >>> import numpy as np
    >>> rounding(np.ones(1), 1.0) < 1e-11
    True
    """
    return 1e-5 * exactness(a) * largest + 1e-7 * exactness(a)


class _Sample(NamedTuple):
    """Rows to draw scores for."""

    y: Array
    c: Array
    each: bool
    """Whether the loss is a sum over rows, so that the slope of each must rise by itself."""

    def where(self, z: NDArray) -> str:
        """These scores, in words."""
        if z.size > 1:
            return f"at {z.size} scores of up to {np.max(np.abs(z)):.3g} in size"
        return f"at a score of {self.score(z.flat[0])}{self.label()}"

    def label(self, row: int = 0) -> str:
        """The label of a row, in words: few digits of a number."""
        y = _numbers(self.y)[row]
        return f" with y = {y:.4g}" if y.dtype.kind == "f" and y.ndim == 0 else f" with y = {y}"

    def score(self, z: float) -> str:
        """A score as text, by its distance to the label where that is what can be told apart."""
        y = _numbers(self.y)
        near = y.shape == (1,) and y.dtype.kind == "f" and abs(z - y[0]) < 0.1 * abs(y[0])
        return f"y {'-' if z < y[0] else '+'} {abs(z - y[0]):.4g}" if near else f"{z:.4g}"


class _Seen(NamedTuple):
    """What was seen of a loss on a line: scores, values and gradients."""

    t: NDArray
    z: NDArray
    value: NDArray
    grad: NDArray
    slack: float
    """What rounding may do to values, by the terms that they are made of near the middle."""


def _numbers(a: Array) -> NDArray:
    """Labels or weights in NumPy."""
    return to_numpy(a) if hasattr(a, "__dlpack__") else np.asarray(a)


def check_scores(name: str, risk: Any) -> None:
    """Look at the loss on lines through the scores of some rows, with the labels and weights they have."""
    y, c = risk.labels
    rng, end = np.random.default_rng(0), math.inf
    width = (risk.scorer.columns,) if risk.many else ()
    for sample in _samples(risk.loss, y, c):
        for z0, d in _lines(rng, sample, width):
            if end == math.inf:  # what is compiled is so by the first call
                _look(name, risk.loss, like(z0, sample.c), sample)
                end = time.perf_counter() + SECONDS
            elif time.perf_counter() > end:
                return
            seen = _seen(name, risk.loss, sample, z0, d, rng, end)
            if len(seen.t) > 2:
                _judge(name, sample, seen, d)


def _samples(loss: Any, y: Array, c: Array) -> Iterator[_Sample]:
    """Some rows together and some by themselves, where the loss is a sum over rows; else all of them."""
    if not loss.separable or isinstance(loss, ByQuery):
        yield _Sample(y, c, False)
        return
    labels, weights = _numbers(y), _numbers(c)
    rows = np.flatnonzero(weights > 0)
    if labels.ndim == 1 and labels.dtype.kind in "biuf":
        ends = [rows[np.argmin(labels[rows])], rows[np.argmax(labels[rows])]]
        rows = np.unique([*rows[:: 1 + len(rows) // MANY], *ends])
        rows = rows[np.argsort(labels[rows], kind="stable")]  # so that a rare class is among them
    few, some = (rows[np.unique(np.linspace(0, len(rows) - 1, most).astype(int))] for most in (SINGLE, ROWS))
    for part in (*few[:, None], some):
        share = weights[part] / (2 * weights[part].sum())  # with a weight of one, no slope could miss it
        yield _Sample(like(labels[part], y), like(share, c), True)


def _lines(rng: Any, sample: _Sample, width: tuple[int, ...]) -> Iterator[tuple[NDArray, NDArray]]:
    """Starts and directions of lines in the space of scores: around zero, and around labels."""
    shape = (*sample.c.shape, *width)
    d = rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
    y = _numbers(sample.y)
    around = y.shape == shape and y.dtype.kind in "biuf" and not np.isin(y, (-1.0, 0.0, 1.0)).all()
    if around:
        y = y.astype(np.float64)
        yield y, d
        size = float(np.max(np.abs(y)))
        if size > 10:
            yield y, size * d
    if not around or len(y) > 1:
        yield np.zeros(shape), d
    if width or not sample.each:
        yield rng.standard_normal(shape), rng.standard_normal(shape)
        yield 10 * rng.standard_normal(shape), rng.standard_normal(shape) * (rng.random(shape) < 0.3)


def _seen(name: str, loss: Any, sample: _Sample, z0: NDArray, d: NDArray, rng: Any, end: float) -> _Seen:
    """Values and gradients along a line; those that overflow far out are left out."""
    found: list[tuple[float, NDArray, float, NDArray]] = []
    origin, _ = _look(name, loss, like(0.0 * d, sample.c), sample)
    # of about this size are terms that cancel near a label
    terms, limits = abs(origin) if math.isfinite(origin) else 0.0, _limits(sample)
    for size in SIZES:
        ts = (size, -size) * rng.uniform(0.7, 1.4, 2)
        for t in (*ts, *(APART * ts)) if size in TWICE else ts:
            if len(found) > 2 and (time.perf_counter() > end or len(found) * d.size > LARGEST):
                break
            z = like(z0 + t * d, sample.c)
            at = _numbers(z).astype(np.float64)
            value, grad = _look(name, loss, z, sample)
            if value > float(limits.max) ** 0.5 and np.max(np.abs(at)) > 1:
                continue
            if not math.isfinite(value):
                raise ValueError(f"{name} is {value:g} {sample.where(at)}: it must be a finite number there")
            if not np.isfinite(grad).all():
                raise ValueError(f"the gradient of {name} is not finite {sample.where(at)}: it must be")
            if size <= 1:
                terms = max(terms, abs(value) + float(np.sum(np.abs(grad * at))))
            found.append((t, at, value, grad))
    found.sort(key=lambda one: one[0])
    parts = [np.array([one[k] for one in found]) for k in range(4)]
    return _Seen(
        parts[0], parts[1], parts[2], parts[3], ROUNDING * float(limits.eps) * (terms + _total(sample))
    )


def _limits(sample: _Sample) -> Any:
    """The largest number of the scores' kind, and the distance from one to the next."""
    return namespace(sample.c).finfo(sample.c.dtype)


def _look(name: str, loss: Any, z: Array, sample: _Sample) -> tuple[float, NDArray]:
    """Value and gradient, if they are of the right kind; infinity where Python's numbers overflow."""
    shape, dtype = z.shape, z.dtype
    try:
        found = loss.value_grad(z, sample.y, sample.c)
    except ArithmeticError:
        return math.inf, np.empty(0)
    except Exception as error:
        if not sample.each:
            raise
        raise ValueError(
            f"value_grad of {name} fails on {len(sample.c)} of the rows ({error}): a loss that is separable "
            "must take any of them, and one that needs all says separable = False"
        ) from error
    if not (isinstance(found, (tuple, list)) and len(found) == 2):
        raise ValueError(f"value_grad of {name} must return two things, its value and its gradient in z")
    value, grad = found
    if tuple(getattr(value, "shape", ())):
        raise ValueError(
            f"value_grad of {name} returns values of shape {tuple(value.shape)}: add them up, c @ values"
        )
    said = tuple(getattr(grad, "shape", ())), getattr(grad, "dtype", type(grad).__name__)
    if said != (tuple(shape), dtype):
        raise ValueError(
            f"the gradient of {name} is of {said[1]} and shape {said[0]}, but the scores are of {dtype} and "
            f"shape {tuple(shape)}: give a number for each of them"
        )
    return float(value), _numbers(grad).astype(np.float64)


def _judge(name: str, sample: _Sample, seen: _Seen, d: NDArray) -> None:
    """Raise a ValueError that names the property which fails, and where."""
    exact, slack = exactness(sample.c), seen.slack
    t, v, size = seen.t, seen.value, np.abs(seen.value)
    low = int(np.argmin(v))
    if v[low] < -slack:
        raise ValueError(
            f"{name} is {v[low] / _total(sample):.4g} {sample.where(seen.z[low])}: a loss must be >= 0, "
            "since a bound of the risk rests on that; add a constant"
        )
    # where the values alone are convex, it is the gradient that is wrong
    share = np.diff(t)[1:] / (t[2:] - t[:-2])
    chord = share * v[:-2] + (1 - share) * v[2:]
    above = v[1:-1] - chord - slack - exact * (size[1:-1] + size[:-2] + size[2:])
    if np.max(above) > 0:
        k = int(np.argmax(above))
        raise ValueError(_not_convex(name, sample, seen.z[k : k + 3], v[k : k + 3], float(chord[k])))
    flat = seen.grad.reshape(len(t), -1)
    moved = (seen.z - seen.z[len(t) // 2]).reshape(len(t), -1)
    inner = flat @ moved.T  # row a, column b: g_a (z_b - z_a), but for what is g_a z_a
    rise = inner - np.diag(inner)[:, None]
    terms = (np.abs(flat) @ np.abs(d).ravel())[:, None] * np.abs(t[None, :] - t[:, None])
    over = v[:, None] + rise - v[None, :] - slack - exact * (size[:, None] + size[None, :] + terms)
    if np.max(over) > 0:
        a, b = np.unravel_index(int(np.argmax(over)), over.shape)
        raise ValueError(_wrong_slope(name, sample, seen.z[[a, b]], v[[a, b]], float(v[a] + rise[a, b])))
    if sample.each:
        _check_slopes(name, sample, seen, d, exact)


def _total(sample: _Sample) -> float:
    """What to divide by for the mean loss of these rows."""
    return float(_numbers(sample.c).sum())


def _not_convex(name: str, sample: _Sample, z: NDArray, v: NDArray, chord: float) -> str:
    v, chord = v / _total(sample), chord / _total(sample)
    if z[0].size == 1:
        a, b, c = (sample.score(one) for one in np.ravel(z))
        where = (
            f"it is {v[0]:.4g}, {v[1]:.4g} and {v[2]:.4g} at the scores {a}, {b} and {c}{sample.label()}, "
            f"where the middle one could be {chord:.4g} at most"
        )
    else:
        where = (
            f"{sample.where(z[1])} it is {v[1]:.4g}, above the {chord:.4g} that its values on a line through "
            "them allow"
        )
    return (
        f"{name} is not convex: {where}; no bound would be true, so use a convex loss, such as Huber or Hinge"
    )


def _wrong_slope(name: str, sample: _Sample, z: NDArray, v: NDArray, least: float) -> str:
    v, least = v / _total(sample), least / _total(sample)
    return (
        f"the gradient of {name} is wrong, or it is not convex: {sample.where(z[1])} it is {v[1]:.4g}, but "
        f"its tangent {sample.where(z[0])}, where it is {v[0]:.4g}, has {least:.4g} there; value_grad must "
        "return the gradient in z of the sum of c_i l(z_i, y_i), with the c_i in it (see riskmin.check_loss)"
    )


def _check_slopes(name: str, sample: _Sample, seen: _Seen, d: NDArray, exact: float) -> None:
    """The slope of each row must not fall along the line."""
    slopes = (seen.grad * d).reshape(*seen.grad.shape[:2], -1).sum(axis=2)
    near = np.max(np.abs(slopes[np.abs(seen.t) < 2]), axis=0, initial=0.0)
    size = np.abs(slopes)
    fall = slopes[:-1] - slopes[1:] - exact * (size[:-1] + size[1:] + near)
    if np.max(fall) <= 0:
        return
    k, row = np.unravel_index(int(np.argmax(fall)), fall.shape)
    c = _numbers(sample.c)[row]
    raise ValueError(
        f"{name} is not convex, or its gradient is wrong: its slope in a row{sample.label(int(row))} falls "
        f"from {slopes[k, row] / c:.4g} to {slopes[k + 1, row] / c:.4g} on a line from scores of "
        f"{seen.z[k, row].round(4)} to {seen.z[k + 1, row].round(4)}; "
        "no bound would be true, so use a convex loss, such as Huber or Hinge (see riskmin.check_loss)"
    )
