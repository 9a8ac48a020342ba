"""Difficult data: raw units, columns nearly free of a penalty, few rows, rare classes, no curvature."""

from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_digits, load_iris, load_wine

import riskmin as rm
from helpers import K, Problem, labels
from riskmin import L1, L2, Newton


def objective(X, y, loss, lam, reg=None, **settings):
    return rm.Objective(rm.linear_risk(X, y, loss, **settings), reg or L2(), lam)


def drawn(loss, settings):
    return Problem(loss, **settings).objective()


# ---------------------------------------------------------------- numbers in raw units
def categories(loss, intercept, scaled, n=200, levels=(60, 40, 20)):
    """One-hot encoded categories beside numbers in other units, some far from zero.

    Conjugate gradients left gaps of 0.1 to 1 there. Columns of equal size have penalties that differ as much.
    """
    rng = np.random.default_rng(0)
    parts = []
    for k in levels:
        share = 1 / np.arange(1, k + 1)
        level = rng.choice(k, size=n, p=share / share.sum())
        parts.append(sp.csr_array((np.ones(n), (np.arange(n), level)), shape=(n, k)))
    numbers = rng.standard_normal((n, 4)) * [1e5, 1e6, 1.0, 1e-4] + [1e6, 0, 0, 1e-4]
    X = sp.csr_array(sp.hstack([*parts, sp.csr_array(numbers)]))
    z = X @ np.concatenate([rng.standard_normal(sum(levels)), 1 / numbers.std(0)])
    z = (z - z.mean()) / z.std() + 0.3 * rng.standard_normal(n)
    size = np.sqrt(np.maximum(X.multiply(X).sum(0), 1e-12)) if scaled else np.ones(X.shape[1])
    y = np.sign(z) if isinstance(loss, rm.Hinge) else z
    X = sp.csr_array(X @ sp.diags_array(1 / size))
    return objective(X, y, loss, 1e-4, L2(size**-2.0), fit_intercept=intercept)


def levels(seed, n=160, p=6, k=5):
    """Columns of people and money: a level per row times ratios near one, in units of 1e4 to 1e9."""
    rng = np.random.default_rng(seed)
    level = np.exp(rng.normal(0, 2, n))
    X = np.round(level[:, None] * np.exp(rng.normal(0, 0.2, (n, p))) * 10 ** rng.uniform(4, 9, p))
    size = np.log(level) + rng.normal(0, 0.5, n)
    return X, np.searchsorted(np.quantile(size, np.arange(1, k) / k), size).astype(float)


def raw_lasso():
    X, y = levels(0, n=400)
    return objective(X, 1e3 * X[:, 0] + 1e9 * y, rm.Squared(), 1e9, L1(), fit_intercept=True)


def raw_table(seed, n=60, p=8):
    """Columns of sizes from 1e-6 to 1e6, far from zero, two of them collinear, one constant; and scores."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) + rng.uniform(-3, 3, p)
    X[:, -1], X[:, -2] = X[:, 0] + 2 * X[:, 1], 1.0
    z = X @ rng.standard_normal(p) + rng.standard_normal(n)
    return X * 10.0 ** rng.uniform(-6, 6, p), z - z.mean()


def raw_columns(loss, k):
    """First-order methods take thousands of steps on such tables, or never end."""
    X, z = raw_table(k, *[(60, 8), (12, 20)][k % 2])
    return objective(X, labels(loss, z, np.random.default_rng(0)), loss, 1e-4, L1(), fit_intercept=True)


def many_raw_columns(intercept):
    """Residuals in nearly unpenalized columns, those of large units, would leave gaps of nearly 1."""
    rng = np.random.default_rng(0)
    X = np.maximum(rng.standard_normal((300, 40)), 0)
    y = np.argmax(X @ rng.standard_normal((40, 6)) + 0.1 * rng.standard_normal((300, 6)), axis=1)
    X = (X + 1000 * rng.uniform(-1, 1, 40)) * 10 ** rng.uniform(-6, 6, 40)
    return objective(X, y.astype(float), rm.Softmax(), 1e-4, fit_intercept=intercept)


def raw_list(loss, k, n=30, p=5):
    """Rows, grades and queries; the units of the columns differ by up to twelve orders of magnitude."""
    rng = np.random.default_rng(k)
    Z = rng.standard_normal((n, p))
    s = Z @ rng.standard_normal(p) + rng.standard_normal(n)
    X = (Z + rng.choice([0.0, 1.0, 1000.0], p)) * 10.0 ** rng.uniform(-6, 6, p)
    y = np.digitize(s, np.quantile(s, [0.6, 0.85])).astype(float)
    qid, reg = np.sort(rng.integers(0, 5, n)), L1() if k % 2 else L2()
    if loss.task == "ranking":
        return objective(X, y, loss, 1e-6, reg, qid=qid)
    return objective(X, np.where(y > 0, 1.0, -1.0), loss, 1e-6, reg)


def raw_pairs():
    """Where the penalty of a column is below rounding, cutting planes lose their minimizer."""
    rng = np.random.default_rng(1)
    X = np.round(rng.standard_normal((30, 20)) * 10.0 ** rng.uniform(-6, 6, 20), 6)
    X += 10.0 ** rng.uniform(-3, 4, 20)
    qid = np.sort(rng.integers(0, 5, 30))
    return objective(X, rng.integers(0, 3, 30), rm.PairwiseHinge(), 1e-6, qid=qid)


# ---------------------------------------------------------------- few rows, rare and separable classes
def classes(n, p, k, spread, seed=0):
    rng = np.random.default_rng(seed)
    y = np.append(np.arange(k), rng.integers(0, k, n - k)).astype(float)
    return rng.standard_normal((k, p))[y.astype(int)] + spread * rng.standard_normal((n, p)) + 3.0, y


def rare():
    """Two more classes, of one row and of two."""
    X, y = classes(80, 5, 3, 2.0)
    y[:3] = 3.0, 4.0, 4.0
    return X, y


TABLES = {
    "iris": lambda: load_iris(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "rare": rare,
    "duplicates": lambda: (np.hstack([(T := classes(80, 4, 3, 2.0))[0], T[0], T[0][:, :2]]), T[1]),
    "wide": lambda: classes(30, 80, 4, 2.0),
    "separable": lambda: classes(80, 4, 4, 0.02),
    "digits": lambda: load_digits(return_X_y=True),
}


def unscaled(table, lam):
    return objective(*TABLES[table](), rm.MulticlassHinge(), lam, fit_intercept=True)


def signs(loss, lam, seed, n, p, share=0.3, intercept=False, size=0):
    """A share of the labels is positive; cutting planes alone have gaps of 0.01 to 1 on wide rows."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    score = X @ rng.standard_normal(p) / np.sqrt(p) + 0.5 * rng.standard_normal(n)
    y = np.where(score > np.quantile(score, 1 - share), 1.0, -1.0)
    return objective(X * 10.0 ** rng.uniform(-size, size, p), y, loss, lam, fit_intercept=intercept)


def nearly_parallel():
    """Columns far from 0 make the rows nearly parallel: dual ascent and cutting planes stall at 99 %."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((16, 150)) + 100 * rng.standard_normal(150)
    return objective(X, rng.standard_normal(16), rm.Quantile(0.25), 1e-5)


def many_classes():
    """Dual ascent, cutting planes and smoothing together make 1400 steps in vain."""
    rng = np.random.default_rng(24)
    X = rng.standard_normal((100, 20)) * 10 ** rng.uniform(-3, 3, 20)
    X, y = sp.csr_array(np.where(rng.uniform(size=X.shape) < 0.3, X, 0.0)), rng.integers(0, 12, 100)
    return objective(X, y, rm.MulticlassHinge(), 2e-6, fit_intercept=True, n_outputs=12)


def one_of_a_class(loss):
    """No sample of the rows has two classes."""
    y = np.where(np.arange(20_000) == 7, 1.0, -1.0)
    return objective(np.random.default_rng(0).standard_normal((20_000, 2)), y, loss, 1e-4, fit_intercept=True)


def without_weight(lam):
    """A class whose rows have no weight."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((21, 3)), rng.integers(0, 4, 21)
    return objective(X, y, rm.MulticlassHinge(), lam, sample_weight=1.0 * (y < 3), fit_intercept=True)


# ---------------------------------------------------------------- rows and columns that depend on each other
def twins(seed):
    """Rows of large numbers, each of them twice."""
    rng = np.random.default_rng(seed)
    X = 1e6 * rng.standard_normal((8, 16))
    X[4:] = X[:4]
    y = 1e3 * rng.standard_normal(8)
    return objective(X, y, rm.EpsilonInsensitive(0.5), 1e-10, fit_intercept=True)


def free_intercepts(seed):
    """Classes with an intercept whose curvature is zero."""
    X = sp.csr_array(np.random.default_rng(seed).standard_normal((6, 45)))
    return objective(X, [1, 3, 4, 3, 0, 4], rm.MulticlassSquaredHinge(), 1e-3, fit_intercept=True)


def separable_classes():
    """For separable classes and tiny lam, few multipliers lie strictly between their bounds."""
    X = np.random.default_rng(0).standard_normal((90, 30))
    return objective(X, np.where(X[:, 0] + X[:, 1] > 0.5, 1.0, -1.0), rm.Prbep(), 1e-6)


def spectra():
    """Cycles alone take hundreds of steps, since weights move along with their neighbors."""
    rng = np.random.default_rng(3)
    X = np.cumsum(rng.standard_normal((100, 60)), axis=1) + 10 * rng.standard_normal((100, 1))
    y = X[:, 5] - X[:, 40] + 0.1 * rng.standard_normal(100)
    risk = rm.linear_risk(X / X.std(axis=0), y / y.std(), rm.Squared())
    return rm.Objective(risk, L1(), 1e-3 * rm.lam_max(risk, L1()))


def correlated(fraction):
    """Wide, correlated and badly scaled columns."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((200, 10)) @ rng.standard_normal((10, 300))
    X = (X + 0.5 * rng.standard_normal((200, 300))) * rng.uniform(0.1, 3, 300)
    y = np.where(X[:, :5].sum(axis=1) + rng.standard_normal(200) > 0, 1.0, -1.0)
    risk = rm.linear_risk(X, y, rm.Logistic(), fit_intercept=True)
    return rm.Objective(risk, L1(), fraction * np.abs(risk(np.zeros(300))[1]).max())


def area_nearly_free():
    """The setting of paper D: an area under the ROC curve, smoothed, and lam = 1e-6."""
    rng = np.random.default_rng(9)
    X, y = rng.standard_normal((150, 6)), np.repeat([1.0, -1.0], [40, 110])
    X[:40, :2] += 0.7
    return objective(X, y, rm.RocArea(), 1e-6)


# ---------------------------------------------------------------- all of them
CLASSES = [rm.MulticlassHinge(), rm.Softmax(), rm.MulticlassSquaredHinge()]
LEVELS = levels(1)
RAW = [
    *((loss, *levels(0), {}) for loss in CLASSES),
    (CLASSES[0], sp.csr_array(LEVELS[0]), LEVELS[1], {}),
    *((loss, LEVELS[0].astype(np.float32), LEVELS[1], {}) for loss in CLASSES[1:]),
    *((loss, *LEVELS, {"fit_intercept": False}) for loss in CLASSES),
    (CLASSES[0], *LEVELS, {"sample_weight": np.random.default_rng(0).random(160)}),
    # on a sample, few columns of heavy tails separate the classes: it is no start where zero is better
    (CLASSES[1], *levels(44, n=820, p=4, k=8), {}),
]
COLUMNS = [
    *(rm.Hinge(), rm.SquaredHinge(), rm.Absolute(), rm.Quantile(0.2), rm.EpsilonInsensitive(0.3), rm.Huber()),
    *(rm.Squared(), rm.Logistic(), rm.Poisson(), rm.Exponential()),
]
LISTS = [
    *(rm.Ndcg(), rm.Mrr(), rm.ExpectedRankUtility(), rm.Ndcg(weights="discount")),
    *(rm.FBeta(), rm.PrecisionAtK(5), rm.RocArea()),
]
WIDE, SIZES = {"n": 60, "p": 120, "lam": 1e-3, "intercept": True}, np.logspace(-6, 6, 120)
FREE = {"n": 200, "p": 10, "lam": 1e-6, "units": np.logspace(0, -1, 10)}
UNITS = {"n": 160, "p": 6, "lam": 1e-4, "intercept": True, "offset": 10.0 ** np.arange(-6, 10, 3)}
UNITS["units"] = 10.0 ** np.array([3, -6, 10, 0, 7, -3])
AUTO, ACCELERATED, FIRST_ORDER = rm.Auto(), rm.AcceleratedGradient(), (rm.ProximalGradient(), rm.OwlQn())
# the objective as a function and its arguments, the solver, the tolerance and the most steps
CASES = [
    *(
        (categories, settings, Newton(direct=1), 1e-3, 400)
        for settings in (
            *((rm.Absolute(), False, False), (rm.Absolute(), True, True), (rm.Quantile(0.9), True, False)),
            *((rm.Hinge(), True, False), (rm.Hinge(), False, True)),
        )
    ),
    *((raw_columns, (loss, k), rm.InteriorPoint(), 1e-3, 60) for k, loss in enumerate(COLUMNS)),
    (raw_lasso, (), AUTO, 1e-3, 10_000),
    *((raw_columns, (loss, 4), AUTO, 1e-3, 149) for loss in CLASSES[:2]),
    *((many_raw_columns, (intercept,), AUTO, 1e-3, 100) for intercept in (False, True)),
    *((raw_list, (loss, k), AUTO, 1e-3, 10_000) for k, loss in enumerate(LISTS)),
    (raw_pairs, (), AUTO, 1e-3, 10_000),
    *((unscaled, (table, 1e-6), Newton(), 1e-5, 300) for table in TABLES if table != "digits"),
    *((unscaled, (t, 1e-2), rm.Bundle(), 1e-3, 10_000) for t in ("iris", "rare", "duplicates", "separable")),
    *(
        (signs, (rm.FBeta(), lam, 1, 40, 80, 0.3, intercept, size), AUTO, 1e-3, 100)
        for lam, intercept, size in ((1e-2, True, 0), (1e-6, False, 6), (1e-6, True, 6))
    ),
    *(
        (signs, (loss, 1e-4, 3, 16, 3, share, loss == rm.FBeta()), rm.ContingencyTables(), 1e-3, 10_000)
        for loss in (rm.FBeta(), rm.PrecisionAtK(4), rm.RecallAtK(7))
        for share in (1 / 16, 15 / 16)
    ),
    (signs, (rm.Prbep(), 1e-4, 0, 30, 80), AUTO, 1e-7, 10_000),
    (signs, (rm.Prbep(), 1e-3, 0, 60, 5), AUTO, 1e-7, 10_000),
    *((signs, (rm.RocArea(), lam, 0, 40, 120), AUTO, 1e-6, 10_000) for lam in (1e-2, 1e-6)),
    (nearly_parallel, (), AUTO, 1e-3, 100),
    (many_classes, (), AUTO, 1e-3, 200),
    (drawn, (rm.Softmax(), WIDE), AUTO, 1e-3, 100),
    (drawn, (rm.Softmax(), WIDE | {"units": SIZES, "offset": 100 * SIZES}), AUTO, 1e-3, 100),
    *((drawn, (loss, UNITS), AUTO, 1e-3, 400) for loss in CLASSES),
    (one_of_a_class, (rm.Logistic(),), Newton(), 1e-3, 10_000),
    (one_of_a_class, (rm.Hinge(),), AUTO, 1e-3, 10_000),
    *((without_weight, (lam,), rm.DualCoordinateAscent(), 1e-5, 500) for lam in (0.86, 0.05)),
    (drawn, (rm.ChainMaxMargin(), {"n": 15, "p": 6, "lam": 1e-4}), AUTO, 1e-3, 999),
    *((twins, (seed,), Newton(), 1e-3, 500) for seed in (14, 17)),
    *((free_intercepts, (seed,), Newton(), 1e-3, 500) for seed in (2, 10, 18)),
    (drawn, (rm.Hinge(), {"n": 300, "p": 5, "lam": 1e-4, "offset": 300.0}), Newton(), 1e-3, 500),
    (separable_classes, (), AUTO, 1e-3, 500),
    (spectra, (), rm.CoordinateDescent(), 1e-8, 12),
    # at lam = 1e-6, as in section 5.5.3 of paper D
    *((drawn, (a, FREE), ACCELERATED, 1e-4, 10_000) for a in (rm.Logistic(), rm.Squared())),
    (area_nearly_free, (), rm.Smoothing(ACCELERATED), 1e-2, 10_000),
]
SWEEP = [
    *((correlated, (f,), a, 1e-6, 50_000) for a in FIRST_ORDER for f in (0.3, 0.03, 0.003)),
    (unscaled, ("digits", 1e-6), Newton(), 1e-3, 400),
]


def check(obj, solver, tol, max_iter):
    """Check that a run is certified, and that its bound is below what other runs and points reach."""
    result = rm.minimize(obj, solver, tol=tol, max_iter=max_iter)
    assert result.status == "converged"
    assert 0 <= result.lower <= result.value <= obj.value(np.zeros(obj.risk.dim)) * (1 + 1e-12)
    other = rm.minimize(obj, rm.Bundle() if solver == AUTO else AUTO, tol=tol / 100, max_iter=10)
    assert result.lower <= other.value * (1 + 1e-9)
    assert other.lower <= result.value * (1 + 1e-9)


@pytest.mark.parametrize(
    ("make", "settings", "solver", "tol", "max_iter"),
    [*CASES, *(pytest.param(*case, marks=pytest.mark.exhaustive) for case in SWEEP)],
)
def test_difficult_data_are_certified(make, settings, solver, tol, max_iter):
    check(make(*settings), solver, tol, max_iter)


@pytest.mark.parametrize(("loss", "X", "y", "settings"), RAW)
def test_classes_in_raw_units_are_certified(loss, X, y, settings):
    obj = objective(X, y, loss, 1e-4, **{"fit_intercept": True, **settings})
    check(obj, AUTO, 1e-3, 400)
    start = rm.minimize(obj, max_iter=1).trace[0]["value"]
    assert start <= obj.value(np.zeros(obj.risk.dim)) * (1 + 1e-12)


@pytest.mark.parametrize("loss", CLASSES, ids=repr)
def test_bounds_in_raw_units_are_below_the_optimum_in_other_variables(loss):
    X, y = levels(7)
    shift, scale = X.mean(axis=0), X.std(axis=0)
    # the same minimum: with an intercept, columns may be centered, and scales belong to the penalty
    raw = objective(X, y, loss, 1e-4, fit_intercept=True)
    scaled = objective((X - shift) / scale, y, loss, 1e-4, L2(np.repeat(scale**-2.0, 5)), fit_intercept=True)
    result, best = rm.minimize(raw, max_iter=400), rm.minimize(scaled, tol=1e-5, max_iter=2000)
    assert result.lower <= best.value * (1 + 1e-9)
    assert best.lower <= result.value * (1 + 1e-9)


# ---------------------------------------------------------------- intercepts of classes
@pytest.mark.parametrize("solver", [Newton(), rm.Bundle()], ids=repr)
def test_classes_without_rows_do_not_increase_the_optimum(solver):
    """Zero weights for the empty classes are feasible."""
    case = Problem(rm.MulticlassHinge(), intercept=True, weighted=True, offset=3.0)
    result = rm.minimize(case.objective(n_outputs=K + 2), solver, tol=1e-6)
    assert result.status == "converged"
    assert result.value <= case.optimum * (1 + 1e-6)


@pytest.mark.parametrize("loss", CLASSES[:2], ids=repr)
def test_intercepts_make_shifts_of_the_columns_free(loss):
    case, moved = (Problem(loss, intercept=True, offset=k * np.arange(1, 5)) for k in (0.0, 100.0))
    values = [rm.minimize(moved.objective(), solver, tol=1e-6).value for solver in (Newton(), rm.Bundle())]
    assert values == pytest.approx([case.optimum] * 2, rel=2e-6)


# ---------------------------------------------------------------- no features, no loss, long steps
def test_a_risk_with_zero_features():
    result = rm.minimize(objective(np.zeros((6, 2)), [1.0, -1] * 3, rm.RocArea(), 0.1), Newton(), tol=1e-9)
    assert (result.status, result.value) == ("converged", 1.0)


@pytest.mark.parametrize("p", [1, 100])
def test_a_matrix_without_entries(p, capfd):
    y = np.array([1.0, -1.0, 1.0, 1.0])
    for loss, minimum in ((rm.Logistic(), -0.75 * np.log(0.75) - 0.25 * np.log(0.25)), (rm.Hinge(), 0.5)):
        obj = objective(sp.csr_array((4, p)), y, loss, 0.1, fit_intercept=True)
        result = rm.minimize(obj, Newton(), w0=np.ones(p), tol=0.0, max_iter=20)
        assert result.value == pytest.approx(minimum)
    assert capfd.readouterr().err == ""


def test_a_start_with_zero_loss():
    """The solution for a larger lam may have zero loss, but it does not minimize J."""
    X = np.array([[0.0, 3.0], [1.0, 0.0], [2.0, 0.0], [4.0, 4.0], [2.0, 3.0], [3.0, 2.0]])
    data = X, np.array([-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]), None
    before, after = (Problem(rm.RocArea(), lam=lam, data=data) for lam in (0.1, 0.01))
    start = rm.minimize(before.objective(), Newton(), tol=1e-9).w
    after.check(rm.minimize(after.objective(), Newton(), start, tol=1e-6))


@pytest.mark.parametrize("sparse", [False, True])
def test_long_steps_on_counts_with_heavy_tails_do_not_increase_the_objective(sparse):
    """The first direction is a linear fit of y over its mean: scores of hundreds, and terms of 10^90."""
    rng = np.random.default_rng(4)
    X = np.column_stack([np.exp(2.5 * rng.standard_normal(4000)), rng.standard_normal((4000, 2))])
    y = rng.poisson(X[:, 0]).astype(float)
    obj = objective(sp.csr_array(X) if sparse else X, y, rm.Poisson(), 1e-6, fit_intercept=True)
    values = [it.value for it in islice(Newton().iterates(obj, np.zeros(3)), 30)]
    assert (np.diff(values) <= 1e-9 * np.array(values[:-1])).all()
    assert rm.minimize(obj, Newton(), max_iter=100).status == "converged"
