"""AcceleratedGradient: the rate of its theorem, optima by cvxpy, and smoothed losses."""

from itertools import islice

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin as rm
from helpers import Problem


# ---------------------------------------------------------------- Nesterov 2007, theorem 6
@settings(max_examples=10, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1.3, 2.0, 5.0]),
    st.sampled_from([1.0, 1.1, 2.0]),
    st.booleans(),
)
def test_the_rate_of_the_theorem(seed, gamma_u, gamma_d, strong):
    """For least squares, J(w_k) - J* <= |w0 - w*|^2 / (2 A_k), and A_k grows at the rate of the theorem."""
    rng = np.random.default_rng(seed)
    n, p = 20, 6
    X = rng.standard_normal((n, p)) * 10 ** rng.uniform(-1.5, 0.5, p)
    y, lam = X @ rng.standard_normal(p) + rng.standard_normal(n), 10 ** rng.uniform(-4, 0)
    J = rm.Objective(rm.linear_risk(X, y, rm.Squared()), rm.L2() if strong else rm.L1(), lam)
    star = rm.minimize(J, rm.CoordinateDescent(), tol=1e-12)
    L = float(np.linalg.eigvalsh(X.T @ X / n)[-1])
    w0 = rng.standard_normal(p)
    distance_sq = float((w0 - star.w) @ (w0 - star.w))
    steps = islice(rm.AcceleratedGradient(gamma_u, gamma_d).iterates(J, w0), 1, 50)
    for k, it in enumerate(steps, start=1):
        if not np.array_equal(it.state()["start"], w0):
            break  # a restart begins another run
        quadratic_rate = k**2 / (2 * gamma_u * L)
        growth = 1 + np.sqrt(lam / (2 * gamma_u * L)) if strong else 1.0
        A = it.info["A"]
        assert max(quadratic_rate, 2 / (gamma_u * L) * growth ** (2 * (k - 1))) * (1 - 1e-9) <= A
        assert it.value - star.value <= distance_sq / (2 * A) + star.gap + 1e-12 * (1 + star.value)
        if strong:  # the mixture of all cuts proves it, with the distance of its own minimizer from w0
            minimizer_distance_sq = float(((w0 + it.state()["mean_a"] / lam) ** 2).sum())
            assert it.value - J.lower(it.cut) <= minimizer_distance_sq / (2 * A) + 1e-11 * (1 + it.value)


def test_a_start_outside_the_domain_is_projected():
    J = Problem(rm.Logistic(), rm.Box(rm.L2(), -0.1, 0.1)).objective()
    assert np.isfinite(next(rm.AcceleratedGradient().iterates(J, np.full(4, 9.0))).value)
