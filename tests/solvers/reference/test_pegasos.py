"""Pegasos: the steps of the paper, its rate, the certificate, and stochastic steps."""

from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

from riskmin import L2, Hinge, Logistic, Objective, Pegasos, Poisson, Quantile, linear_risk, minimize

RNG = np.random.default_rng(3)
X = RNG.standard_normal((100, 6)) * [1.0, 1.0, 2.0, 0.5, 1.0, 0.1]
Y = np.where(X @ [1.0, -1.0, 0.5, 0.0, 0.0, 2.0] + 0.5 * RNG.standard_normal(100) > 0, 1.0, -1.0)
C = RNG.uniform(0.5, 1.5, 100)


def objective(loss=None, lam=0.05, rows=X, **settings):
    return Objective(linear_risk(rows, Y, loss or Hinge(), **settings), L2(), lam)


def test_steps_are_those_of_the_paper():
    """w <- (1 - 1 / t) w + sum of y x over the rows with margin below 1, over lam t n, projected."""
    lam, w, radius = 0.05, np.zeros(6), np.sqrt(2 / 0.05)
    for t, iterate in enumerate(islice(Pegasos().iterates(objective(), np.zeros(6)), 60), 1):
        np.testing.assert_allclose(iterate.w, w, rtol=1e-10, atol=1e-12)
        active = Y * (X @ w) < 1
        w = (1 - 1 / t) * w + (Y * active) @ X / (lam * t * len(Y))
        w *= min(1.0, radius / np.linalg.norm(w))


def test_gap_falls_as_the_theorem_says():
    """min_s J(w_s) - min J <= G^2 (1 + log t) / (2 lam t), G the largest subgradient of J in the ball."""
    obj, lam = objective(), 0.05
    best = minimize(obj, tol=1e-9).value
    G = lam * np.sqrt(2 / lam) + np.linalg.norm(X, axis=1).mean()
    value = np.inf
    for t, iterate in enumerate(islice(Pegasos().iterates(obj, np.zeros(6)), 600), 1):
        value = min(value, iterate.value)
        assert value - best <= G**2 * (1 + np.log(t)) / (2 * lam * t)
        assert obj.lower(iterate.cut) <= best * (1 + 1e-9)


def test_mean_of_the_cuts_leads_to_the_next_point():
    """Without a projection, w_{t+1} is the minimizer of lam Omega plus the mean of the cuts so far."""
    obj = objective(Quantile(0.3), lam=0.5)
    first, second = islice(Pegasos().iterates(obj, np.zeros(6)), 2)
    np.testing.assert_allclose(second.w, obj.argmin(first.cut), rtol=1e-12)


@pytest.mark.parametrize(("form", "size"), [(np.asarray, 5), (sp.csr_array, 5), (np.asarray, 1000)])
def test_samples_have_the_risk_of_all_weighted_rows_as_their_mean(form, size):
    obj = objective(Logistic(), rows=form(X), sample_weight=C)
    result = minimize(obj, Pegasos(batch_size=size), tol=1e-2, max_iter=1000)
    assert result.status == "converged"
    assert result.value == pytest.approx(minimize(obj, tol=1e-8).value, rel=1e-2)


def test_an_objective_that_is_zero_up_to_rounding():
    """A single count with an intercept is fitted exactly by w = 0, where J may be computed below 0."""
    for count in np.random.default_rng(0).uniform(0.1, 20, 30):
        risk = linear_risk(np.array([[1.0, 2.0]]), np.array([count]), Poisson(), fit_intercept=True)
        result = minimize(Objective(risk, L2(), 1e-12), Pegasos(), max_iter=5)
        assert abs(result.value) < 1e-12
