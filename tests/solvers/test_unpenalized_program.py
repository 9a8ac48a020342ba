"""No penalty (alpha=0) for piecewise linear and quadratic losses, under constraints of the weights."""

import warnings

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize
import scipy.sparse
import statsmodels.api as sm

import riskmin as rm
from reference import losses, omega

UNITS, OFFSET = np.array([1e-6, 1.0, 1e6, 1e9]), np.array([0.0, 50.0, 1e8, 0.0])
REGRESSION = [
    rm.Absolute(),
    rm.Quantile(0.9),
    rm.Huber(0.5),
    rm.EpsilonInsensitive(0.3),
    rm.EpsilonInsensitive(0.1, power=2.0),
    rm.Squared(),
]
CLASSIFICATION = [rm.Hinge(), rm.SquaredHinge(), rm.SmoothedHinge(0.5)]
A = np.array([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 0.0, 0.0]])
DOMAINS = {
    "none": rm.L2(),
    "nonnegative": rm.Box(rm.L2(), 0.0),
    "box": rm.Box(rm.L2(), -0.2, [0.5, 0.1, 1.0, np.inf]),
    "sum and order": rm.LinearConstraints(rm.L2(), A, [-np.inf, 0.0], [0.5, np.inf]),
    "equality in a box": rm.LinearConstraints(rm.Box(rm.L2(), 0.0), A[:1], 1.0, 1.0),
}


def rows(loss, n=60, seed=0, integers=False):
    rng = np.random.default_rng(seed)
    Z = rng.integers(-2, 3, (n, 4)).astype(float) if integers else rng.standard_t(3, (n, 4))
    z = Z @ [0.5, -0.4, 0.3, 0.0] + 0.2 + rng.standard_t(2, n)
    y = np.where(z > 0, 1.0, -1.0) if loss.task == "classification" else z
    return Z, np.round(y) if integers else y, rng.integers(0, 3, n).astype(float)


def minimum(loss, reg, Z, y, weight):
    w, b, c = cp.Variable(4), cp.Variable(), weight / weight.sum()
    problem = cp.Problem(cp.Minimize(c @ losses(loss, Z @ w + b, y)), omega(reg, w)[1])
    accurate = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-11)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem.solve(solver=cp.CLARABEL, **accurate)
    return float(problem.value)


def scaled(reg, s):
    """The same constraints for columns that are multiplied by s."""
    return reg if type(reg) is rm.L2 else reg.scaled(s)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("loss", [*REGRESSION, *CLASSIFICATION], ids=repr)
def test_every_bound_is_below_the_minimum_in_any_units(loss, domain):
    """In each step, on rows with ties, of weight zero, and in units from 1e-6 to 1e9."""
    make = rm.LinearClassifier if loss.task == "classification" else rm.LinearRegressor
    for seed, integers in ((0, False), (1, True)):
        Z, y, weight = rows(loss, seed=seed, integers=integers)
        reg = DOMAINS[domain]
        best = minimum(loss, reg, Z, y, weight)
        model = make(loss, alpha=0, regularizer=scaled(reg, UNITS), tol=1e-6)
        model.fit(Z * UNITS + OFFSET, y, weight)
        assert model.result_.status == "converged"
        assert model.objective_ == pytest.approx(best, rel=2e-6, abs=1e-9)
        assert all(row["lower"] <= best * (1 + 1e-9) + 1e-10 for row in model.result_.trace)
        v = np.ravel(model.coef_) * UNITS
        assert np.isfinite(scaled(reg, UNITS).value(np.ravel(model.coef_)))
        assert np.isfinite(reg.value(reg.prox(v, 0.0)))
        np.testing.assert_allclose(reg.prox(v, 0.0), v, atol=1e-8)


@pytest.mark.parametrize("level", [0.1, 0.5])
def test_quantile_regression_is_that_of_statsmodels(level, tmp_path):
    table = sm.datasets.engel.load_pandas().data
    X, y = table[["income"]].to_numpy(), table["foodexp"].to_numpy()
    model = rm.LinearRegressor(f"quantile:level={level}", alpha=0, tol=1e-10).fit(X, y)
    theirs = sm.QuantReg(y, sm.add_constant(X)).fit(q=level, p_tol=1e-10, max_iter=5000)
    np.testing.assert_allclose([model.intercept_, *model.coef_], theirs.params, rtol=1e-4)
    assert model.gap_ <= 1e-10 * model.objective_
    rm.save_model(model, tmp_path / "m")
    assert rm.certify(rm.load_model(tmp_path / "m"), X, y).status == "certified"


@pytest.mark.parametrize("store", [np.asarray, scipy.sparse.csr_array])
def test_nonnegative_least_squares_is_that_of_scipy(store):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 10))
    y = X @ rng.standard_normal(10) + rng.standard_normal(80)
    model = rm.LinearRegressor("squared", alpha=0, positive=True, fit_intercept=False, tol=1e-9)
    np.testing.assert_allclose(model.fit(store(X), y).coef_, scipy.optimize.nnls(X, y)[0], atol=1e-4)


def test_separable_classes_and_exact_fits_have_the_minimum_zero():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20, 50))
    assert rm.LinearClassifier("hinge", alpha=0).fit(X, X[:, 0] > 0).objective_ < 1e-5
    assert rm.LinearRegressor("absolute", alpha=0).fit(X, X[:, 0]).objective_ < 1e-5


def test_dependent_columns_are_refused_with_constraints_only():
    Z, y, _ = rows(rm.Absolute())
    X = np.column_stack([Z, Z[:, 0] + Z[:, 1]])
    plain, more = (rm.LinearRegressor("absolute", alpha=0, tol=1e-8).fit(D, y) for D in (Z, X))
    assert more.objective_ == pytest.approx(plain.objective_, rel=1e-7)
    with pytest.raises(ValueError, match="constraints need independent columns"):
        rm.LinearRegressor("absolute", alpha=0, positive=True).fit(X, y)


@pytest.mark.parametrize("loss", ["huber_scale", "expectile"])
def test_losses_without_a_proof_are_named(loss):
    Z, y, _ = rows(rm.Absolute())
    with pytest.raises(ValueError, match=r"without a penalty \(alpha=0\), \w+ has no proof: give alpha > 0"):
        rm.LinearRegressor(loss, alpha=0).fit(Z, y)
