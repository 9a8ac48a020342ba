"""Checks of the contract of losses."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from riskmin.core import Array
from riskmin.losses.base import Loss, as_loss
from riskmin.testing.base import Rng, close, require
from riskmin.testing.cases import LabelSampler, LossCase, make_case_sampler
from riskmin.testing.conjugates import check_block_hessian, check_conjugate, check_hessian
from riskmin.testing.smoothing import check_smoothed_loss


def check_loss(
    loss: Loss, *, seed: int = 0, labels: LabelSampler | None = None, columns: int | None = None
) -> None:
    """Check that a loss has the properties that solvers rely on.

    A loss must be nonnegative and convex with a correct subgradient, keep dtypes and inputs, stay finite at
    scores of +-1e8, and not depend on the order of the rows. If it declares itself separable, integer weights
    must count as repeated rows, and the parts of any split must add up. If it declares itself invariant, a
    constant added to all scores must not change it. If it has them, `values` must be the loss of each row,
    `conjugate` its convex conjugate, `smoothed_value_grad` a smooth minorant whose tangents, raised by their
    minorant offset, stay below the loss, and `hessian` (with several scores per row, `block_hessian`) the
    second derivatives of the loss, and of that minorant. Non-decomposable losses may reject rows of different
    weights with a ValueError; they are then checked with equal weights.

    Parameters
    ----------
    loss : Loss
        The loss to check: any object with a method `value_grad`.
    seed : int
        The seed of the random cases.
    labels : callable, optional
        ``labels(rng, n)`` draws n labels. By default these are signs, real numbers, counts, grades or classes
        0 to k - 1, as required by `loss.task` and `loss.check_labels`; two columns for rankings (grades and
        query numbers) and for tagging (labels and sequence numbers); k columns if
        `loss.multi_output_targets`.
    columns : int, optional
        The number k of scores per row of a multi-output loss. For losses with a method `linear_map` it is
        determined by that map, which is made for 3 outputs by default.

    Raises
    ------
    AssertionError
        Names the property that fails.

    Examples
    --------
    >>> from riskmin.losses import Hinge, Softmax
    >>> check_loss(Hinge())
    >>> check_loss(Softmax(), columns=5)
    """
    loss = as_loss(loss)
    rng, drawn = np.random.default_rng(seed), make_case_sampler(loss, labels, columns)

    def draw(scale: float) -> LossCase:
        return drawn.case(rng, scale)

    # intermediate overflow is an error even if the result is finite
    with np.errstate(over="raise", divide="raise", invalid="raise"):
        for scale in (1e-3, 1.0, 30.0):
            for _ in range(10):
                _check_minorant(loss, rng, *draw(scale))
        _check_derivative(loss, rng, *draw(1.0))
        for digits in (0, 12):  # with many tied scores, and with none
            case = draw(1.0)
            _check_order(loss, rng, case._replace(z=np.round(case.z, digits)), ties=not digits)
        _check_dtypes(loss, rng, *draw(1.0))
        if loss.shift_invariant:
            _check_shift(loss, *draw(1.0))
        if loss.separable:
            _check_weights(loss, rng, draw(1.0))
            _check_splits(loss, rng, draw(1.0))
            _check_values(loss, *draw(1.0))
        if loss.separable and drawn.columns is None:
            try:
                # few rows, which are evaluated one by one
                check_conjugate(loss, rng, *drawn.case(rng, 1.0, 12))
                check_hessian(loss, rng, *draw(1.0))
            except FloatingPointError as error:
                raise AssertionError(f"{loss!r}: {error} in its conjugate or its Hessian") from error
        if loss.multi_output and loss.smooth and loss.has_hessian:
            check_block_hessian(loss, rng, *draw(1.0))
        try:
            check_smoothed_loss(loss, rng, draw(1.0))
        except FloatingPointError as error:
            raise AssertionError(f"{loss!r}: {error} in its smoothed form") from error


def _evaluate(loss: Loss, z: Array, y: Array, c: Array) -> tuple[float, Array]:
    """Call value_grad; require finite results, a gradient of z's dtype and shape, and unchanged inputs."""
    copies = [np.array(a, copy=True) for a in (z, y, c)]
    try:
        value, dz = loss.value_grad(z, y, c)
    except FloatingPointError as error:
        raise AssertionError(f"{loss!r}: {error} for {z.dtype} scores up to {np.max(np.abs(z)):g}") from error
    where = f"for {z.dtype} scores up to {np.max(np.abs(z)):g}"
    same = all(np.array_equal(a, b) for a, b in zip(copies, (z, y, c), strict=True))
    require(same, loss, "value_grad changes its inputs")
    require(np.isfinite(float(value)), loss, f"the value is {float(value)} {where}")
    require(np.all(np.isfinite(dz)), loss, f"the subgradient is not finite {where}")
    require(dz.shape == z.shape, loss, f"the subgradient has shape {dz.shape}, the scores {z.shape}")
    require(dz.dtype == z.dtype, loss, f"the subgradient is of {dz.dtype}, the scores of {z.dtype}")
    return float(value), dz


def _check_minorant(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """Check R(u) >= R(z) + g @ (u - z) for random u: convexity and a correct subgradient."""
    value, g = _evaluate(loss, z, y, c)
    require(value >= -1e-12, loss, f"the value {value:g} is negative")
    # near points reveal small errors of dz, distant ones a lack of convexity
    for step in (1e-2, 1.0, 50.0):
        u = z + step * rng.standard_normal(z.shape)
        value_u, line = _evaluate(loss, u, y, c)[0], g * (u - z)
        rounding = 1e-12 * (1 + value_u + value + np.sum(np.abs(line)))
        bound = value + np.sum(line)
        wrong = (
            f"it is {value_u:.9g} where its tangent is {bound:.9g}, "
            f"at a distance of {step:g} from scores of {np.std(z):.2g}"
        )
        require(value_u >= bound - rounding, loss, f"{wrong}; it is not convex, or dz is wrong")


def _check_derivative(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """Check g @ d against differences along random directions d: losses are smooth at random points."""
    h = 1e-6
    value, g = _evaluate(loss, z, y, c)
    for _ in range(5):
        d = rng.standard_normal(z.shape)
        before, after = _evaluate(loss, z - h * d, y, c)[0], _evaluate(loss, z + h * d, y, c)[0]
        # rounding errs by about eps value / h = 2e-10 value
        slope, rounding = np.sum(g * d), 1e-8 * (1 + value)
        left, central, right = (value - before) / h, (after - before) / (2 * h), (after - value) / h
        wrong = f"dz gives the slope {slope:.9g}, but differences give"
        # by convexity, a subgradient lies between the one-sided difference quotients
        between = left - rounding <= slope <= right + rounding
        require(between, loss, f"{wrong} {left:.9g} on one side and {right:.9g} on the other")
        near = abs(central - slope) <= rounding + 1e-4 * np.sum(np.abs(g * d))
        require(near, loss, f"{wrong} {central:.9g}")


def _check_order(loss: Loss, rng: Rng, case: LossCase, ties: bool) -> None:
    """Check that a permutation of the examples changes neither the value nor, up to the order, dz."""
    # permute examples, not rows: the tokens of a sequence stay in order
    permuted, rows = case.select(rng.permutation(len(case.example_rows())))
    (value, g), (same, h) = _evaluate(loss, *case), _evaluate(loss, *permuted)
    require(close(same, value, 1e-12, 1e-12), loss, f"the order of the rows matters: {value} and {same}")
    if ties and not loss.separable:  # with tied scores several subgradients are valid
        return
    require(
        close(case.scatter_add(h, rows), g, 1e-12, 1e-14), loss, "dz does not follow the order of the rows"
    )


def _check_shift(loss: Loss, z: Array, y: Array, c: Array) -> None:
    """Check that a constant added to all scores changes nothing, so that the gradient sums to zero."""
    (value, g), (shifted, _) = _evaluate(loss, z, y, c), _evaluate(loss, z + 3.0, y, c)
    same = close(shifted, value, 1e-12, 1e-12) and close(np.sum(g), 0.0, 0, 1e-12)
    require(
        same, loss, f"it is declared invariant, but it is {value}, and {shifted} with 3 added to all scores"
    )


def _check_dtypes(loss: Loss, rng: Rng, z: Array, y: Array, c: Array) -> None:
    """Check that float32 agrees with float64 within rounding, and that both are finite at extreme scores."""
    narrow = [a.astype(np.float32) if a.dtype.kind == "f" else a for a in (z, y, c)]
    wide = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in narrow]
    (value, g), (other, h) = _evaluate(loss, *wide), _evaluate(loss, *narrow)
    require(close(other, value, 1e-3, 1e-5), loss, f"the value is {value} in float64, {other} in float32")
    require(close(h, g, 1e-3, 1e-3 * np.max(np.abs(g))), loss, "dz differs between float64 and float32")
    for z64, y64, c64 in (wide, narrow):
        for far in (1e8 * np.sign(z64), np.full_like(z64, 1e8), np.full_like(z64, -1e8)):
            _evaluate(loss, far, y64, c64)


def _check_weights(loss: Loss, rng: Rng, case: LossCase) -> None:
    """Check that an integer weight k counts as k repeated rows, and that a common factor can be taken out."""
    z, y, c = case
    value, g = _evaluate(loss, z, y, c)
    scaled, h = _evaluate(loss, z, y, 3 * c)
    same = close(scaled, 3 * value, 1e-12, 1e-12) and close(h, 3 * g, 1e-12, 1e-14)
    require(same, loss, "three times the weights do not give three times the value and dz")
    counts = rng.integers(0, 4, len(case.example_rows()))
    repeated, rows = case.select(np.repeat(np.arange(len(counts)), counts))
    # an example of count 0 has weight 0, and is left out of the repeated rows
    value, g = _evaluate(loss, z, y, case.per_row(counts) * c)
    repeated_value, h = _evaluate(loss, *repeated)
    same = close(repeated_value, value, 1e-12, 1e-12) and close(case.scatter_add(h, rows), g, 1e-12, 1e-14)
    require(same, loss, "integer weights do not count as repeated rows")


def _check_splits(loss: Loss, rng: Rng, case: LossCase) -> None:
    """Check that the values and gradients of the parts of a random split add up."""
    value, g = _evaluate(loss, *case)
    n = len(case.example_rows())
    # up to four parts, split between examples
    ends = [0, *sorted(rng.choice(np.arange(1, n), min(3, n - 1), replace=False)), n]
    total, gradient = 0.0, np.zeros_like(g)
    for i, j in pairwise(ends):
        part, rows = case.select(range(i, j))
        v, h = _evaluate(loss, *part)
        total, gradient = total + v, gradient + case.scatter_add(h, rows)
    same = close(total, value, 1e-12, 1e-12) and close(gradient, g, 1e-12, 1e-14)
    require(same, loss, "it is declared separable, but its parts do not add up to the whole")


def _check_values(loss: Loss, z: Array, y: Array, c: Array) -> None:
    """Check that `values`, if the loss has its own, is the loss of each row."""
    if type(loss).values is Loss.values:  # it follows from the conjugate
        return
    values, one = loss.values(z, y), np.ones(1)
    require(values.shape == c.shape, loss, f"values has shape {values.shape}, the weights {c.shape}")
    for i in range(len(c)):
        value = float(loss.value_grad(z[i : i + 1], y[i : i + 1], one)[0])
        same = close(values[i], value, 1e-9, 1e-12)
        require(same, loss, f"values gives {values[i]:.9g} for a row whose loss is {value:.9g}")
