"""The contract of losses."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from riskmin.testing.base import Rng, close, require
from riskmin.testing.duals import check_conjugate, check_curvature
from riskmin.testing.smoothing import check_soft
from riskmin.types import Array, ChecksLabels, HasValues, Loss

Labels: TypeAlias = Callable[[Rng, int], Array]


def _signs(rng: Rng, n: int) -> Array:
    return rng.permutation(np.where(np.arange(n) < 0.4 * n, 1.0, -1.0))


def _reals(rng: Rng, n: int) -> Array:
    return 2 * rng.standard_normal(n)


def _counts(rng: Rng, n: int) -> Array:
    return rng.poisson(2.0, n).astype(float)


def _grades(rng: Rng, n: int) -> Array:
    return rng.permutation(np.arange(n) % 4.0)


def _queries(rng: Rng, n: int) -> Array:
    """Grades, and beside them the numbers of the queries, whose rows are not together."""
    p = rng.permutation(n)
    return np.column_stack([np.arange(n) // 5 % 4.0, np.arange(n) % 5.0])[p]


def check_loss(
    loss: Loss, *, seed: int = 0, labels: Labels | None = None, columns: int | None = None
) -> None:
    """Check that a loss is what solvers take it for.

    It must be nonnegative and convex with a right subgradient, keep dtypes and inputs, stay finite at
    scores of +-1e8, and not care for the order of the rows. Where it says that it is separable, the weights
    must count as repeated rows do, and the parts of any split must add up. Where it says that it is
    invariant, a number added to all scores must change nothing. Where it has them, `values` must be the loss
    of each row, `dual` and `conjugate` its conjugate, `curvature` the derivative of dz, and `soft` a smooth
    loss below, of which each tangent, raised by its lift, is below the loss itself, and `bend` its second
    derivatives. Losses that are no sum over rows may refuse rows of different weights with a ValueError: then
    all weigh the same.

    Parameters
    ----------
    loss : Loss
        The loss to check.
    seed : int
        The seed of the random cases.
    labels : callable, optional
        ``labels(rng, n)`` draws n labels; by default signs, real numbers, counts or grades, whichever
        `loss.task` and `loss.check_labels` ask for, and for rankings two columns, grades and query numbers.
    columns : int, optional
        The number of scores a row has, where that is not a single one.

    Raises
    ------
    AssertionError
        Names the property that fails.

    Examples
    --------
    >>> from riskmin.losses import Hinge
    >>> check_loss(Hinge())
    """
    rng = np.random.default_rng(seed)
    labels = labels or _labels(loss)
    counts = not loss.separable and _counts_rows(loss, labels(rng, 40), columns)

    def draw(scale: float, n: int = 40) -> tuple[Array, Array, Array]:
        z = scale * rng.standard_normal(n if columns is None else (n, columns))
        c = np.ones(n) if counts else rng.uniform(0.5, 1.5, n)
        return z, labels(rng, n), c / np.sum(c)

    with np.errstate(over="raise", divide="raise", invalid="raise"):
        for scale in (1e-3, 1.0, 30.0):
            for _ in range(10):
                _check_minorant(loss, rng, *draw(scale))
        _check_derivative(loss, rng, *draw(1.0))
        for digits in (0, 12):  # many equal scores, and none
            z, y, c = draw(1.0)
            _check_order(loss, rng, np.round(z, digits), y, c, ties=not digits)
        _check_dtypes(loss, rng, *draw(1.0))
        if getattr(loss, "invariant", False):
            _check_shift(loss, *draw(1.0))
        if loss.separable:
            _check_weights(loss, rng, *draw(1.0))
            _check_splits(loss, rng, *draw(1.0))
            _check_values(loss, *draw(1.0))
        if loss.separable and columns is None:
            try:
                check_conjugate(loss, rng, *draw(1.0))
                check_curvature(loss, rng, *draw(1.0))
            except FloatingPointError as error:
                raise AssertionError(f"{loss!r}: {error} in its conjugate or its curvature") from error
        if columns is None:
            try:
                check_soft(loss, rng, *draw(1.0))
            except FloatingPointError as error:
                raise AssertionError(f"{loss!r}: {error} in its smoothed form") from error


def _labels(loss: Loss) -> Labels:
    """The first kind of labels of the loss's task that the loss takes."""
    task = getattr(loss, "task", "classification")
    choices = {
        "classification": [_signs],
        "regression": [_reals, _counts],
        "novelty": [_reals],
        "ordinal": [_grades],
        "ranking": [_queries],
    }
    for choice in choices.get(task, []):
        try:
            if isinstance(loss, ChecksLabels):
                loss.check_labels(choice(np.random.default_rng(0), 40))
            return choice
        except ValueError:
            continue
    raise AssertionError(f"{loss!r}: takes none of the usual labels; pass check_loss labels=...")


def _counts_rows(loss: Loss, y: Array, columns: int | None) -> bool:
    """Whether the loss refuses rows of different weights."""
    n = len(y)
    z, c = np.zeros(n if columns is None else (n, columns)), np.arange(1.0, n + 1)
    try:
        loss.value_grad(z, y, c / np.sum(c))
    except ValueError:
        return True
    return False


def _evaluate(loss: Loss, z: Array, y: Array, c: Array) -> tuple[float, Array]:
    """value_grad, which must return finite numbers of z's dtype and shape, and leave its inputs alone."""
    kept = [np.array(a, copy=True) for a in (z, y, c)]
    try:
        value, dz = loss.value_grad(z, y, c)
    except FloatingPointError as error:
        raise AssertionError(f"{loss!r}: {error} for {z.dtype} scores up to {np.max(np.abs(z)):g}") from error
    where = f"for {z.dtype} scores up to {np.max(np.abs(z)):g}"
    same = all(np.array_equal(a, b) for a, b in zip(kept, (z, y, c), strict=True))
    require(same, loss, "value_grad changes its inputs")
    require(np.isfinite(float(value)), loss, f"the value is {float(value)} {where}")
    require(np.all(np.isfinite(dz)), loss, f"the subgradient is not finite {where}")
    require(dz.shape == z.shape, loss, f"the subgradient has shape {dz.shape}, the scores {z.shape}")
    require(dz.dtype == z.dtype, loss, f"the subgradient is of {dz.dtype}, the scores of {z.dtype}")
    return float(value), dz


def _check_minorant(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """R(u) >= R(z) + g @ (u - z) for all u: convexity and a right subgradient in one, smooth or not."""
    value, g = _evaluate(loss, z, y, c)
    require(value >= -1e-12, loss, f"the value {value:g} is negative")
    for step in (1e-2, 1.0, 50.0):
        u = z + step * rng.standard_normal(z.shape)
        there, line = _evaluate(loss, u, y, c)[0], g * (u - z)
        rounding = 1e-12 * (1 + there + value + np.sum(np.abs(line)))
        bound = value + np.sum(line)
        wrong = f"it is {there:.9g} where its tangent is {bound:.9g}, {step:g} from scores of {np.std(z):.2g}"
        require(there >= bound - rounding, loss, f"{wrong}; it is not convex, or dz is wrong")


def _check_derivative(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """Along random directions, g @ d is the slope: a random point is no kink, so that it is the only one."""
    h = 1e-6
    value, g = _evaluate(loss, z, y, c)
    for _ in range(5):
        d = rng.standard_normal(z.shape)
        before, after = _evaluate(loss, z - h * d, y, c)[0], _evaluate(loss, z + h * d, y, c)[0]
        slope, rounding = np.sum(g * d), 1e-8 * (1 + value)
        left, central, right = (value - before) / h, (after - before) / (2 * h), (after - value) / h
        wrong = f"dz gives the slope {slope:.9g}, but differences give"
        between = left - rounding <= slope <= right + rounding
        require(between, loss, f"{wrong} {left:.9g} on one side and {right:.9g} on the other")
        near = abs(central - slope) <= rounding + 1e-4 * np.sum(np.abs(g * d))
        require(near, loss, f"{wrong} {central:.9g}")


def _check_order(loss: Loss, rng: Rng, z: Array, y: Array, c: Array, ties: bool) -> None:
    p = rng.permutation(len(z))
    (value, g), (other, h) = _evaluate(loss, z, y, c), _evaluate(loss, z[p], y[p], c[p])
    require(close(other, value, 1e-12, 1e-12), loss, f"the order of the rows matters: {value} and {other}")
    if ties and not loss.separable:  # which of equal scores has the slope is for the loss to say
        return
    require(close(h, g[p], 1e-12, 1e-14), loss, "dz does not follow the order of the rows")


def _check_shift(loss: Loss, z: Array, y: Array, c: Array) -> None:
    """A number added to all scores changes nothing, and so the slopes have no sum."""
    (value, g), (other, _) = _evaluate(loss, z, y, c), _evaluate(loss, z + 3.0, y, c)
    same = close(other, value, 1e-12, 1e-12) and close(np.sum(g), 0.0, 0, 1e-12)
    require(same, loss, f"it says that it is invariant, but it is {value} and, 3 added to all, {other}")


def _check_dtypes(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """float32 agrees with float64 within rounding, and both are finite at extreme scores."""
    narrow = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in (z, y, c)]
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in narrow]
    (value, g), (other, h) = _evaluate(loss, *wide), _evaluate(loss, *narrow)
    require(close(other, value, 1e-3, 1e-5), loss, f"the value is {value} in float64, {other} in float32")
    require(close(h, g, 1e-3, 1e-3 * np.max(np.abs(g))), loss, "dz differs between float64 and float32")
    for z64, y64, c64 in (wide, narrow):
        for far in (1e8 * np.sign(z64), np.full_like(z64, 1e8), np.full_like(z64, -1e8)):
            _evaluate(loss, far, y64, c64)


def _check_weights(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """A weight of k is k rows of weight one, and none for 0; a common factor comes out."""
    value, g = _evaluate(loss, z, y, c)
    scaled, h = _evaluate(loss, z, y, 3 * c)
    same = close(scaled, 3 * value, 1e-12, 1e-12) and close(h, 3 * g, 1e-12, 1e-14)
    require(same, loss, "three times the weights do not give three times the value and dz")
    times = rng.integers(0, 4, len(z))
    rows = np.repeat(np.arange(len(z)), times)
    value, g = _evaluate(loss, z, y, times * c)
    repeated, h = _evaluate(loss, z[rows], y[rows], c[rows])
    total = np.zeros_like(g)
    np.add.at(total, rows, h)
    same = close(repeated, value, 1e-12, 1e-12) and close(total, g, 1e-12, 1e-14)
    require(same, loss, "integer weights do not count as repeated rows")


def _check_splits(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    value, g = _evaluate(loss, z, y, c)
    ends = [0, *sorted(rng.choice(np.arange(1, len(z)), 3, replace=False)), len(z)]
    parts = [slice(i, j) for i, j in pairwise(ends)]
    values, gs = zip(*(_evaluate(loss, z[p], y[p], c[p]) for p in parts), strict=True)
    same = close(sum(values), value, 1e-12, 1e-12) and close(np.concatenate(gs), g, 1e-12, 1e-14)
    require(same, loss, "it says that it is separable, but its parts do not add up to the whole")


def _check_values(loss: Loss, z: Array, y: Array, c: Array) -> None:
    """`values`, where the loss has it, is what the weights weigh."""
    if not isinstance(loss, HasValues):
        return
    values, one = loss.values(z, y), np.ones(1)
    require(values.shape == y.shape, loss, f"values has shape {values.shape}, the labels {y.shape}")
    for i in range(len(z)):
        value = float(loss.value_grad(z[i : i + 1], y[i : i + 1], one)[0])
        same = close(values[i], value, 1e-9, 1e-12)
        require(same, loss, f"values gives {values[i]:.9g} for a row whose loss is {value:.9g}")
