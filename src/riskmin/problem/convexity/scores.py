r"""Checks of a loss at random scores: that it is finite, nonnegative and convex, with a correct gradient.

Scores are drawn on lines, for a sample of rows with their labels and weights. Between any two points of a
line the subgradient inequality must hold, :math:`l(u) \ge l(z) + g^\top (u - z)`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from riskmin.arrays.namespace import array_shape, as_array_like, namespace, to_numpy
from riskmin.core import Array, NDArray

LINE_DISTANCES = (0.01, 1.0, 100.0, 0.1, 10.0, 3.0, 30.0, 0.3, 0.03, 1e-4, 1e-6)
"""Distances from the middle of a line at which a loss is evaluated; the most informative ones first."""
PAIRED_DISTANCES = (0.01, 1.0, 0.1)
"""At these distances t, 1.001 t is evaluated, too: close pairs reveal slightly wrong slopes."""
CHECK_SECONDS = 0.25
"""Time limit for a slow loss; at least three points are evaluated."""


def relative_tolerance(a: Array) -> float:
    """Violations smaller than this, relative to the compared numbers, are attributed to rounding."""
    return 1e-7 if a.dtype.itemsize >= 8 else 1e-3


def absolute_tolerance(a: Array, largest: float) -> float:
    """The rounding error to expect of a risk that is nearly zero, if its largest value was `largest`."""
    return 1e-5 * relative_tolerance(a) * largest + 1e-7 * relative_tolerance(a)


class _Sample(NamedTuple):
    """Labels and weights of rows for which scores are drawn."""

    y: Array
    c: Array
    separable: bool
    """Whether the loss is a sum over rows, so that the slope of every single row must not decrease."""

    def where(self, z: NDArray) -> str:
        """A description of these scores for messages."""
        if z.size > 1:
            return f"at {z.size} scores of up to {np.max(np.abs(z)):.3g} in size"
        return f"at a score of {self.score(z.flat[0])}{self.label()}"

    def label(self, row: int = 0) -> str:
        """A description of the label of a row; numbers with few digits."""
        y = to_numpy(self.y)[row]
        return f" with y = {y:.4g}" if y.dtype.kind == "f" and y.ndim == 0 else f" with y = {y}"

    def score(self, z: float) -> str:
        """A score as text; relative to the label if it is close to it, to show digits that differ."""
        y = to_numpy(self.y)
        close = y.shape == (1,) and y.dtype.kind == "f" and abs(z - y[0]) < 0.1 * abs(y[0])
        return f"y {'-' if z < y[0] else '+'} {abs(z - y[0]):.4g}" if close else f"{z:.4g}"


class _LineEvaluations(NamedTuple):
    """Evaluations of a loss on a line: positions t, scores, values and gradients."""

    t: NDArray
    z: NDArray
    value: NDArray
    grad: NDArray
    slack: float
    """Tolerated rounding error of the values, from the sizes of their terms near the middle of the line."""


def check_scores(name: str, risk: Any) -> None:
    """Check the loss on lines through the scores of a sample of rows, with their labels and weights."""
    y, c = risk.labels
    rng, end = np.random.default_rng(0), math.inf
    width = (risk.linear_map.columns,) if risk.multi_output else ()
    for sample in _samples(risk.loss, y, c):
        for z0, d in _lines(rng, sample, width):
            if end == math.inf:  # the first call may compile: start the clock after it
                _evaluate(name, risk.loss, as_array_like(z0, sample.c), sample)
                end = time.perf_counter() + CHECK_SECONDS
            elif time.perf_counter() > end:
                return
            line = _evaluate_line(name, risk.loss, sample, z0, d, rng, end)
            if len(line.t) > 2:
                _check_line(name, sample, line, d)


def _samples(loss: Any, y: Array, c: Array) -> Iterator[_Sample]:
    """Samples of one and of several rows, if the loss is a sum over rows; otherwise all rows."""
    if not loss.separable or loss.chosen is not loss:
        yield _Sample(y, c, False)
        return
    labels, weights = to_numpy(y), to_numpy(c)
    rows = np.flatnonzero(weights > 0)
    if labels.ndim == 1 and labels.dtype.kind in "biuf":
        # the smallest and the largest label are always in the sample
        ends = [rows[np.argmin(labels[rows])], rows[np.argmax(labels[rows])]]
        # of more rows than this, a subset is sorted
        rows = np.unique([*rows[:: 1 + len(rows) // 4096], *ends])
        # sorted by label, so that evenly spaced rows include rare classes
        rows = rows[np.argsort(labels[rows], kind="stable")]
    # three rows are tested one by one, and 32 rows together
    single, joint = (rows[np.unique(np.linspace(0, len(rows) - 1, n_max).astype(int))] for n_max in (3, 32))
    for part in (*single[:, None], joint):
        # a sum of 1/2: with a weight of 1, a gradient that ignores the weights would pass
        normalized = weights[part] / (2 * weights[part].sum())
        yield _Sample(as_array_like(labels[part], y), as_array_like(normalized, c), True)


def _lines(rng: Any, sample: _Sample, width: tuple[int, ...]) -> Iterator[tuple[NDArray, NDArray]]:
    """Starts and directions of lines in the space of scores: around zero, and around labels."""
    shape = (*sample.c.shape, *width)
    d = rng.uniform(0.5, 1.5, shape) * rng.choice([-1.0, 1.0], shape)
    y = to_numpy(sample.y)
    has_targets = y.shape == shape and y.dtype.kind in "biuf" and not np.isin(y, (-1.0, 0.0, 1.0)).all()
    # around the targets, in steps of about 1 and of about their size
    if has_targets:
        y = y.astype(np.float64)
        yield y, d
        size = float(np.max(np.abs(y)))
        if size > 10:
            yield y, size * d
    if not has_targets or len(y) > 1:
        # around zero; |d_i| is between 0.5 and 1.5
        yield np.zeros(shape), d
    # losses that compare scores: random directions, also sparse ones, change their order
    if width or not sample.separable:
        yield rng.standard_normal(shape), rng.standard_normal(shape)
        yield 10 * rng.standard_normal(shape), rng.standard_normal(shape) * (rng.random(shape) < 0.3)


def _evaluate_line(
    name: str, loss: Any, sample: _Sample, z0: NDArray, d: NDArray, rng: Any, end: float
) -> _LineEvaluations:
    """Values and gradients along a line; points far out where values overflow are left out."""
    points: list[tuple[float, NDArray, float, NDArray]] = []
    origin, _ = _evaluate(name, loss, as_array_like(0.0 * d, sample.c), sample)
    # the value at zero scores is about the size of the terms that cancel near a label
    terms, limits = abs(origin) if math.isfinite(origin) else 0.0, _limits(sample)
    for size in LINE_DISTANCES:
        ts = (size, -size) * rng.uniform(0.7, 1.4, 2)
        for t in (*ts, *(1.001 * ts)) if size in PAIRED_DISTANCES else ts:
            # this many scores of a line are stored, at most
            if len(points) > 2 and (time.perf_counter() > end or len(points) * d.size > 2**23):
                break
            z = as_array_like(z0 + t * d, sample.c)
            scores = to_numpy(z).astype(np.float64)
            value, grad = _evaluate(name, loss, z, sample)
            # beyond the square root of the largest number, differences and products overflow
            if value > float(limits.max) ** 0.5 and np.max(np.abs(scores)) > 1:
                continue
            if not math.isfinite(value):
                raise ValueError(
                    f"{name} is {value:g} {sample.where(scores)}: it must be a finite number there"
                )
            if not np.isfinite(grad).all():
                raise ValueError(f"the gradient of {name} is not finite {sample.where(scores)}: it must be")
            if size <= 1:
                terms = max(terms, abs(value) + float(np.sum(np.abs(grad * scores))))
            points.append((t, scores, value, grad))
    # in the order of the line, for chords and slopes
    points.sort(key=lambda point: point[0])
    parts = [np.array([point[k] for point in points]) for k in range(4)]
    # the tolerated error of values, in units in the last place of the terms that they are sums of
    slack = 5000.0 * float(limits.eps) * (terms + _total(sample))
    return _LineEvaluations(parts[0], parts[1], parts[2], parts[3], slack)


def _limits(sample: _Sample) -> Any:
    """The floating-point limits (largest number, machine epsilon) of the scores' data type."""
    return namespace(sample.c).finfo(sample.c.dtype)


def _evaluate(name: str, loss: Any, z: Array, sample: _Sample) -> tuple[float, NDArray]:
    """Value and gradient, after checking their types and shapes; infinity if Python's numbers overflow."""
    shape, dtype = z.shape, z.dtype
    try:
        result = loss.value_grad(z, sample.y, sample.c)
    except ArithmeticError:
        return math.inf, np.empty(0)
    except Exception as error:
        if not sample.separable:
            raise
        raise ValueError(
            f"value_grad of {name} fails on {len(sample.c)} of the rows ({error}): a loss that is separable "
            "must take any of them; one that needs all rows must have separable = False"
        ) from error
    try:
        value, grad = result
    except (TypeError, ValueError):
        raise ValueError(
            f"value_grad of {name} must return two things, its value and its gradient in z"
        ) from None
    if array_shape(value):
        raise ValueError(
            f"value_grad of {name} returns values of shape {tuple(value.shape)}: add them up, c @ values"
        )
    kind = array_shape(grad), getattr(grad, "dtype", type(grad).__name__)
    if kind != (tuple(shape), dtype):
        raise ValueError(
            f"the gradient of {name} is of {kind[1]} and shape {kind[0]}, but the scores are of {dtype} and "
            f"shape {tuple(shape)}: give one number per score"
        )
    return float(value), to_numpy(grad).astype(np.float64)


def _check_line(name: str, sample: _Sample, line: _LineEvaluations, d: NDArray) -> None:
    """Raise a ValueError that names the violated property and the scores."""
    exact, slack = relative_tolerance(sample.c), line.slack
    t, v, size = line.t, line.value, np.abs(line.value)
    low = int(np.argmin(v))
    if v[low] < -slack:
        raise ValueError(
            f"{name} is {v[low] / _total(sample):.4g} {sample.where(line.z[low])}: a loss must be >= 0, "
            "since a bound of the risk rests on that; add a constant"
        )
    # if the values alone are convex, the gradient is wrong: so values are checked first
    fraction = np.diff(t)[1:] / (t[2:] - t[:-2])
    # linear interpolation between the neighbors: l(z_k) must not be above it
    chord = fraction * v[:-2] + (1 - fraction) * v[2:]
    excess_over_chord = v[1:-1] - chord - slack - exact * (size[1:-1] + size[:-2] + size[2:])
    if np.max(excess_over_chord) > 0:
        k = int(np.argmax(excess_over_chord))
        raise ValueError(_not_convex(name, sample, line.z[k : k + 3], v[k : k + 3], float(chord[k])))
    gradients = line.grad.reshape(len(t), -1)
    differences = (line.z - line.z[len(t) // 2]).reshape(len(t), -1)
    inner = gradients @ differences.T  # entry (a, b): g_a'(z_b - z_mid), less g_a'(z_a - z_mid) below
    rise = inner - np.diag(inner)[:, None]
    # the sizes of the products in rise, which may cancel
    terms = (np.abs(gradients) @ np.abs(d).ravel())[:, None] * np.abs(t[None, :] - t[:, None])
    # R(z_a) + g_a'(z_b - z_a) - R(z_b) must be <= 0 for all pairs of points
    excess = v[:, None] + rise - v[None, :] - slack - exact * (size[:, None] + size[None, :] + terms)
    if np.max(excess) > 0:
        a, b = np.unravel_index(int(np.argmax(excess)), excess.shape)
        raise ValueError(_wrong_slope(name, sample, line.z[[a, b]], v[[a, b]], float(v[a] + rise[a, b])))
    if sample.separable:
        _check_slopes(name, sample, line, d, exact)


def _total(sample: _Sample) -> float:
    """The total weight of the rows, by which losses are divided in messages."""
    return float(to_numpy(sample.c).sum())


def _not_convex(name: str, sample: _Sample, z: NDArray, v: NDArray, chord: float) -> str:
    """The message for a value above the chord between its neighbors."""
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


def _wrong_slope(name: str, sample: _Sample, z: NDArray, v: NDArray, tangent: float) -> str:
    """The message for a value below the tangent at another point."""
    v, tangent = v / _total(sample), tangent / _total(sample)
    return (
        f"the gradient of {name} is wrong, or it is not convex: {sample.where(z[1])} it is {v[1]:.4g}, but "
        f"its tangent {sample.where(z[0])}, where it is {v[0]:.4g}, has {tangent:.4g} there; value_grad must "
        "return the gradient in z of the sum of c_i l(z_i, y_i), with the c_i in it (see riskmin.check_loss)"
    )


def _check_slopes(name: str, sample: _Sample, line: _LineEvaluations, d: NDArray, exact: float) -> None:
    """Raise a ValueError if the slope of a row decreases along the line."""
    # the derivative of each row along the line, summed over its outputs
    slopes = (line.grad * d).reshape(*line.grad.shape[:2], -1).sum(axis=2)
    # rounding errors are relative to the slopes near the middle, even where a slope is almost zero
    nearby = np.max(np.abs(slopes[np.abs(line.t) < 2]), axis=0, initial=0.0)
    size = np.abs(slopes)
    fall = slopes[:-1] - slopes[1:] - exact * (size[:-1] + size[1:] + nearby)
    if np.max(fall) <= 0:
        return
    k, row = np.unravel_index(int(np.argmax(fall)), fall.shape)
    c = to_numpy(sample.c)[row]
    raise ValueError(
        f"{name} is not convex, or its gradient is wrong: its slope in a row{sample.label(int(row))} falls "
        f"from {slopes[k, row] / c:.4g} to {slopes[k + 1, row] / c:.4g} on a line from scores of "
        f"{line.z[k, row].round(4)} to {line.z[k + 1, row].round(4)}; "
        "no bound would be true, so use a convex loss, such as Huber or Hinge (see riskmin.check_loss)"
    )
