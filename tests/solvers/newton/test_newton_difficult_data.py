"""Newton's method on difficult data: raw units, columns nearly free of a penalty, few rows, no curvature."""

from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, load_iris, load_wine

import riskmin as rm
from helpers import Problem
from riskmin import L2, Newton, Objective, linear_risk, minimize


def categories(seed, n=200, levels=(60, 40, 20)):
    """One-hot encoded categories beside numbers in other units, some far from zero."""
    rng = np.random.default_rng(seed)
    parts = []
    for k in levels:
        share = 1 / np.arange(1, k + 1)
        level = rng.choice(k, size=n, p=share / share.sum())
        parts.append(sp.csr_array((np.ones(n), (np.arange(n), level)), shape=(n, k)))
    numbers = rng.standard_normal((n, 4)) * [1e5, 1e6, 1.0, 1e-4] + [1e6, 0, 0, 1e-4]
    X = sp.csr_array(sp.hstack([*parts, sp.csr_array(numbers)]))
    z = X @ np.concatenate([rng.standard_normal(sum(levels)), 1 / numbers.std(0)])
    return X, (z - z.mean()) / z.std() + 0.3 * rng.standard_normal(n)


@pytest.mark.parametrize(
    ("loss", "intercept", "scaled"),
    [
        (rm.Absolute(), False, False),
        (rm.Absolute(), True, True),
        (rm.Quantile(0.9), True, False),
        (rm.Hinge(), True, False),
        (rm.Hinge(), False, True),
    ],
    ids=repr,
)
def test_raw_numbers_beside_categories_are_certified(loss, intercept, scaled):
    """By conjugate gradients alone, whose residuals in these numbers left gaps of 0.1 to 1.

    Columns of equal size have penalties that differ by as much.
    """
    X, z = categories(0)
    size = np.sqrt(np.maximum(X.multiply(X).sum(0), 1e-12)) if scaled else np.ones(X.shape[1])
    y = np.sign(z) if isinstance(loss, rm.Hinge) else z
    risk = linear_risk(sp.csr_array(X @ sp.diags_array(1 / size)), y, loss, fit_intercept=intercept)
    obj = Objective(risk, L2(size**-2.0), 1e-4)
    result, best = minimize(obj, Newton(direct=1), tol=1e-3, max_iter=400), minimize(obj, Newton(), tol=1e-6)
    assert result.status == best.status == "converged"
    assert result.lower <= best.value <= result.value * (1 + 1e-6)


# ---------------------------------------------------------------- several classes in raw units
CLASSES = [rm.MulticlassHinge(), rm.Softmax(), rm.MulticlassSquaredHinge()]


def levels(seed, n=160, p=6, k=5):
    """Columns of people and money: a level per row times ratios near one, in units of 1e4 to 1e9."""
    rng = np.random.default_rng(seed)
    level = np.exp(rng.normal(0, 2, n))
    X = np.round(level[:, None] * np.exp(rng.normal(0, 0.2, (n, p))) * 10 ** rng.uniform(4, 9, p))
    size = np.log(level) + rng.normal(0, 0.5, n)
    return X, np.searchsorted(np.quantile(size, np.arange(1, k) / k), size).astype(float)


def units(seed, n=160, p=6, k=5):
    """Correlated columns in units of 1e-6 to 1e10, half of them with an offset."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_normal((n, p)) @ (np.eye(p) + 0.5 * rng.standard_normal((p, p)))
    X = Z * 10 ** rng.uniform(-6, 10, p) + 10 ** rng.uniform(-6, 10, p) * (rng.random(p) < 0.5)
    scores = Z @ rng.standard_normal((p, k)) + 2 * rng.standard_normal((n, k))
    return X, scores.argmax(axis=1).astype(float)


X, Y = levels(1)
RAW = [
    *((loss, *draw(0), {}) for loss in CLASSES for draw in (levels, units)),
    (CLASSES[0], sp.csr_array(X), Y, {}),
    (CLASSES[1], X.astype(np.float32), Y, {}),
    (CLASSES[2], X.astype(np.float32), Y, {}),
    *((loss, X, Y, {"fit_intercept": False}) for loss in CLASSES),
    (CLASSES[0], X, Y, {"sample_weight": np.random.default_rng(0).random(160)}),
]


@pytest.mark.parametrize(("loss", "X", "y", "settings"), RAW)
def test_classes_in_raw_units_are_certified(loss, X, y, settings):
    risk = linear_risk(X, y, loss, **{"fit_intercept": True, **settings})
    result = minimize(Objective(risk, L2(), 1e-4), max_iter=400)
    assert result.status == "converged"
    assert result.value <= risk(np.zeros(risk.dim))[0] * (1 + 1e-12)


def test_a_sample_of_the_rows_is_no_start_where_zero_is_better():
    """On a sample, few columns of heavy tails separate the classes: large weights are useless elsewhere."""
    risk = linear_risk(*levels(44, n=820, p=4, k=8), rm.Softmax(), fit_intercept=True)
    result = minimize(Objective(risk, L2(), 1e-4), max_iter=400)
    assert result.status == "converged"
    assert result.trace[0]["value"] <= risk(np.zeros(risk.dim))[0] * (1 + 1e-12)


@pytest.mark.parametrize("intercept", [False, True])
def test_many_columns_of_other_units_are_certified(intercept):
    """Residuals in nearly unpenalized columns, those of large units, would leave gaps of nearly 1."""
    rng = np.random.default_rng(0)
    X = np.maximum(rng.standard_normal((300, 40)), 0)
    y = np.argmax(X @ rng.standard_normal((40, 6)) + 0.1 * rng.standard_normal((300, 6)), axis=1)
    X = (X + 1000 * rng.uniform(-1, 1, 40)) * 10 ** rng.uniform(-6, 6, 40)
    risk = linear_risk(X, y.astype(float), rm.Softmax(), fit_intercept=intercept)
    assert minimize(Objective(risk, L2(), 1e-4), max_iter=100).status == "converged"


@pytest.mark.parametrize("loss", CLASSES, ids=repr)
def test_bounds_in_raw_units_are_below_the_optimum_in_other_variables(loss):
    X, y = levels(7)
    shift, scale = X.mean(axis=0), X.std(axis=0)
    # the same minimum: with an intercept, columns may be centered, and scales belong to the penalty
    raw, scaled = (linear_risk(A, y, loss, fit_intercept=True) for A in (X, (X - shift) / scale))
    result = minimize(Objective(raw, L2(), 1e-4), max_iter=400)
    best = minimize(Objective(scaled, L2(np.repeat(scale**-2.0, 5)), 1e-4), tol=1e-5, max_iter=2000)
    assert result.lower <= best.value * (1 + 1e-9)
    assert best.lower <= result.value * (1 + 1e-9)


# ---------------------------------------------------------------- tables as they are
def classes(n, p, k, spread, seed=0):
    rng = np.random.default_rng(seed)
    y = np.append(np.arange(k), rng.integers(0, k, n - k)).astype(float)
    return rng.standard_normal((k, p))[y.astype(int)] + spread * rng.standard_normal((n, p)) + 3.0, y


def rare():
    """Two more classes, of one row and of two."""
    X, y = classes(80, 5, 3, 2.0)
    y[:3] = 3.0, 4.0, 4.0
    return X, y


def twice():
    X, y = classes(80, 4, 3, 2.0)
    return np.hstack([X, X, X[:, :2]]), y


TABLES = {
    "iris": load_iris(return_X_y=True),
    "wine": load_wine(return_X_y=True),
    "rare": rare(),
    "duplicates": twice(),
    "wide": classes(30, 80, 4, 2.0),
    "separable": classes(80, 4, 4, 0.02),
}


@pytest.mark.parametrize("table", TABLES)
def test_unscaled_tables_are_certified_for_a_small_lam(table):
    risk = linear_risk(*TABLES[table], rm.MulticlassHinge(), fit_intercept=True)
    result = minimize(Objective(risk, L2(), 1e-6), Newton(), tol=1e-5, max_iter=300)
    assert result.status == "converged"


@pytest.mark.parametrize("table", ["iris", "rare", "duplicates", "separable"])
def test_bundles_find_the_same_minima_of_unscaled_tables(table):
    risk = linear_risk(*TABLES[table], rm.MulticlassHinge(), fit_intercept=True)
    obj = Objective(risk, L2(), 1e-2)
    result, best = minimize(obj, rm.Bundle(), tol=1e-3), minimize(obj, Newton(), tol=1e-6)
    assert result.status == best.status == "converged"
    assert result.lower <= best.value * (1 + 1e-9)
    assert best.lower <= result.value * (1 + 1e-9)


@pytest.mark.exhaustive
def test_many_separable_classes():
    risk = linear_risk(*load_digits(return_X_y=True), rm.MulticlassHinge(), fit_intercept=True)
    assert minimize(Objective(risk, L2(), 1e-6), Newton(), max_iter=400).status == "converged"


# ---------------------------------------------------------------- rows and columns of little use
def twins(seed):
    """Rows of large numbers, each of them twice."""
    rng = np.random.default_rng(seed)
    X = 1e6 * rng.standard_normal((8, 16))
    X[4:] = X[:4]
    risk = linear_risk(X, 1e3 * rng.standard_normal(8), rm.EpsilonInsensitive(0.5), fit_intercept=True)
    return Objective(risk, L2(), 1e-10)


def free_intercepts(seed):
    """Classes with an intercept whose curvature is zero."""
    X = sp.csr_array(np.random.default_rng(seed).standard_normal((6, 45)))
    risk = linear_risk(X, np.array([1, 3, 4, 3, 0, 4]), rm.MulticlassSquaredHinge(), fit_intercept=True)
    return Objective(risk, L2(), 1e-3)


def rows_with_an_offset():
    """Columns 300 times as far from zero as they are wide."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 5)) + 300
    risk = linear_risk(X, np.where(X[:, 0] > 300 + 0.3 * rng.standard_normal(300), 1.0, -1.0), rm.Hinge())
    return Objective(risk, L2(), 1e-4)


def separable_classes():
    """For separable classes and tiny lam, few multipliers lie strictly between their bounds."""
    X = np.random.default_rng(0).standard_normal((90, 30))
    return Objective(linear_risk(X, np.where(X[:, 0] + X[:, 1] > 0.5, 1.0, -1.0), rm.Prbep()), L2(), 1e-6)


@pytest.mark.parametrize(
    ("obj", "solver"),
    [
        (twins(14), Newton()),
        (twins(17), Newton()),
        *((free_intercepts(seed), Newton()) for seed in (2, 10, 18)),
        (rows_with_an_offset(), Newton()),
        (separable_classes(), "auto"),
    ],
)
def test_singular_systems_are_certified(obj, solver):
    result = minimize(obj, solver, tol=1e-3, max_iter=500)
    assert result.status == "converged"
    assert 0 <= result.lower <= result.value <= obj.value(np.zeros(obj.risk.dim))


def test_a_risk_with_zero_features():
    obj = Objective(linear_risk(np.zeros((6, 2)), np.array([1.0, -1] * 3), rm.RocArea()), L2(), 0.1)
    result = minimize(obj, Newton(), tol=1e-9)
    assert result.status == "converged"
    assert result.value == 1.0


@pytest.mark.parametrize("p", [1, 100])
def test_a_matrix_without_entries(p, capfd):
    y = np.array([1.0, -1.0, 1.0, 1.0])
    for loss, minimum in ((rm.Logistic(), -0.75 * np.log(0.75) - 0.25 * np.log(0.25)), (rm.Hinge(), 0.5)):
        risk = linear_risk(sp.csr_array((4, p)), y, loss, fit_intercept=True)
        result = minimize(Objective(risk, L2(), 0.1), Newton(), w0=np.ones(p), tol=0.0, max_iter=20)
        assert result.value == pytest.approx(minimum)
    assert capfd.readouterr().err == ""


def test_a_start_with_zero_loss():
    """The solution for a larger lam may have zero loss, but it does not minimize J."""
    X = np.array([[0.0, 3.0], [1.0, 0.0], [2.0, 0.0], [4.0, 4.0], [2.0, 3.0], [3.0, 2.0]])
    data = X, np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]), None
    before, after = (Problem(rm.RocArea(), lam=lam, data=data) for lam in (0.1, 0.01))
    start = minimize(before.objective(), Newton(), tol=1e-9).w
    after.check(minimize(after.objective(), Newton(), start, tol=1e-6))


@pytest.mark.parametrize("sparse", [False, True])
def test_long_steps_on_counts_with_heavy_tails_do_not_increase_the_objective(sparse):
    """The first direction is a linear fit of y over its mean: scores of hundreds, and terms of 10^90."""
    rng = np.random.default_rng(4)
    X = np.column_stack([np.exp(2.5 * rng.standard_normal(4000)), rng.standard_normal((4000, 2))])
    y = rng.poisson(X[:, 0]).astype(float)
    risk = linear_risk(sp.csr_array(X) if sparse else X, y, rm.Poisson(), fit_intercept=True)
    obj = Objective(risk, L2(), 1e-6)
    values = [it.value for it in islice(Newton().iterates(obj, np.zeros(3)), 30)]
    assert (np.diff(values) <= 1e-9 * np.array(values[:-1])).all()
    assert minimize(obj, Newton(), max_iter=100).status == "converged"
