"""Quantiles that do not cross: against Clarabel, between guards, in raw units, and calibrated intervals."""

import warnings

import cvxpy as cp
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import cross_val_score

import riskmin as rm

LEVELS = (0.1, 0.3, 0.5, 0.9)
UNITS, OFFSET = np.array([1e-6, 1.0, 1e6, 1e3, 1.0]), np.array([0.0, 50.0, 1e8, 0.0, -3.0])


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5))
    return X, X.sum(axis=1) + (1 + np.abs(X[:, 0])) * rng.standard_t(3, n)


def minimum(X, y, alpha, box=None, weight=None, cross=False):
    n, k = len(X), len(LEVELS)
    W, b = cp.Variable((5, k)), cp.Variable((1, k))
    Z, c = X @ W + np.ones((n, 1)) @ b, np.full(n, 1 / n) if weight is None else weight / weight.sum()
    value = alpha / 2 * cp.sum_squares(W)
    for j, q in enumerate(LEVELS):
        value += c @ cp.maximum(q * (y - Z[:, j]), (q - 1) * (y - Z[:, j]))
    rows = np.flatnonzero(c)
    constraints = [Z[rows, j] <= Z[rows, j + 1] for j in range(k - 1)]
    if box is not None:  # the largest difference in a box is at a corner
        d = [W[:, j] - W[:, j + 1] for j in range(k - 1)]
        ends = [cp.maximum(cp.multiply(box[:, 0], e), cp.multiply(box[:, 1], e)) for e in d]
        constraints = [b[0, j + 1] - b[0, j] >= cp.sum(end) for j, end in enumerate(ends)]
    problem = cp.Problem(cp.Minimize(value), [] if cross else constraints)
    accurate = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver=cp.CLARABEL, **accurate)
    return float(problem.value)


def corners(box):
    return np.array(np.meshgrid(*box)).reshape(len(box), -1).T


@pytest.mark.parametrize("alpha", [1e-6, 1e-2, 10.0])
@pytest.mark.parametrize("n", [16, 60])
def test_the_minimum_is_that_of_clarabel_and_no_rows_cross(n, alpha):
    for seed in range(3):
        X, y = table(n, seed)
        weight = np.random.default_rng(seed).integers(0, 3, n).astype(float) if seed else None
        model = rm.LinearQuantiles(LEVELS, alpha=alpha, tol=1e-6).fit(X, y, weight)
        best = minimum(X, y, alpha, weight=weight)
        assert model.result_.status == "converged"
        assert model.objective_ == pytest.approx(best, rel=2e-6)
        assert all(row["lower"] <= best * (1 + 1e-8) for row in model.result_.trace)
        used = slice(None) if weight is None else weight > 0
        assert (np.diff(model.predict(X[used])) >= 0).all()
        # nor does the hull of the rows
        mixed = np.random.default_rng(0).dirichlet(np.ones(len(X[used])), 200) @ X[used]
        assert (np.diff(model.predict(mixed)) >= -1e-9).all()
        if n == 16 and alpha == 1e-6:  # the constraint matters
            assert best > minimum(X, y, alpha, weight=weight, cross=True) * (1 + 1e-4)


@pytest.mark.parametrize("alpha", [1e-6, 1e-2])
def test_quantiles_do_not_cross_in_a_box(alpha):
    X, y = table(40)
    box = np.column_stack([X.min(axis=0) - 1, X.max(axis=0) + 1])
    model = rm.LinearQuantiles(LEVELS, box=box, alpha=alpha, tol=1e-6).fit(X, y)
    best = minimum(X, y, alpha, box=box)
    assert model.objective_ == pytest.approx(best, rel=2e-6)
    assert model.lower_bound_ <= best * (1 + 1e-8)
    assert (np.diff(model.predict(corners(box))) >= 0).all()
    # the hull of the rows is smaller
    assert (np.diff(rm.LinearQuantiles(LEVELS, alpha=alpha).fit(X, y).predict(corners(box))) < 0).any()


def test_where_they_do_not_cross_they_are_the_separate_quantiles():
    X, y = table(300)
    joint = rm.LinearQuantiles((0.2, 0.8), alpha=1e-3, tol=1e-9).fit(X, y)
    for k, level in enumerate((0.2, 0.8)):
        one = rm.LinearRegressor(rm.Quantile(level), alpha=1e-3, tol=1e-9).fit(X, y)
        np.testing.assert_allclose(joint.coef_[k], one.coef_, atol=1e-4)
        np.testing.assert_allclose(joint.predict(X)[:, k], one.predict(X), atol=1e-3)


def test_raw_columns_and_labels():
    """Units from 1e-6 to 1e6, offsets up to 1e8, labels near 1e9, 16 rows: default settings."""
    X, y = table(16)
    model = rm.LinearQuantiles().fit(X * UNITS + OFFSET, 1e3 * y + 1e9)
    assert model.result_.status == "converged"
    assert model.gap_ <= 1e-3 * model.objective_
    assert (np.diff(model.predict(X * UNITS + OFFSET)) >= 0).all()
    constant = rm.LinearQuantiles().fit(np.ones((10, 2)), np.arange(10.0))
    assert (np.diff(constant.predict(np.ones((10, 2)))) >= 0).all()


def test_files_and_certificates(tmp_path):
    X, y = table(50)
    model = rm.LinearQuantiles(LEVELS, alpha=1e-3).fit(X, y).conformalize(*table(60, 1))
    rm.save_model(model, tmp_path / "m")
    loaded = rm.load_model(tmp_path / "m")
    np.testing.assert_array_equal(loaded.predict_interval(X), model.predict_interval(X))
    assert rm.certify(loaded, X, y).status == "certified"
    loaded.intercept_[1] += 100.0
    assert not rm.certify(loaded, X, y)


def test_calibrated_intervals_cover_new_rows():
    """The mean coverage is at least the difference of the levels, also where the model is wrong."""
    covered, plain = [], []
    for seed in range(60):
        X, y = table(400, seed)
        model = rm.LinearQuantiles((0.1, 0.9), alpha=1e-3).fit(X[:40], y[:40])
        low, high = model.predict_interval(X[100:]).T
        plain.append(((low <= y[100:]) & (y[100:] <= high)).mean())
        low, high = model.conformalize(X[40:100], y[40:100]).predict_interval(X[100:]).T
        covered.append(((low <= y[100:]) & (y[100:] <= high)).mean())
    assert np.mean(plain) < 0.78
    assert 0.79 < np.mean(covered) < 0.84


def test_scores_and_searches_are_those_of_scikit_learn():
    X, y = table(90)
    model = rm.LinearQuantiles(LEVELS, alpha=1e-3)
    assert np.isfinite(cross_val_score(clone(model), X, y, cv=3)).all()
    fitted = model.fit(X, y)
    penalty = 0.5e-3 * float((fitted.coef_**2).sum())
    assert -fitted.score(X, y) + penalty == pytest.approx(fitted.objective_, rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"levels": (0.9, 0.1)}, "increasing numbers between 0 and 1"),
        ({"levels": 0.5}, "increasing numbers between 0 and 1"),
        ({"levels": (0.5, 1.0)}, "increasing numbers between 0 and 1"),
        ({"box": [[0, 1]]}, "the least and the largest number of each of the 5 columns"),
        ({"solver": "lbfgs"}, "leave solver out"),
    ],
)
def test_settings_that_are_wrong_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        rm.LinearQuantiles(**settings).fit(*table(20))


def test_few_rows_do_not_calibrate():
    model = rm.LinearQuantiles((0.05, 0.95)).fit(*table(30))
    with pytest.raises(ValueError, match="5 rows cannot calibrate intervals of coverage"):
        model.conformalize(*table(5))
