"""Several classes in raw units: columns of nearly the same levels, whose weights are nearly unpenalized."""

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm

LOSSES = [rm.MulticlassHinge(), rm.Softmax(), rm.MulticlassSquaredHinge()]


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


def fitted(X, y, loss, **settings):
    """The result of a run that is limited by its steps."""
    risk = rm.linear_risk(X, y, loss, **{"fit_intercept": True, **settings})
    return risk, rm.minimize(rm.Objective(risk, rm.L2(), 1e-4), max_iter=400)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("draw", [levels, units])
@pytest.mark.parametrize("seed", range(2))
def test_classes_in_raw_units_are_certified(loss, draw, seed):
    X, y = draw(seed)
    risk, result = fitted(X, y, loss)
    assert result.status == "converged"
    assert result.n_iter < 400
    assert result.value <= risk(np.zeros(risk.dim))[0] * (1 + 1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_bounds_in_raw_units_are_below_the_optimum_in_other_variables(loss):
    X, y = levels(7)
    shift, scale = X.mean(axis=0), X.std(axis=0)
    # the same minimum: with an intercept, columns may be centered, and scales belong to the penalty
    Z = rm.linear_risk((X - shift) / scale, y, loss, fit_intercept=True)
    reference = rm.minimize(rm.Objective(Z, rm.L2(np.repeat(scale**-2.0, 5)), 1e-4), tol=1e-5, max_iter=2000)
    _, result = fitted(X, y, loss)
    assert result.lower <= reference.value * (1 + 1e-9)
    assert reference.lower <= result.value * (1 + 1e-9)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["sparse", "float32", "no intercept", "weights"])
def test_siblings_of_classes_in_raw_units_are_certified(loss, kind):
    X, y = levels(1)
    settings = {}
    if kind == "sparse":
        X = sp.csr_array(X)
    elif kind == "float32":
        X = X.astype(np.float32)
    elif kind == "no intercept":
        settings["fit_intercept"] = False
    else:
        settings["sample_weight"] = np.random.default_rng(0).random(len(y))
    assert fitted(X, y, loss, **settings)[1].status == "converged"


def test_a_sample_of_the_rows_is_no_start_where_zero_is_better():
    # on a sample, few columns of heavy tails separate the classes, and large weights are useless elsewhere
    X, y = levels(44, n=820, p=4, k=8)
    risk, result = fitted(X, y, "softmax")
    assert result.trace[0]["value"] <= risk(np.zeros(risk.dim))[0] * (1 + 1e-12)
    assert result.status == "converged"


@pytest.mark.parametrize("loss", LOSSES)
def test_cuts_of_multipliers_are_below_the_loss(loss):
    rng = np.random.default_rng(0)
    y, c = rng.integers(0, 4, 30).astype(float), rng.random(30)
    dz, offset, _ = loss.multiplier_cut(rng.standard_normal((30, 4)) * c[:, None], y, c)
    assert np.abs(dz.sum(axis=1)).max() < 1e-12
    for size in (0.0, 0.1, 1.0, 10.0):
        z = size * rng.standard_normal((30, 4))
        assert float(offset) + float((dz * z).sum()) <= float(loss.value_grad(z, y, c)[0]) + 1e-12
