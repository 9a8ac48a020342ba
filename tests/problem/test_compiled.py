"""Risks of many entries: the values and slopes of array code, and the same bits for any number of threads."""

import copy
import pickle
from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import TRACED_LOSSES
from riskmin.core import Hessian
from riskmin.linear_maps.linear import SingleOutput, Standardized


# ---------------------------------------------------------------- losses, traced or not
class Expectile:
    """A user's own loss, in NumPy's functions, with a product of a number and a comparison."""

    smooth = True

    def __init__(self, level):
        self.level = level

    def value_grad(self, z, y, c):
        r = z - y
        g = c * r * np.abs(self.level - (r > 0))
        return 0.5 * (g @ r), g

    def hessian(self, z, y, c, mu=0.0, center=None):
        return Hessian(c * np.where(z > y, 1 - self.level, self.level))


class Callable(Expectile):
    def __call__(self, z, y):
        return self.value_grad(z, y, np.ones(len(z)))[0]


class Slotted:
    __slots__ = ("level",)
    smooth = False

    def __init__(self, level):
        self.level = level

    def value_grad(self, z, y, c):
        return self.level * (c @ abs(z - y)), self.level * c * np.sign(z - y)


@dataclass(frozen=True)
class Rare(rm.Squared):
    """Twice as large beyond 1e6, with a branch that no sample of the rows takes."""

    asks: object = None

    def value_grad(self, z, y, c):
        return super().value_grad(z, y, c * np.where(z > 1e6, 2.0, 1.0) if self.asks(z) else c)


def catches_errors(z):
    try:
        return z.max() > 1e6
    except Exception:
        return False


class Table(rm.Squared):
    def value_grad(self, z, y, c):
        return super().value_grad(z + np.interp(z, [0.0, 1.0], [0.0, 1.0]), y, c)


class InPlace(rm.Squared):
    def value_grad(self, z, y, c):
        r = z - y
        r[r > 3] = 3
        return 0.5 * c @ (r * r), c * r


class AsksForWeight(rm.Squared):
    def value_grad(self, z, y, c):
        return super().value_grad(z, y, c) if c.sum() else (1.0, 0.0 * z)


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


class PlainExponential:
    smooth = True
    task = "classification"

    def value_grad(self, z, y, c):
        loss = np.exp(-y * z)
        return c @ loss, -c * y * loss


class Rounds(rm.Squared):
    """Rounds to integers beyond 64 bits."""

    def value_grad(self, z, y, c):
        r = np.floor(1e30 * z) - np.ceil(1e30 * y)
        return c @ abs(r), c * np.sign(r) * 1e30


OWN_LOSSES = [
    Expectile(0.9),
    Callable(0.2),
    Slotted(3.0),
    Slotted(5.0),
    Rare(lambda z: (z > 1e6).any()),
    Rare(lambda z: (z > 1e6).sum() > 0),
    Rare(lambda z: isinstance(z, np.ndarray) and z.max() > 1e6),
    Rare(catches_errors),
    Table(),
    InPlace(),
    AsksForWeight(),
    AddsComparisons(),
    CallsAttribute(),
    PlainExponential(),
    Rounds(),
]
"""Some can be compiled; others ask for the numbers of all rows, or take a branch for rare ones."""

N = 2048


def rows_with_scores(scores):
    """Rows whose scores at the first basis vector are given; the gradient holds the slope of each row.

    They have enough entries for losses to be compiled.
    """
    return np.hstack([scores[:, None], np.eye(N)])


def trial(task, far):
    """Scores near 0, around the labels and far out, with exact zeros and labels; labels and weights."""
    rng = np.random.default_rng(1)
    y = rng.poisson(2.0, N).astype(float) if task == "regression" else np.sign(rng.standard_normal(N))
    z = np.resize([1e-3, 1.0, 1.0, 30.0, 1e3], N) * rng.standard_normal(N) + y * (np.arange(N) % 2)
    z[0::16], z[3::16], z[7::16] = 0.0, np.sign(z[3::16]), y[7::16]
    z = np.clip(z, -300.0, 300.0)  # the exponential function is finite
    if far:
        z[1000] = 3e6
    return z, y, rng.uniform(0.1, 1.0, N) * (rng.uniform(size=N) > 0.1)


def check_rows(loss, far=False):
    """Check that the value and every slope are those of the array code, up to the rounding of functions."""
    z, y, weights = trial(getattr(loss, "task", "regression"), far)
    y = y + 0.5 * isinstance(loss, rm.Gamma)  # which takes no zeros
    c = weights / weights.sum()
    expected, slopes = loss.value_grad(z, y, c)
    risk = rm.linear_risk(rows_with_scores(z), y, loss, sample_weight=weights, n_shards=1)
    value, gradient = risk(np.eye(N + 1)[0])
    assert value == pytest.approx(float(expected), rel=1e-12)
    np.testing.assert_allclose(gradient[1:], slopes, rtol=1e-14, atol=1e-18)


@pytest.mark.parametrize("loss", TRACED_LOSSES, ids=repr)
def test_many_rows_have_the_slopes_of_array_code(loss):
    check_rows(loss)


@pytest.mark.parametrize("loss", OWN_LOSSES, ids=lambda loss: type(loss).__name__)
def test_many_rows_of_an_own_loss_have_the_slopes_of_its_array_code(loss):
    check_rows(loss, far=not isinstance(loss, PlainExponential))


def test_a_changed_loss_is_not_the_former_one():
    for kind in (Expectile, Callable, Slotted):
        loss = kind(0.9)
        for loss.level in (0.9, 0.2):
            check_rows(loss)
        check_rows(kind(0.9))


class KeepsScores:
    smooth = False

    def value_grad(self, z, y, c):
        self.last = z
        return c @ abs(z - y), c * np.sign(z - y)


class CountsCalls:
    smooth = False
    calls = 0

    def value_grad(self, z, y, c):
        self.calls += 1
        factor = 1.0 if self.calls < 100 else 2.0
        return factor * (c @ abs(z - y)), factor * c * np.sign(z - y)


def test_a_loss_that_changes_itself_is_called_with_the_scores():
    keeps, counts = KeepsScores(), CountsCalls()
    check_rows(keeps)
    z, y, _ = trial("regression", far=False)
    assert np.isin(keeps.last, z).all()
    risk, w = rm.linear_risk(rows_with_scores(z), y, counts, n_shards=1), np.eye(N + 1)[0]
    before = risk(w)[0]
    counts.calls = 1000
    assert risk(w)[0] == 2 * before


def test_a_loss_that_is_no_function_of_its_arguments_is_called_every_time():
    class Random(rm.Squared):
        def value_grad(self, z, y, c):
            state["calls"] += 1
            return super().value_grad(z * (1 + 1e-6 * state["calls"]), y, c)

    state = {"calls": 0}
    z, y, _ = trial("regression", far=False)
    risk, w = rm.linear_risk(rows_with_scores(z), y, Random(), n_shards=1), np.eye(N + 1)[0]
    assert len({risk(w)[0] for _ in range(3)}) == 3


@pytest.mark.filterwarnings("error")
def test_a_loss_that_raises_on_overflow_is_compiled_or_called_without_a_word():
    class Strict(PlainExponential):
        def value_grad(self, z, y, c):
            with np.errstate(all="raise"):
                return super().value_grad(np.clip(z, -9.0, 9.0), y, c)

    check_rows(Strict())


# ---------------------------------------------------------------- threads
def wide_indices(X):
    X.indices, X.indptr = X.indices.astype(np.int64), X.indptr.astype(np.int64)
    return X


FORMATS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "CSR": sp.csr_array,
    "CSC": sp.csc_array,
    "C, float32": lambda X: X.astype(np.float32),
    "CSR, float32 and int64": lambda X: wide_indices(sp.csr_array(X.astype(np.float32))),
}
P = 64


@pytest.fixture(scope="module")
def rows():
    """As many entries as threads share."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((2**16, P))
    return X, np.sign(X[:, 0] + 0.3 * rng.standard_normal(len(X))), rng.uniform(0.5, 2.0, len(X))


def along_a_line(risk):
    """What an oracle and a cursor return, as bytes."""
    w, d = (np.resize(a, risk.dim) for a in (np.linspace(-1, 1, P), np.linspace(1, 0.5, P)))
    cursor, found = risk.cursor(w), [*risk(w)]
    for direction, t in ((d, 0.5), (-w, 0.25)):
        cursor.set_direction(direction)
        evaluation = cursor.evaluate(t)
        found += [*cursor.value_slope(t), evaluation.value, evaluation.gradient, evaluation.cut.b]
        cursor.advance(t)
    found += [cursor.evaluate().gradient]
    return [np.asarray(a).tobytes() for a in found]


@pytest.mark.parametrize(
    ("stored", "loss"),
    [
        ("C", "logistic"),
        ("Fortran", "hinge"),
        ("CSC", "logistic"),
        ("C, float32", "hinge"),
        ("CSR, float32 and int64", "logistic"),
        ("C", "softmax"),
    ],
)
def test_lines_have_the_same_bits_for_any_number_of_threads(stored, loss, rows):
    X, y, weights = rows
    z, c = X @ np.linspace(-1, 1, P), weights / weights.sum()
    X = FORMATS[stored](X)
    y = (y > 0).astype(float) if loss == "softmax" else y

    def risk(executor):
        return rm.linear_risk(X, y, loss, sample_weight=weights, executor=executor, n_shards=11)

    serial = along_a_line(risk(rm.Serial()))
    shared = risk(rm.Threads(n_workers=3))
    assert along_a_line(shared) == serial
    if loss != "softmax":
        expected, dz = rm.get_loss(loss).value_grad(z, y, c)
        value, gradient = shared(np.linspace(-1, 1, P))
        close = 1e-5 if "float32" in stored else 1e-10
        assert value == pytest.approx(expected, rel=close)
        np.testing.assert_allclose(gradient, rows[0].T @ dz, atol=close)


def test_lines_on_standardized_columns_have_the_same_bits_for_any_number_of_threads(rows):
    X, y, weights = rows
    shift, scale = np.linspace(-1, 1, P), np.geomspace(0.5, 2, P)

    def risk(executor):
        stored = rm.linear_risk(X, y, "logistic", sample_weight=weights, executor=executor, n_shards=11)
        return replace(stored, linear_map=Standardized(SingleOutput(), shift, scale))

    assert along_a_line(risk(rm.Threads(n_workers=3))) == along_a_line(risk(rm.Serial()))
    changed = rm.linear_risk((X - shift) * scale, y, "logistic", sample_weight=weights)
    w = np.linspace(-1, 1, P)
    np.testing.assert_allclose(risk(rm.Threads(n_workers=3))(w)[1], changed(w)[1], atol=1e-12)


@pytest.mark.parametrize("executor", [rm.Serial(), rm.Threads(n_workers=2)], ids=["serial", "threads"])
def test_a_stored_risk_holds_its_rows_once(executor, rows):
    X = rows[0][:4096]
    risk = rm.linear_risk(X, rows[1][:4096], "logistic", executor=executor, n_shards=11)
    w = np.linspace(-1, 1, P)
    stored = pickle.dumps(risk)
    assert len(stored) < 1.2 * X.nbytes
    value, gradient = pickle.loads(stored)(w)
    assert (value, gradient.tobytes()) == (risk(w)[0], risk(w)[1].tobytes())


def test_a_copy_of_an_evaluated_risk_has_its_own_rows(rows):
    risk = rm.linear_risk(*rows[:2], "logistic", executor=rm.Threads(n_workers=2), n_shards=11)
    expected = along_a_line(risk)
    copied = copy.deepcopy(risk)
    del risk
    assert along_a_line(copied) == expected


@pytest.mark.parametrize(
    ("solver", "loss", "intercept"),
    [
        ("bundle", "hinge", True),
        ("lbfgs", "logistic", False),
        ("newton", "logistic", True),
        ("newton", "hinge", False),
        ("dual", "hinge", False),
    ],
)
def test_fits_have_the_same_bits_for_any_number_of_threads(solver, loss, intercept, rows):
    X, y, weights = rows

    def run(executor):
        settings = {"sample_weight": weights, "fit_intercept": intercept, "n_shards": 5}
        risk = rm.linear_risk(X, y, loss, executor=executor, **settings)
        result = rm.minimize(rm.Objective(risk, rm.L2(), 0.1), solver, tol=1e-2)
        return result.w.tobytes(), result.value, result.lower, result.status

    serial = run(rm.Serial())
    assert serial[3] == "converged"
    assert run(rm.Threads(n_workers=3)) == serial


@pytest.mark.parametrize("stored", ["C", "Fortran", "CSR"])
def test_threads_find_an_entry_that_is_not_finite(stored, rows):
    X, y, _ = rows
    X = X[:8192].copy()
    X[2500, 7] = np.nan
    with pytest.raises(ValueError, match="row 2500, column 7"):
        rm.linear_risk(FORMATS[stored](X), y[:8192], "hinge", executor=rm.Threads(n_workers=3), n_shards=11)
