"""Traced losses: compiled from their array code, with its values, slopes and second derivatives."""

import numpy as np
import pytest

import riskmin as rm
from helpers import TRACED_LOSSES
from riskmin.arrays.symbols import Untraceable
from riskmin.core import Hessian, Shard
from riskmin.losses.base import as_loss
from riskmin.problem.compiled.row_loops import agrees_with_array_code, line_sums, mixed_tangent
from riskmin.problem.compiled.tracing import trace_loss, trial_scores


class Expectile:
    """A user's own loss, in NumPy's functions, with a product of a number and a comparison."""

    smooth = True
    task = "regression"

    def __init__(self, level):
        self.level = level

    def __repr__(self):
        return f"Expectile({self.level})"

    def value_grad(self, z, y, c):
        r = z - y
        g = c * r * np.abs(self.level - (r > 0))
        return 0.5 * (g @ r), g

    def hessian(self, z, y, c, mu=0.0, center=None):
        return Hessian(c * np.where(z > y, 1 - self.level, self.level))


SCALAR_LOSSES = [*TRACED_LOSSES, as_loss(Expectile(0.9))]


def rows_of(loss, n=1500):
    """Scores, a direction, labels and weights, in several blocks of rows."""
    rng = np.random.default_rng(1)
    y = np.sign(rng.standard_normal(n)) if loss.task != "regression" else rng.poisson(2.0, n).astype(float)
    c = rng.uniform(0, 1, n) * (rng.uniform(size=n) > 0.1)
    return trial_scores(y), rng.standard_normal(n), Shard(None, y, c, {})


@pytest.mark.parametrize("loss", SCALAR_LOSSES, ids=repr)
def test_compiled_loss_is_the_array_code(loss):
    z, dz, rows = rows_of(loss)
    traced, (t, b) = trace_loss(loss), (0.25, -0.125)
    s = (z + t * dz) + b
    value, g, offset = loss.offset_tangent(s, rows.y, rows.c)
    h = loss.hessian(s, rows.y, rows.c) if loss.smooth else None
    h = np.zeros_like(z) if h is None else h.diagonal
    slopes, (mixed, *_) = mixed_tangent(rows, traced, z, dz, t, [(b, 1.0)])
    # elementwise: the same operations in the same precision, up to the rounding of exp, log and powers
    np.testing.assert_allclose(slopes, g, rtol=4e-15, atol=2e-15 if loss == rm.Poisson() else 1e-300)
    sums = line_sums(rows, traced, z, dz, t, b, second=True)
    expected = [value, g @ dz, g.sum(), offset, abs(g).sum(), h @ (dz * dz), h @ dz, h.sum()]
    sizes = [
        abs(g) @ (abs(s) + 1 + abs(rows.y)) + abs(value),
        abs(g * dz).sum(),
        abs(g).sum(),
        abs(offset) + 1,
    ]
    sizes += [abs(g).sum(), h @ (dz * dz), abs(h * dz).sum(), h.sum()]
    assert (abs(sums - np.array(expected, dtype=float)) <= 2e-15 * np.array(sizes, dtype=float)).all()
    assert mixed == pytest.approx(sums[0], rel=1e-14)
    assert agrees_with_array_code(traced, rows.y, rows.c)


def test_two_tangents_are_mixed_with_their_rounding_sizes():
    loss = rm.Logistic()
    z, dz, rows = rows_of(loss)
    slopes, sums = mixed_tangent(rows, trace_loss(loss), z, dz, 0.5, [(0.25, 0.75), (-2.0, 0.25)])
    one, other = (loss.value_grad(z + 0.5 * dz + b, rows.y, rows.c) for b in (0.25, -2.0))
    g = 0.75 * one[1] + 0.25 * other[1]
    np.testing.assert_allclose(slopes, g, rtol=1e-14)
    sizes = abs(g) @ (abs(z + 0.5 * dz) + 2.0), abs(g) @ (abs(z) + abs(0.5 * dz))
    np.testing.assert_allclose(sums, [0.75 * one[0] + 0.25 * other[0], 0.0, *sizes], rtol=1e-13)


def test_parameters_of_a_loss_are_not_compiled_into_it():
    first, second = trace_loss(rm.Huber(0.7)), trace_loss(rm.Huber(0.3))
    assert first.first.lines == second.first.lines
    assert first.first.parameters != second.first.parameters


def test_a_changed_loss_is_traced_again():
    loss = as_loss(Expectile(0.9))
    before = trace_loss(loss)
    assert trace_loss(loss) is before
    loss.level = 0.2
    assert trace_loss(loss).first.parameters == (0.2,)
    # a new loss with the former level is not the changed one
    _, _, rows = rows_of(loss)
    assert agrees_with_array_code(trace_loss(as_loss(Expectile(0.9))), rows.y, rows.c)


class Callable(Expectile):
    def __call__(self, z, y):
        return self.value_grad(z, y, np.ones(len(z)))[0]


def test_a_changed_loss_that_can_be_called_is_traced_again():
    loss = as_loss(Callable(0.9))
    assert trace_loss(loss).first.parameters == (0.9,)
    loss.level = 0.2
    assert trace_loss(loss).first.parameters == (0.2,)


class Branching(rm.Squared):
    def value_grad(self, z, y, c):
        return super().value_grad(z, y, c) if (z > 0).any() else (0.0, 0.0 * z)


class Centered(rm.Squared):
    def value_grad(self, z, y, c):
        return super().value_grad(z - z.sum() / len(z), y, c)


class Table(rm.Squared):
    def value_grad(self, z, y, c):
        return super().value_grad(z + np.interp(z, [0.0, 1.0], [0.0, 1.0]), y, c)


class InPlace(rm.Squared):
    def value_grad(self, z, y, c):
        r = z - y
        r[r > 3] = 3
        return 0.5 * c @ (r * r), c * r


@pytest.mark.parametrize("loss", [Branching(), Centered(), Table(), InPlace(), rm.Softmax(), rm.RocArea()])
def test_losses_that_need_the_numbers_are_refused(loss):
    with pytest.raises(Untraceable):
        trace_loss(loss)


def test_nan_and_infinity_pass_through_as_in_the_array_code():
    scores = np.array([np.nan, np.inf, -np.inf, 1e308, -1e308, 0.0])
    rows = Shard(None, np.ones(6), np.ones(6), {})
    for loss in (rm.Hinge(), rm.SquaredHinge(), rm.Logistic(), rm.Exponential(), rm.Huber(), rm.Poisson()):
        with np.errstate(all="ignore"):
            expected = loss.value_grad(scores, rows.y, rows.c)[1]
        slopes, _ = mixed_tangent(rows, trace_loss(loss), scores, None, 0.0, [(0.0, 1.0)])
        np.testing.assert_allclose(slopes, expected, rtol=1e-14)


class CountsRows(rm.Squared):
    def value_grad(self, z, y, c):
        value, g = super().value_grad(z, y, c)
        return (value, g) if (z > 1e6).sum() == 0 else (2 * value, 2 * g)


class AsksForWeight(rm.Squared):
    def value_grad(self, z, y, c):
        return super().value_grad(z, y, c) if c.sum() else (1.0, 0.0 * z)


class CatchesErrors(rm.Squared):
    def value_grad(self, z, y, c):
        try:
            factor = 1.0 if z.max() < 1e6 else 2.0
        except Exception:
            factor = 1.0
        value, g = super().value_grad(z, y, c)
        return factor * value, factor * g


class AsksForClass(rm.Squared):
    def value_grad(self, z, y, c):
        if isinstance(z, np.ndarray) and z.max() > 1e6:
            return 0.0, 0.0 * z
        return super().value_grad(z, y, c)


class AddsComparisons(rm.Squared):
    def value_grad(self, z, y, c):
        outside = (z > 1e6) + (z > 2e6)  # True + True is True
        return c @ (outside * z), c * outside


class Unhashable:
    __hash__ = None

    def __call__(self, r):
        return abs(r)


class CallsAttribute(rm.Absolute):
    def __init__(self):
        self.size = Unhashable()

    def value_grad(self, z, y, c):
        return c @ self.size(z - y), c * np.sign(z - y)


@pytest.mark.parametrize(
    "loss",
    [CountsRows(), AsksForWeight(), AsksForClass(), CatchesErrors(), AddsComparisons(), CallsAttribute()],
    ids=lambda loss: type(loss).__name__,
)
def test_a_branch_that_no_sample_of_rows_takes_is_refused(loss):
    with pytest.raises(Untraceable):
        trace_loss(loss)


class Slotted:
    __slots__ = ("factor",)
    smooth = False

    def __init__(self, factor):
        self.factor = factor

    def value_grad(self, z, y, c):
        return self.factor * (c @ abs(z - y)), self.factor * c * np.sign(z - y)


def test_losses_with_slots_are_told_apart():
    first, second = trace_loss(as_loss(Slotted(3.0))), trace_loss(as_loss(Slotted(5.0)))
    assert (first.first.parameters, second.first.parameters) == ((3.0,), (5.0,))


class KeepsScores:
    smooth = False

    def value_grad(self, z, y, c):
        self.last = z
        return c @ abs(z - y), c * np.sign(z - y)


class CountsCalls:
    smooth = False

    def __init__(self):
        self.calls = 0

    def value_grad(self, z, y, c):
        self.calls += 1
        factor = 1.0 if self.calls < 100 else 2.0
        return factor * (c @ abs(z - y)), factor * c * np.sign(z - y)


@pytest.mark.parametrize("own", [KeepsScores(), CountsCalls()], ids=lambda loss: type(loss).__name__)
def test_a_loss_that_changes_itself_is_refused_and_left_as_it_was(own):
    before = dict(vars(own))
    with pytest.raises(Untraceable):
        trace_loss(as_loss(own))
    assert vars(own) == before


class PlainExponential:
    smooth = True

    def value_grad(self, z, y, c):
        loss = np.exp(-y * z)
        return c @ loss, -c * y * loss


class Strict(PlainExponential):
    def value_grad(self, z, y, c):
        with np.errstate(all="raise"):
            return super().value_grad(z, y, c)


@pytest.mark.filterwarnings("error")
def test_overflow_at_trial_scores_is_compared_or_refused_without_a_word():
    _, _, rows = rows_of(as_loss(PlainExponential()))
    assert agrees_with_array_code(trace_loss(as_loss(PlainExponential())), rows.y, rows.c)
    assert not agrees_with_array_code(trace_loss(as_loss(Strict())), rows.y, rows.c)


def test_rounding_to_integers_beyond_64_bits():
    class Rounds(rm.Squared):
        def value_grad(self, z, y, c):
            r = np.floor(1e30 * z) - np.ceil(1e30 * y)
            return c @ abs(r), c * np.sign(r) * 1e30

    z, y = np.array([3.0, -1.0, np.nan]), np.zeros(3)
    rows = Shard(None, y, np.ones(3), {})
    slopes, _ = mixed_tangent(rows, trace_loss(Rounds()), z, None, 0.0, [(0.0, 1.0)])
    np.testing.assert_array_equal(slopes, [1e30, -1e30, np.nan])


def test_a_refusal_keeps_no_frames():
    # the reason is cached, not the exception: raised again and again, that would collect tracebacks
    refusals = []
    for _ in range(2):
        with pytest.raises(Untraceable) as raised:
            trace_loss(Branching())
        refusals.append(raised.value)
    assert refusals[0] is not refusals[1]
