"""The contract of a loss's smoothed form, where it has one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from riskmin.losses.bends import bend, times
from riskmin.losses.pieces import dual_of
from riskmin.losses.smoothing import soft, takes_centre
from riskmin.testing.base import Rng, close, require
from riskmin.testing.draws import Case
from riskmin.types import Array, Bends, Loss, Smoothable

MUS = (1e-3, 0.1, 1.0, 30.0)


def check_soft(loss: Loss, rng: Rng, case: Case) -> None:
    """`soft` is a smooth loss below, whose tangents, raised by their lifts, are cuts of the loss itself.

    Where the loss has `bend`, it is the derivative of that gradient. With a centre too, for losses that take
    one; and where the centre is a subgradient at the very scores,
    the smoothed loss is the loss.
    """
    z, y, c = case
    if not (isinstance(loss, Smoothable) or dual_of(loss, y) is not None):
        return
    centred = takes_centre(loss)
    centres = [None, soft(loss, z + rng.standard_normal(z.shape), y, c, 0.5)[1]] if centred else [None]
    for centre in centres:
        for mu in MUS:
            for scale in (0.1, 1.0, 30.0):
                _check_below(loss, rng, scale * z, y, c, mu, centre)
            _check_gradient(loss, rng, z, y, c, mu, centre)
        _check_mu(loss, z, y, c, centre)
    _check_arrays(loss, rng, case)
    if centred:
        value, g = loss.value_grad(z, y, c)
        for mu in MUS:
            at, _, lift = soft(loss, z, y, c, mu, g)
            same = close(at, value, 1e-9, 1e-9) and close(lift, 0.0, 0, 1e-9)
            wrong = f"smoothed around its own multipliers, it is {float(at):.9g} and not {float(value):.9g}"
            require(same, loss, wrong)
    for centre in centres:
        for mu in MUS:
            _check_bend(loss, rng, z, y, c, mu, centre)


def _check_below(loss: Loss, rng: Rng, z: Array, y: Array, c: Array, mu: float, centre: Array | None) -> None:
    """The tangent is a cut of the smoothed loss, and raised by the lift, of the true one."""
    value, g, lift = soft(loss, z, y, c, mu, centre)
    where = f"at mu = {mu:g}{'' if centre is None else ', with a centre'}"
    require(lift >= -1e-12, loss, f"the lift {float(lift):g} is negative {where}")
    for step in (0.0, 1e-2, 1.0, 50.0):
        u = z + step * rng.standard_normal(z.shape)
        line = g * (u - z)
        true, smooth = float(loss.value_grad(u, y, c)[0]), float(soft(loss, u, y, c, mu, centre)[0])
        rounding = 1e-10 * (1 + true + abs(float(value)) + float(lift) + np.sum(np.abs(line)))
        bound = float(value) + np.sum(line)
        wrong = f"the smoothed loss {smooth:.9g} is above the loss {true:.9g} {where}"
        require(smooth <= true + rounding, loss, wrong)
        wrong = f"the smoothed loss is {smooth:.9g} where its tangent is {bound:.9g} {where}"
        require(smooth >= bound - rounding, loss, wrong)
        wrong = f"the loss is {true:.9g} where a tangent, lifted, is {bound + float(lift):.9g} {where}"
        require(true >= bound + float(lift) - rounding, loss, wrong)


def _check_gradient(
    loss: Loss, rng: Rng, z: Array, y: Array, c: Array, mu: float, centre: Array | None
) -> None:
    h, (_, g, _) = 1e-6, soft(loss, z, y, c, mu, centre)
    for _ in range(3):
        d = rng.standard_normal(z.shape)
        after, before = (float(soft(loss, z + s * h * d, y, c, mu, centre)[0]) for s in (1, -1))
        slope, found = float(np.sum(g * d)), (after - before) / (2 * h)
        near = abs(found - slope) <= 1e-7 + 1e-4 * np.sum(np.abs(g * d)) + h / mu
        wrong = f"smoothed with mu = {mu:g}, its slope is {slope:.9g}, but differences give {found:.9g}"
        require(near, loss, wrong)


def _check_bend(loss: Loss, rng: Rng, z: Array, y: Array, c: Array, mu: float, centre: Array | None) -> None:
    """The second derivatives are those of the gradient."""
    if not isinstance(loss, Bends):
        return
    h, d, H = 1e-8 * min(mu, 1.0), rng.standard_normal(len(z)), bend(loss, z, y, c, mu, centre)
    after, before = (soft(loss, z + s * h * d, y, c, mu, centre)[1] for s in (1, -1))
    found, change = times(H, d), (after - before) / (2 * h)
    near = close(found, change, 1e-4, 1e-4 * np.max(np.abs(change)) + 1e-6 / mu)
    require(near, loss, f"smoothed with mu = {mu:g}, bend is not what differences of gradients give")


def _check_mu(loss: Loss, z: Array, y: Array, c: Array, centre: Array | None) -> None:
    """In mu it is a maximum of straight lines of slope -lift / mu: convex, and falling from the loss on."""
    known = [(mu, *soft(loss, z, y, c, mu, centre)) for mu in MUS]
    rounding = 1e-10 * (1 + abs(float(known[0][1])))
    for (m, v, _, t), (mu, value, _, lift) in pairwise(known):
        fall = float(v - value)
        least, most = (mu - m) * float(lift) / mu, (mu - m) * float(t) / m
        wrong = f"from mu = {m:g} to {mu:g} it falls by {fall:.9g}, by its lifts {least:.9g} to {most:.9g}"
        require(least - rounding <= fall <= most + rounding * mu / m, loss, wrong)


def _check_arrays(loss: Loss, rng: Rng, case: Case) -> None:
    """Inputs, dtypes, the order of the rows and far-out scores."""
    z, y, c = case
    kept = [a.copy() for a in (z, y, c)]
    value, g, lift = soft(loss, z, y, c, 0.1)
    same = all(np.array_equal(a, b) for a, b in zip(kept, (z, y, c), strict=True))
    require(same, loss, "soft changes its inputs")
    turned, at = case.take(rng.permutation(len(case.units())))
    other, h, rise = soft(loss, *turned, 0.1)
    same = close([other, rise], [value, lift], 1e-9, 1e-12) and close(case.put(h, at), g, 1e-9, 1e-12)
    require(same, loss, "smoothed, it cares for the order of the rows")
    narrow = [a.astype(np.float32) for a in (z, y, c)]
    other, h, _ = soft(loss, narrow[0], narrow[1], narrow[2], 0.1)
    require(h.dtype == np.float32, loss, f"smoothed, dz is of {h.dtype}, the scores of float32")
    same = close(other, value, 1e-3, 1e-5) and close(h, g, 1e-2, 1e-3 * np.max(np.abs(g)))
    require(same, loss, "smoothed, it differs between float64 and float32")
    for far in (1e8 * np.sign(z), np.full_like(z, 1e8), np.full_like(z, -1e8)):
        for at, labels, weights in ((far, y, c), (far.astype(np.float32), *narrow[1:])):
            found = soft(loss, at, labels, weights, 1e-3)
            require(all(np.all(np.isfinite(a)) for a in found), loss, "smoothed, it is not finite at 1e8")
