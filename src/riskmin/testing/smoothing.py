"""Checks of a loss's smoothed form, if it has one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from riskmin.core import Array
from riskmin.losses.base import Loss
from riskmin.losses.hessian import hessian_product
from riskmin.testing.base import Rng, close, require
from riskmin.testing.cases import LossCase
from riskmin.testing.conjugates import check_block_hessian

CHECKED_MUS = (1e-3, 0.1, 1.0, 30.0)
"""Smoothing parameters mu for which the smoothed form is checked."""


def check_smoothed_loss(loss: Loss, rng: Rng, case: LossCase) -> None:
    """Check that `smoothed_value_grad` is a smooth minorant whose raised tangents are cuts of the loss.

    A tangent is raised by its minorant offset. If the loss has `hessian`, it must be the derivative of the
    smoothed gradient. Losses that take a smoothing center are checked with one, too; if the center is a
    subgradient of the loss at the given scores, the smoothed loss equals the loss there.
    """
    z, y, c = case
    if not loss.can_be_smoothed:
        return
    has_center = loss.supports_center
    centers = (
        [None, _smoothed(loss, z + rng.standard_normal(z.shape), y, c, 0.5)[1]] if has_center else [None]
    )
    for center in centers:
        for mu in CHECKED_MUS:
            for scale in (0.1, 1.0, 30.0):
                _check_minorants(loss, rng, scale * z, y, c, mu, center)
            _check_gradient(loss, rng, z, y, c, mu, center)
        _check_mu(loss, z, y, c, center)
    _check_arrays(loss, rng, case)
    if has_center:
        value, g = loss.value_grad(z, y, c)
        for mu in CHECKED_MUS:
            smoothed, _, offset = _smoothed(loss, z, y, c, mu, g)
            same = close(smoothed, value, 1e-9, 1e-9) and close(offset, 0.0, 0, 1e-9)
            wrong = (
                f"smoothed around its own multipliers, it is {float(smoothed):.9g} and not {float(value):.9g}"
            )
            require(same, loss, wrong)
    for center in centers:
        for mu in CHECKED_MUS:
            _check_hessian(loss, rng, z, y, c, mu, center)


def _smoothed(
    loss: Loss, z: Array, y: Array, c: Array, mu: float, center: Array | None = None
) -> tuple[Any, Array, Any]:
    """Call `smoothed_value_grad`, which need not take a center."""
    return loss.smoothed_value_grad(z, y, c, mu, *(() if center is None else (center,)))


def _check_minorants(
    loss: Loss, rng: Rng, z: Array, y: Array, c: Array, mu: float, center: Array | None
) -> None:
    """Check that the tangent is a cut of the smoothed loss and, raised by its offset, of the loss itself."""
    value, g, offset = _smoothed(loss, z, y, c, mu, center)
    where = f"at mu = {mu:g}{'' if center is None else ', with a center'}"
    require(offset >= -1e-12, loss, f"the minorant offset {float(offset):g} is negative {where}")
    # step 0 compares values at z itself
    for step in (0.0, 1e-2, 1.0, 50.0):
        u = z + step * rng.standard_normal(z.shape)
        line = g * (u - z)
        true = float(loss.value_grad(u, y, c)[0])
        smooth = float(_smoothed(loss, u, y, c, mu, center)[0])
        rounding = 1e-10 * (1 + true + abs(float(value)) + float(offset) + np.sum(np.abs(line)))
        bound = float(value) + np.sum(line)
        wrong = f"the smoothed loss {smooth:.9g} is above the loss {true:.9g} {where}"
        require(smooth <= true + rounding, loss, wrong)
        wrong = f"the smoothed loss is {smooth:.9g} where its tangent is {bound:.9g} {where}"
        require(smooth >= bound - rounding, loss, wrong)
        raised = bound + float(offset)
        wrong = f"the loss is {true:.9g} where a tangent plus its minorant offset is {raised:.9g} {where}"
        require(true >= raised - rounding, loss, wrong)


def _check_gradient(
    loss: Loss, rng: Rng, z: Array, y: Array, c: Array, mu: float, center: Array | None
) -> None:
    """Check the gradient of the smoothed loss against central differences along random directions."""
    h, (_, g, _) = 1e-6, _smoothed(loss, z, y, c, mu, center)
    for _ in range(3):
        d = rng.standard_normal(z.shape)
        after, before = (float(_smoothed(loss, z + s * h * d, y, c, mu, center)[0]) for s in (1, -1))
        slope, difference = float(np.sum(g * d)), (after - before) / (2 * h)
        near = abs(difference - slope) <= 1e-7 + 1e-4 * np.sum(np.abs(g * d)) + h / mu
        wrong = f"smoothed with mu = {mu:g}, its slope is {slope:.9g}, but differences give {difference:.9g}"
        require(near, loss, wrong)


def _check_hessian(
    loss: Loss, rng: Rng, z: Array, y: Array, c: Array, mu: float, center: Array | None
) -> None:
    """Check the product of the Hessian with a random direction against differences of the gradient."""
    if not loss.has_hessian:
        return
    if loss.multi_output:
        check_block_hessian(loss, rng, z, y, c, mu)
        return
    H = loss.hessian(z, y, c, mu) if center is None else loss.hessian(z, y, c, mu, center)
    require(H is not None, loss, f"hessian returns None for mu = {mu:g}, though the loss can be smoothed")
    assert H is not None
    # the gradient may change its piece within a distance of order mu: h is far smaller
    h, d = 1e-8 * min(mu, 1.0), rng.standard_normal(len(z))
    after, before = (_smoothed(loss, z + s * h * d, y, c, mu, center)[1] for s in (1, -1))
    product, difference = hessian_product(H, d), (after - before) / (2 * h)
    near = close(product, difference, 1e-4, 1e-4 * np.max(np.abs(difference)) + 1e-6 / mu)
    require(near, loss, f"smoothed with mu = {mu:g}, hessian is not what differences of gradients give")


def _check_mu(loss: Loss, z: Array, y: Array, c: Array, center: Array | None) -> None:
    """Check the dependence on mu: a maximum of lines of slope -offset / mu, so convex and nonincreasing."""
    known = [(mu, *_smoothed(loss, z, y, c, mu, center)) for mu in CHECKED_MUS]
    rounding = 1e-10 * (1 + abs(float(known[0][1])))
    for (mu0, value0, _, offset0), (mu, value, _, offset) in pairwise(known):
        decrease = float(value0 - value)
        lower, upper = (mu - mu0) * float(offset) / mu, (mu - mu0) * float(offset0) / mu0
        wrong = (
            f"from mu = {mu0:g} to {mu:g} it decreases by {decrease:.9g}, "
            f"but by its minorant offsets by {lower:.9g} to {upper:.9g}"
        )
        require(lower - rounding <= decrease <= upper + rounding * mu / mu0, loss, wrong)


def _check_arrays(loss: Loss, rng: Rng, case: LossCase) -> None:
    """Check inputs, dtypes, the order of the rows, and finite results at scores of +-1e8."""
    z, y, c = case
    copies = [a.copy() for a in (z, y, c)]
    value, g, offset = _smoothed(loss, z, y, c, 0.1)
    same = all(np.array_equal(a, b) for a, b in zip(copies, (z, y, c), strict=True))
    require(same, loss, "smoothed_value_grad changes its inputs")
    permuted, rows = case.select(rng.permutation(len(case.example_rows())))
    other, h, other_offset = _smoothed(loss, *permuted, 0.1)
    same = close([other, other_offset], [value, offset], 1e-9, 1e-12)
    same = same and close(case.scatter_add(h, rows), g, 1e-9, 1e-12)
    require(same, loss, "smoothed, it depends on the order of the rows")
    narrow = [a.astype(np.float32) for a in (z, y, c)]
    other, h, _ = _smoothed(loss, narrow[0], narrow[1], narrow[2], 0.1)
    require(h.dtype == np.float32, loss, f"smoothed, dz is of {h.dtype}, the scores of float32")
    same = close(other, value, 1e-3, 1e-5) and close(h, g, 1e-2, 1e-3 * np.max(np.abs(g)))
    require(same, loss, "smoothed, it differs between float64 and float32")
    for far in (1e8 * np.sign(z), np.full_like(z, 1e8), np.full_like(z, -1e8)):
        for scores, labels, weights in ((far, y, c), (far.astype(np.float32), *narrow[1:])):
            result = _smoothed(loss, scores, labels, weights, 1e-3)
            require(all(np.all(np.isfinite(a)) for a in result), loss, "smoothed, it is not finite at 1e8")
