"""Checks of a loss's convex conjugate and of its curvature, if it has them."""

from __future__ import annotations

import numpy as np

from riskmin.core import Array, HasConjugate, HasCurvature, Loss
from riskmin.losses.conjugate import conjugate_of, interval_conjugate_of
from riskmin.testing.base import Rng, close, require

INTERVAL = "interval_conjugate"
"""The form of a conjugate that is linear-quadratic on an interval, by the name of the loss's method."""


def check_conjugate(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """Check that `interval_conjugate` and `conjugate` are l*(u) = sup_z u z - l(z), +inf off their domain.

    The check is the Fenchel-Young inequality, l(z) + l*(u) >= u z, with equality at u = l'(z) and at the
    score z whose slope is u.
    """
    forms = [form for form in (INTERVAL, "conjugate") if _has(loss, form, y)]
    for form in forms:
        lower, upper = _domain(loss, form, y)
        require(
            lower.shape == upper.shape == y.shape, loss, f"the domain of {form} is not one interval per row"
        )
        # l is bounded below by 0, so l*(0) = -inf_z l(z) is finite
        contains_zero = np.all(lower <= 0) and np.all(upper >= 0)
        require(contains_zero, loss, f"the domain of {form} must hold lower <= 0 <= upper for every row")
        # moderate scores, scores in the tails, and scores far out on both sides
        for scores in (z, 30 * z, 1e3 * np.sign(z), -1e3 * np.sign(z)):
            _check_at_slopes(loss, form, scores, y, lower, upper)
        for _ in range(10):
            _check_inside(loss, form, rng, y, np.maximum(lower, -3.0), np.minimum(upper, 3.0))
        _check_ends(loss, form, y, lower, upper)
    # a loss may offer both forms, which must agree
    if len(forms) == 2:
        u = _draw_inside(rng, *_domain(loss, INTERVAL, y))
        same = close(_conjugate(loss, INTERVAL, u, y), _conjugate(loss, "conjugate", u, y), 1e-10, 1e-12)
        require(same, loss, f"{INTERVAL} and conjugate differ")


def check_curvature(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """Check that `curvature` is the derivative of dz where dz is differentiable, and weighted like dz."""
    if not isinstance(loss, HasCurvature):
        return
    copies = [a.copy() for a in (z, y, c)]
    curvature, h = loss.curvature(z, y, c), 1e-5
    same = all(np.array_equal(a, b) for a, b in zip(copies, (z, y, c), strict=True))
    require(same, loss, "curvature changes its inputs")
    require(
        curvature.shape == z.shape, loss, f"the curvature has shape {curvature.shape}, the scores {z.shape}"
    )
    require(np.all(curvature >= 0), loss, "the curvature is negative, so the loss is not convex")
    require(
        close(loss.curvature(z, y, 3 * c), 3 * curvature, 1e-12, 0),
        loss,
        "the curvature does not scale with the weights",
    )
    # one-sided and central differences of dz; where the two sides agree, dz is differentiable
    before, middle, after = (loss.value_grad(point, y, c)[1] for point in (z - h, z, z + h))
    left, right, central = (middle - before) / h, (after - middle) / h, (after - before) / (2 * h)
    size = c + np.abs(central)
    smooth = np.abs(left - right) <= 1e-3 * size
    require(np.mean(smooth) > 0.5, loss, "it has a curvature, but dz has no derivative")
    wrong = np.flatnonzero(smooth & (np.abs(curvature - central) > 1e-3 * np.abs(central) + 1e-5 * c))
    if len(wrong):
        i = wrong[0]
        failure = (
            f"the curvature is {curvature[i]:.6g} at z = {z[i]:.6g}, "
            f"but differences of dz give {central[i]:.6g}"
        )
        require(False, loss, failure)
    # the dtype of the scores is preserved
    narrow = [a.astype(np.float32) for a in (z, y, c)]
    require(loss.curvature(*narrow).dtype == np.float32, loss, "the curvature is not of the scores' dtype")
    for far in (1e8, -1e8):
        require(
            np.all(np.isfinite(loss.curvature(far + 0 * z, y, c))), loss, f"no finite curvature at {far:g}"
        )


# ---------------------------------------------------------------- the two forms of a conjugate
def _has(loss: Loss, form: str, y: Array) -> bool:
    return interval_conjugate_of(loss, y) is not None if form == INTERVAL else isinstance(loss, HasConjugate)


def _domain(loss: Loss, form: str, y: Array) -> tuple[Array, Array]:
    if form == INTERVAL:
        dual = interval_conjugate_of(loss, y)
        assert dual is not None
        return dual.lower, dual.upper
    assert isinstance(loss, HasConjugate)
    return loss.conjugate_domain(y)


def _conjugate(loss: Loss, form: str, u: Array, y: Array) -> Array:
    if form == INTERVAL:
        return conjugate_of(loss, u, y)  # uses the interval conjugate if the loss has one
    assert isinstance(loss, HasConjugate)
    return loss.conjugate(u, y)


def _best_score(loss: Loss, form: str, u: Array, y: Array) -> Array:
    """The score z with l'(z) = u, which is the derivative of the conjugate at u."""
    if form == INTERVAL:
        dual = interval_conjugate_of(loss, y)
        assert dual is not None
        # derivative of l*(u) = shift u + epsilon |u| + square u^2 / 2
        return dual.shift + dual.epsilon * np.sign(u) + dual.square * u
    assert isinstance(loss, HasConjugate)
    return loss.conjugate_grad(u, y)


# ---------------------------------------------------------------- the properties
def _row_losses(loss: Loss, z: Array, y: Array) -> tuple[Array, Array]:
    """The loss and its derivative for each row, evaluated row by row with weight one."""
    one = np.ones(1)
    evaluations = [loss.value_grad(z[i : i + 1], y[i : i + 1], one) for i in range(len(z))]
    return np.array([float(v) for v, _ in evaluations]), np.concatenate([g for _, g in evaluations])


def _draw_inside(rng: Rng, lower: Array, upper: Array) -> Array:
    """Draw u uniformly from the interior of [lower, upper], clipped to [-3, 3]."""
    lower, upper = np.maximum(lower, -3.0), np.minimum(upper, 3.0)
    return lower + rng.uniform(0.001, 0.999, len(lower)) * (upper - lower)


def _check_at_slopes(loss: Loss, form: str, z: Array, y: Array, lower: Array, upper: Array) -> None:
    value, u = _row_losses(loss, z, y)
    inside = np.all(u >= lower - 1e-12 * (1 + abs(u))) and np.all(u <= upper + 1e-12 * (1 + abs(u)))
    require(inside, loss, f"the loss has a slope outside of the domain of its {form}")
    # at an end of the domain, rounding may leave it
    u = np.minimum(np.maximum(u, lower), upper)
    total = value + _conjugate(loss, form, u, y)
    _require_equal(loss, form, total, u, z, value, "at a slope of the loss")


def _check_inside(loss: Loss, form: str, rng: Rng, y: Array, lower: Array, upper: Array) -> None:
    u = _draw_inside(rng, lower, upper)
    conjugate, z = _conjugate(loss, form, u, y), _best_score(loss, form, u, y)
    require(np.all(np.isfinite(z)), loss, f"{form} has no derivative inside of its domain")
    value = _row_losses(loss, z, y)[0]
    _require_equal(loss, form, value + conjugate, u, z, value, "at the score whose slope is u")
    for scale in (1.0, 30.0):
        z = scale * rng.standard_normal(len(y))
        _require_above(loss, form, u, z, y)


def _check_ends(loss: Loss, form: str, y: Array, lower: Array, upper: Array) -> None:
    """Check Fenchel-Young at the ends of the domain for scores up to 1e3, and +inf beyond the ends."""
    for end, out in ((lower, -0.1), (upper, 0.1)):
        rows = np.flatnonzero(np.isfinite(end))
        if not len(rows):
            continue
        u, labels = end[rows], y[rows]
        for z in (-1e3, -1.0, 0.0, 1.0, 1e3):
            _require_above(loss, form, u, np.full(len(rows), z), labels)
        score = _best_score(loss, form, u, labels)
        require(
            not np.any(np.isnan(score)), loss, f"{form} has NaN for a derivative at the end of its domain"
        )
        beyond = _conjugate(loss, form, u + out, labels)
        require(np.all(np.isinf(beyond)), loss, f"{form} is not infinite outside of its domain")


def _require_equal(loss: Loss, form: str, total: Array, u: Array, z: Array, value: Array, where: str) -> None:
    wrong = ~(np.abs(total - u * z) <= 1e-9 * (1 + np.abs(u * z) + np.abs(value)))
    if np.any(wrong):
        i = int(np.argmax(wrong))
        failure = f"l(z) + l*(u) is {total[i]:.9g} {where}, but u z is {u[i] * z[i]:.9g} (u = {u[i]:.6g})"
        require(False, loss, f"by {form}, {failure}")


def _require_above(loss: Loss, form: str, u: Array, z: Array, y: Array) -> None:
    value, conjugate = _row_losses(loss, z, y)[0], _conjugate(loss, form, u, y)
    holds = value + conjugate >= u * z - 1e-9 * (1 + np.abs(u * z) + np.abs(value))
    require(np.all(holds), loss, f"Fenchel-Young fails: l(z) + l*(u) < u z by {form}")
