"""No penalty (alpha=0): bounds by self-concordance, against statsmodels, and problems without a minimum."""

import tracemalloc

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import statsmodels.api as sm

import riskmin as rm

CONCORDANT = {name: loss for name, loss in rm.LOSSES.items() if np.isfinite(loss.self_concordance)}


def rows(loss, n, seed, units=(1e-6, 1.0, 1e6)):
    """Rows with heavy tails, so that a few have most of the leverage."""
    rng = np.random.default_rng(seed)
    Z = rng.standard_t(2, size=(n, 3))
    z = np.clip(Z @ [0.4, -0.3, 0.0], -3, 3) + 0.2
    y = {
        "squared": z + rng.normal(size=n),
        "multivariate_squared": np.column_stack([z, -z]) + rng.normal(size=(n, 2)),
        "logistic": np.where(rng.random(n) < 1 / (1 + np.exp(-z)), 1.0, -1.0),
        "poisson": rng.poisson(np.exp(z)).astype(float),
        "negative_binomial": rng.negative_binomial(2, 2 / (2 + np.exp(z))).astype(float),
        "gamma": rng.gamma(2.0, np.exp(z) / 2),
        "tweedie": rng.poisson(np.exp(z)) * rng.gamma(2.0, size=n),
        "cox": np.where(rng.random(n) < 0.7, 1, -1) * np.ceil(9 * rng.exponential(size=n) / np.exp(z)),
        "softmax": np.where(rng.random(n) < 0.5, np.arange(n) % 3, rng.integers(0, 3, n)).astype(float),
    }[loss]
    return Z * units + [0.0, 1e3, 0.0], y, rng.integers(0, 3, n).astype(float)


def test_the_losses_are_those_that_are_documented():
    families = ["cox", "gamma", "negative_binomial", "poisson", "tweedie"]
    assert sorted(CONCORDANT) == sorted([*families, "logistic", "multivariate_squared", "softmax", "squared"])


@pytest.mark.parametrize("name", sorted(CONCORDANT))
def test_third_derivatives_are_bounded_by_second_ones(name):
    loss, rng, h = CONCORDANT[name], np.random.default_rng(0), 1e-3
    n = 5 if name == "cox" else 1  # the rows of which a third derivative depends
    for _ in range(50):
        k = 4 if loss.multi_output else 1
        z, d = rng.normal(scale=3, size=(2, n, k))
        y = np.array(
            {"logistic": [1.0], "softmax": [1.0], "cox": [3.0, 1.0, -2.0, 5.0, -4.0]}.get(name, [2.0])
        )

        def slope(t, z=z, d=d, y=y):
            scores = (z + t * d) if loss.multi_output else (z + t * d)[:, 0]
            return float(np.sum(np.reshape(loss.value_grad(scores, y, np.ones(n))[1], (n, -1)) * d))

        second = (slope(h) - slope(-h)) / (2 * h)
        third = (slope(h) - 2 * slope(0.0) + slope(-h)) / h**2
        change = d.max() - d.min() if loss.multi_output else abs(d).max()
        assert abs(third) <= loss.self_concordance * change * second * (1 + 1e-2) + 1e-6 * (1 + abs(second))


@pytest.mark.parametrize("fit_intercept", [True, False])
@pytest.mark.parametrize("name", sorted(CONCORDANT))
def test_every_bound_is_below_the_minimum(name, fit_intercept):
    """In each step from zero, on few rows with large leverage."""
    make = rm.LinearClassifier if name in ("logistic", "softmax") else rm.LinearRegressor
    for seed in range(2):
        X, y, weight = rows(name, 40, seed, units=(1.0, 1.0, 1.0))
        X -= [0.0, 0.0 if fit_intercept else 1e3, 0.0]
        model = make(name, alpha=0, fit_intercept=fit_intercept, tol=1e-10)
        result = model.fit(X, y, weight).result_
        assert result.status == "converged"
        # an independent minimum over standardized columns
        Z = (X - X.mean(0)) / X.std(0) if fit_intercept else X
        Z = np.column_stack([np.ones(40), Z]) if fit_intercept else Z
        k = {"softmax": 3, "multivariate_squared": 2}.get(name, 1)
        direct = rm.linear_risk(Z, y, name, sample_weight=weight)
        best = scipy.optimize.minimize(direct, np.zeros(Z.shape[1] * k), jac=True, tol=1e-9).fun
        assert result.value == pytest.approx(best, rel=1e-7, abs=1e-9)
        assert all(row["lower"] <= best * (1 + 1e-9) + 1e-12 for row in result.trace)


@pytest.mark.parametrize("name", ["squared", "logistic", "poisson"])
def test_estimators_agree_with_statsmodels(name, tmp_path):
    X, y, weight = rows(name, 120, 3)
    make = rm.LinearClassifier if name == "logistic" else rm.LinearRegressor
    model = make(name, alpha=0, tol=1e-11).fit(X, y, weight)
    Z = sm.add_constant((X - X.mean(0)) / X.std(0))
    family = {"squared": "Gaussian", "logistic": "Binomial", "poisson": "Poisson"}[name]
    theirs = sm.GLM(
        (y > 0) * 1.0 if name == "logistic" else y, Z, getattr(sm.families, family)(), freq_weights=weight
    ).fit(tol=1e-14, maxiter=300)
    np.testing.assert_allclose(np.ravel(model.coef_) * X.std(0), theirs.params[1:], rtol=1e-5, atol=1e-7)
    assert model.gap_ <= 1e-10 * model.objective_ + 1e-12
    rm.save_model(model, tmp_path / "m")
    assert rm.certify(rm.load_model(tmp_path / "m"), X, y, sample_weight=weight).status == "certified"
    sparse = scipy.sparse.csr_array(X)
    same = make(name, alpha=0.0, standardize=True, tol=1e-11).fit(sparse, y, weight)
    np.testing.assert_allclose(same.coef_, model.coef_, rtol=1e-6)


@pytest.mark.parametrize(
    ("store", "units", "fit_intercept"),
    [(np.asarray, 3, True), (np.asarray, 0, False), (scipy.sparse.csr_array, 3, False)],
)
def test_dependent_columns_have_weights_of_minimum_norm(store, units, fit_intercept):
    """More columns than rows, copied and constant columns, and rows of weight zero, as `lstsq` has it."""
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((20, 40)) * 10.0 ** rng.integers(-units, units + 1, 40)
    tall = rng.standard_normal((90, 3)) @ rng.standard_normal((3, 6))
    tall = np.column_stack([tall, tall[:, 0], np.ones(90)])
    for X in (wide, tall):
        y, c = rng.standard_normal(len(X)), rng.integers(0, 3, len(X)) + 0.0
        for targets, weight in ((y, None), (y, c), (rng.standard_normal((len(X), 2)) - 3, None)):
            model = rm.LinearRegressor("squared", alpha=0, fit_intercept=fit_intercept)
            model.fit(store(X), targets, weight)
            root = np.sqrt(np.ones(len(X)) if weight is None else weight)[:, None]
            A, B = (
                root * (Z - np.average(Z, axis=0, weights=root[:, 0] ** 2) * fit_intercept)
                for Z in (X, targets.reshape(len(X), -1))
            )
            expected = np.linalg.lstsq(A, B, rcond=1e-12)[0]
            assert model.result_.status == "converged"
            found = model.coef_.reshape(-1, X.shape[1]).T
            np.testing.assert_allclose(found, expected, atol=1e-8 * np.abs(expected).max())
            assert rm.certify(model, store(X), targets, sample_weight=weight).status == "certified"


def test_likelihoods_have_weights_of_minimum_norm():
    X, y, _ = rows("logistic", 60, 0, units=(1.0, 1.0, 1.0))
    plain = rm.LinearClassifier("logistic", alpha=0, tol=1e-10).fit(X, y)
    doubled = rm.LinearClassifier("logistic", alpha=0, tol=1e-10).fit(np.column_stack([X, 2 * X[:, 0]]), y)
    w = np.ravel(plain.coef_)
    np.testing.assert_allclose(np.ravel(doubled.coef_), [w[0] / 5, w[1], w[2], 2 * w[0] / 5], rtol=1e-5)


def test_memory_is_that_of_the_rows():
    """No matrix of n x n entries: for 20 000 rows it would have 3 gigabytes."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 4))
    model = rm.LinearRegressor("squared", alpha=0)
    tracemalloc.start()
    try:
        model.fit(X, X[:, 0] + rng.standard_normal(20_000))
        assert tracemalloc.get_traced_memory()[1] < 40 * X.nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "reg",
    [
        rm.Box(rm.L2(), -np.inf),
        rm.LinearConstraints(rm.L2(), [[1.0, -1.0]]),
        rm.Entropy(normalized=False, balanced=True),
        rm.GroupLasso([0, 1]),
        "l1",
        "qnorm:q=1.2",
    ],
)
def test_penalties_without_a_domain_are_left_out(reg):
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = rm.LinearRegressor("squared", alpha=0, regularizer=reg, tol=1e-9).fit(X, X @ [1.0, -2.0] + 0.5)
    np.testing.assert_allclose(model.coef_, [1.0, -2.0], atol=1e-6)


def test_the_command_fits_without_a_penalty(tmp_path, run):
    X, y, _ = rows("poisson", 80, 1, units=(1.0, 1.0, 1.0))
    path, model = tmp_path / "rows.csv", tmp_path / "m"
    np.savetxt(path, np.column_stack([y, X]), delimiter=",", header="y,a,b,c", comments="")
    args = (path, "--target", "y", "--loss", "poisson", "--lam", 0)
    assert run("fit", *args, "-o", model, "--quiet")[0] == 0
    assert run("certify", model, path, "--target", "y", "--quiet")[0] == 0
    code, _, err = run("fit", path, "--target", "y", "--loss", "huber_scale", "--lam", 0, "-o", model)
    assert code != 0
    assert "without a penalty" in err


@pytest.mark.parametrize(
    "case", ["nearly equal", "powers of a year", "far from zero", "light rows", "constant"]
)
def test_bounds_of_dependent_columns(case):
    """A Hessian in the columns themselves loses directions that have half of the digits."""
    rng = np.random.default_rng(0)
    x, e = rng.normal(size=(2, 60))
    X, y, c, intercept = np.c_[x, x + 1e-6 * e], x + e, np.ones(60), True
    if case == "powers of a year":
        t = np.arange(1960, 2020.0)
        X, y = np.stack([t, t**2, t**3], 1), ((t - 1985) / 35) ** 3 + 0.01 * e
    elif case == "far from zero":
        X, intercept = rng.normal(size=(60, 2)) + 1e7, False
        y = X[:, 0] - X[:, 1] + 0.1 * e
    elif case == "light rows":
        X, c[-3:] = np.c_[x, np.arange(60) >= 57], 1e-12
        y[-3:] = 1e5, 2e5, 3e5
    elif case == "constant":
        X = np.c_[x, np.full(60, 0.1)]
    model = rm.LinearRegressor("squared", alpha=0, fit_intercept=intercept, tol=1e-6).fit(X, y, c)
    result = model.result_
    # least squares in exact arithmetic, up to the last digits: columns that are orthogonal to each other
    root = np.sqrt(c / c.sum())
    columns = np.column_stack([np.ones(60), X - X.mean(axis=0)]) if intercept else X
    Q, _ = np.linalg.qr(root[:, None] * columns[:, np.abs(columns).max(axis=0) > 1e-12])
    residual = root * y - Q @ (Q.T @ (root * y))
    best = 0.5 * float(residual @ residual)
    assert result.lower <= best * (1 + 1e-6) + 1e-12
    assert result.value == pytest.approx(best, rel=1e-4, abs=1e-9)
    assert np.abs(result.w).max() < 1e9
