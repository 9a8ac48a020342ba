"""Checks of a loss's convex conjugate and of its second derivatives, if it has them."""

from __future__ import annotations

import numpy as np

from riskmin.core import Array
from riskmin.losses.base import Loss
from riskmin.losses.conjugate import Conjugate
from riskmin.testing.base import Rng, close, require


def check_conjugate(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """Check that `conjugate` gives l*(u) = sup_z u z - l(z), infinite outside of its interval.

    The check is the Fenchel-Young inequality, l(z) + l*(u) >= u z, with equality at u = l'(z) and at the
    score z whose slope is u.
    """
    conjugate = loss.conjugate(y)
    if conjugate is None:
        return
    lower, upper = conjugate.lower, conjugate.upper
    require(
        lower.shape == upper.shape == z.shape, loss, "the domain of conjugate is not one interval per row"
    )
    contains_zero = np.all(lower <= 0) and np.all(upper >= 0)
    require(contains_zero, loss, "the domain of conjugate must hold lower <= 0 <= upper for every row")
    for scores in (z, 30 * z, 1e3 * np.sign(z), -1e3 * np.sign(z)):
        _check_at_slopes(loss, conjugate, scores, y)
    for _ in range(10):
        _check_inside(loss, conjugate, rng, y)
    _check_ends(loss, y, lower, upper)


def check_hessian(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """Check that `hessian` of a smooth loss is the derivative of dz, and weighted like dz."""
    copies = [a.copy() for a in (z, y, c)]
    hessian, h = loss.hessian(z, y, c), 1e-5
    if hessian is None:
        require(not (loss.smooth and loss.has_hessian), loss, "it is smooth, but its hessian returns None")
        return
    diagonal = not hessian.low_rank and not hessian.pair_blocks
    require(diagonal, loss, "the Hessian of a loss that is a sum over rows is not diagonal")
    curvature = hessian.diagonal
    same = all(np.array_equal(a, b) for a, b in zip(copies, (z, y, c), strict=True))
    require(same, loss, "hessian changes its inputs")
    require(
        curvature.shape == z.shape, loss, f"the curvature has shape {curvature.shape}, the scores {z.shape}"
    )
    require(np.all(curvature >= 0), loss, "the curvature is negative, so the loss is not convex")
    require(
        close(_curvature(loss, z, y, 3 * c), 3 * curvature, 1e-12, 0),
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
    require(_curvature(loss, *narrow).dtype == np.float32, loss, "the curvature is not of the scores' dtype")
    for far in (1e8, -1e8):
        require(
            np.all(np.isfinite(_curvature(loss, far + 0 * z, y, c))), loss, f"no finite curvature at {far:g}"
        )


def check_block_hessian(loss: Loss, rng: Rng, z: Array, y: Array, c: Array, mu: float = 0.0) -> None:
    """Check `block_hessian` of a multi-output loss against differences of dz, and its parts by products."""

    def gradient(scores: Array) -> Array:
        return loss.smoothed_value_grad(scores, y, c, mu)[1] if mu else loss.value_grad(scores, y, c)[1]

    H = loss.block_hessian(gradient(z), y, c, mu)
    if H is None:
        return
    (n, k), every = z.shape, slice(None)
    # the gradient of a smoothed loss may change its piece within a distance of order mu
    d, h = rng.standard_normal(z.shape), 1e-7 * min(mu or 1.0, 1.0)
    difference = (gradient(z + h * d) - gradient(z - h * d)) / (2 * h)
    size = 1e-5 * float(np.max(np.abs(difference)))
    same = close(H.product(d, every), difference, 1e-5, size)
    require(same, loss, f"block_hessian with mu = {mu:g} is not what differences of dz give")
    half = slice(n // 2, None)
    require(close(H.product(d[half], half), difference[half], 1e-5, size), loss, "block_hessian of some rows")
    blocks = np.stack([H.product(np.tile(e, (n, 1)), every) for e in np.eye(k)], axis=1)
    size = 1e-12 * float(np.max(c) / (mu or 1.0) + np.max(np.abs(blocks)))
    diagonal = close(H.diagonal, np.diagonal(blocks, axis1=1, axis2=2), 1e-9, size)
    require(diagonal, loss, "the diagonal of block_hessian is not that of its products")
    total = close(H.total(), blocks.sum(axis=0), 1e-9, n * size)
    require(total, loss, "the total of block_hessian is not the sum of its products")
    if H.factors is not None:
        rows, U = H.factors()
        sums = np.zeros_like(blocks)
        np.add.at(sums, rows, U[:, :, None] * U[:, None, :])
        require(close(sums, blocks, 1e-9, size), loss, "the factors of block_hessian are not its roots")


def _curvature(loss: Loss, z: Array, y: Array, c: Array) -> Array:
    hessian = loss.hessian(z, y, c)
    assert hessian is not None
    return hessian.diagonal


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


def _check_at_slopes(loss: Loss, conjugate: Conjugate, z: Array, y: Array) -> None:
    lower, upper = conjugate.lower, conjugate.upper
    value, u = _row_losses(loss, z, y)
    inside = np.all(u >= lower - 1e-12 * (1 + abs(u))) and np.all(u <= upper + 1e-12 * (1 + abs(u)))
    require(inside, loss, "the loss has a slope outside of the domain of its conjugate")
    u = np.minimum(np.maximum(u, lower), upper)
    _require_equal(loss, value + conjugate.value(u), u, z, value, "at a slope of the loss")


def _check_inside(loss: Loss, conjugate: Conjugate, rng: Rng, y: Array) -> None:
    u = _draw_inside(rng, conjugate.lower, conjugate.upper)
    # the score z with l'(z) = u is the derivative of the conjugate at u
    values, z = conjugate.value(u), conjugate.grad(u)
    require(np.all(np.isfinite(z)), loss, "the conjugate has no derivative inside of its domain")
    value = _row_losses(loss, z, y)[0]
    _require_equal(loss, value + values, u, z, value, "at the score whose slope is u")
    for scale in (1.0, 30.0):
        z = scale * rng.standard_normal(len(y))
        _require_above(loss, conjugate, u, z, y)


def _check_ends(loss: Loss, y: Array, lower: Array, upper: Array) -> None:
    """Check Fenchel-Young at the ends of the domain for scores up to 1e3, and +inf beyond the ends."""
    for end, out in ((lower, -0.1), (upper, 0.1)):
        rows = np.flatnonzero(np.isfinite(end))
        if not len(rows):
            continue
        u, labels = end[rows], y[rows]
        conjugate = loss.conjugate(labels)
        assert conjugate is not None
        for z in (-1e3, -1.0, 0.0, 1.0, 1e3):
            _require_above(loss, conjugate, u, np.full(len(rows), z), labels)
        nan = np.any(np.isnan(conjugate.grad(u)))
        require(not nan, loss, "the conjugate has NaN for a derivative at the end of its domain")
        beyond = conjugate.value(u + out)
        require(np.all(np.isinf(beyond)), loss, "the conjugate is not infinite outside of its domain")


def _require_equal(loss: Loss, total: Array, u: Array, z: Array, value: Array, where: str) -> None:
    wrong = ~(np.abs(total - u * z) <= 1e-9 * (1 + np.abs(u * z) + np.abs(value)))
    if np.any(wrong):
        i = int(np.argmax(wrong))
        failure = f"l(z) + l*(u) is {total[i]:.9g} {where}, but u z is {u[i] * z[i]:.9g} (u = {u[i]:.6g})"
        require(False, loss, f"by its conjugate, {failure}")


def _require_above(loss: Loss, conjugate: Conjugate, u: Array, z: Array, y: Array) -> None:
    value = _row_losses(loss, z, y)[0]
    holds = value + conjugate.value(u) >= u * z - 1e-9 * (1 + np.abs(u * z) + np.abs(value))
    require(np.all(holds), loss, "Fenchel-Young fails: l(z) + l*(u) < u z by its conjugate")
