"""The lower bounds for bundle methods on F1, break-even point and ROC area: exact iterates and gaps.

C: Zhang, Saha, Vishwanathan, NIPS 2010, theorem 6. D: the same, JMLR 13, 2012, theorems 4, 5 and 7.
"""

import itertools
import math
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import riskmin as rm
from helpers import name_of
from riskmin.regularizers import L2

EPS = 1e-6


class ChosenSubgradient:
    """A risk with the subgradient chosen in the proofs where several labellings attain the maximum.

    The losses of riskmin prefer the true labels, whose slope is zero. The proofs take the first negative row
    among those with the highest score. The loss returns this choice for slightly perturbed scores, and it is
    also a subgradient at the original scores, since the tangent there touches the loss.
    """

    def __init__(self, X, y, loss):
        self.X, self.y, self.loss, self.dim = X, y, loss, X.shape[1]
        self.c = np.full(len(y), 1 / len(y))

    def __call__(self, w):
        z = self.X @ w
        value, _ = self.loss.value_grad(z, self.y, self.c)
        negative = np.flatnonzero(self.y < 0)
        top = negative[z[negative] >= z[negative].max() - 1e-8]
        perturbed = z.copy()
        perturbed[top[0]] += EPS
        if isinstance(self.loss, rm.FBeta):
            perturbed[self.y > 0] += EPS  # the positive row is not missed either
        if isinstance(self.loss, rm.RocArea):
            perturbed[top[1:]] -= EPS
        perturbed_value, dz = self.loss.value_grad(perturbed, self.y, self.c)
        assert value == pytest.approx(perturbed_value + dz @ (z - perturbed), abs=1e-9)
        return float(value), self.X.T @ dz


def iterates(risk, w0, n):
    obj = rm.Objective(risk, L2(), 1.0)
    return list(islice(rm.Bmrm().iterates(obj, w0), n + 1))


def optimum(X, y, loss):
    """The minimizer of J to 1e-9, since the bounds of the theorems are relative to the minimum."""
    result = rm.minimize(rm.Objective(rm.linear_risk(X, y, loss), L2(), 1.0), rm.Bundle(), tol=1e-9)
    assert result.status == "converged"
    return result


def basis(p, *entries):
    e = np.zeros(p)
    for k, value in entries:
        e[k - 1] = value  # the papers count from 1
    return e


# ---------------------------------------------------------------- C, Theorem 6; D, Theorems 4 and 5
def f1(n):
    """Rows, labels and the start for F1; n - 1 rows are negative."""
    rows = [basis(n + 1, (1, -n / (2 * math.sqrt(3))), (i + 1, -n / 2)) for i in range(1, n)]
    X = np.array([*rows, basis(n + 1, (1, math.sqrt(3) * n / 2), (n + 1, n / 2))])
    return X, np.append(-np.ones(n - 1), 1.0), basis(n + 1, (1, 1 / math.sqrt(3)))


def break_even(n):
    """The same for the break-even point."""
    c = math.sqrt(2) / 4
    rows = [basis(n + 2, (3, -c * n), (i + 2, -c * n)) for i in range(2, n + 1)]
    X, y = np.array([basis(n + 2, (2, c * n)), *rows]), np.append(1.0, -np.ones(n - 1))
    return X, y, basis(n + 2, (1, 1.0), (2, 2 * c), (3, 2 * c))


def roc_area(n):
    """The same for the ROC area, with n negative rows."""
    rows = [basis(n + 2, (i + 1, -n)) for i in range(2, n + 2)]
    X, y = np.array([basis(n + 2, (2, math.sqrt(n))), *rows]), np.append(1.0, -np.ones(n))
    return X, y, basis(n + 2, (1, 1.0), (2, 1 / math.sqrt(n)))


def f1_point(n, k):
    """w_k = (1/sqrt 3, 1/k, ..., 1/k, 0, ...)."""
    return basis(n + 1, (1, 1 / math.sqrt(3)), *((j, 1 / k) for j in range(2, k + 2)))


def break_even_point(n, k):
    """w_k = 2c (e_2 + e_3 + (e_4 + ... + e_{k+3}) / k)."""
    c = math.sqrt(2) / 4
    return basis(n + 2, (2, 2 * c), (3, 2 * c), *((j, 2 * c / k) for j in range(4, k + 4)))


@pytest.mark.parametrize("eps", [0.3, 0.03])
@pytest.mark.parametrize(
    ("loss", "example", "point", "base", "factor", "needed"),
    [(rm.FBeta(), f1, f1_point, 1 / 3, 1 / 2, 3), (rm.Prbep(), break_even, break_even_point, 2, 1 / 4, 5)],
    ids=["theorem 6 of C", "theorem 4 of D"],
)
def test_bmrm_needs_one_over_eps_steps(loss, example, point, base, factor, needed, eps):
    """J(w_k) = factor (base + 1/k), so that a gap of eps takes 1 / (needed eps) steps."""
    n = math.ceil(1 / eps) + 1
    X, y, w0 = example(n)
    steps, best = iterates(ChosenSubgradient(X, y, loss), w0, n - 1), optimum(X, y, loss)
    for k in range(1, n):
        np.testing.assert_allclose(steps[k].w, point(n, k), atol=1e-8)
        assert steps[k].value == pytest.approx(factor * (base + 1 / k), abs=1e-9)
        gap = min(it.value for it in steps[1 : k + 1]) - best.value
        assert gap >= factor * (1 / k - 1 / (n - 1)) - 1e-9
        assert gap > eps or not k < 1 / (needed * eps)
    assert best.lower <= factor * (base + 1 / (n - 1))


@pytest.mark.parametrize("n", [3, 30])
def test_bmrm_satisfies_theorem_5_of_d(n):
    """ROC area: w_k = e_2 / sqrt n + (e_3 + ... + e_{k+2}) / k, and the gap is exactly 1 / (2k) + 1 / (4n).

    The paper once writes the hinge with x_i - x_1 but means x_1 - x_i, as its u_i shows.
    """
    X, y, w0 = roc_area(n)
    steps = iterates(ChosenSubgradient(X, y, rm.RocArea()), w0, n)
    for k in range(1, n + 1):
        expected = basis(n + 2, (2, 1 / math.sqrt(n)), *((j, 1 / k) for j in range(3, k + 3)))
        np.testing.assert_allclose(steps[k].w, expected, atol=1e-8)
        gap = min(it.value for it in steps[1 : k + 1]) - 1 / (4 * n)
        assert gap == pytest.approx(1 / (2 * k) + 1 / (4 * n), abs=1e-9)
        assert gap > 1 / n or not k < 2 * n / 3
    best = optimum(X, y, rm.RocArea())
    assert best.value == pytest.approx(1 / (4 * n), rel=1e-8)
    star = basis(n + 2, (2, 0.5 / math.sqrt(n)), *((j, 0.5 / n) for j in range(3, n + 3)))
    np.testing.assert_allclose(best.w, star, atol=1e-4)


@pytest.mark.parametrize(
    ("loss", "example"), [(rm.RocArea(), roc_area), (rm.Prbep(), break_even)], ids=name_of
)
def test_smoothing_is_faster_than_the_bound(loss, example):
    """A gap of 1/n on the same data in steps that do not grow with n, where a bundle needs 2n/3 or n/5."""
    n = 400
    X, y, w0 = example(n)
    result = rm.minimize(rm.Objective(rm.linear_risk(X, y, loss), L2(), 1.0), rm.Smoothing(), w0, tol=1e-4)
    assert result.status == "converged"
    steps = next(k for k, row in enumerate(result.trace) if row["value"] - result.lower <= 1 / n)
    assert steps < n / 20


# ---------------------------------------------------------------- D, Theorem 7
def by_paper(z, y, mu):
    """a_i of (27), and mu in the paper's scaling: here it multiplies 2 / n of the squares."""
    return -2 / len(z) * y * z, 2 * mu / len(z)


def dual(theta, z, y, mu):
    """D(theta) of (26), whose first term is a maximum over all labellings."""
    n, (a, mu) = len(z), by_paper(z, y, mu)
    positive, worst = y > 0, -math.inf
    for wrong in itertools.product([False, True], repeat=n):
        flips = np.array(wrong)
        misses = int(np.sum(flips & positive))
        if misses == int(np.sum(flips & ~positive)):
            worst = max(worst, misses / np.sum(positive) + theta @ flips)
    beta = np.clip((a - theta) / mu, 0, 1)
    return worst + np.sum((a - theta) * beta - mu / 2 * beta**2)


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=3, max_size=7),
    st.floats(0.01, 10),
    st.integers(0, 2**32 - 1),
)
def test_theorem_7_of_d(rows, mu, seed):
    """One theta for all positive rows, and -1/n+ minus it for the others, is optimal where f' = 0."""
    z, y = np.array([r[0] for r in rows]), np.where([r[1] for r in rows], 1.0, -1.0)
    y[:2] = 1.0, -1.0
    n, positive = len(z), y > 0
    total = -1 / np.sum(positive)
    value, dz, _ = rm.Prbep().smoothed_value_grad(z, y, np.full(n, 1 / n), mu)
    beta = -0.5 * n * y * dz
    assert np.sum(beta[positive]) == pytest.approx(np.sum(beta[~positive]), abs=1e-12)
    a, scaled = by_paper(z, y, mu)
    slack = 1e-9 * (1 + np.abs(a).max() + scaled)
    # beta = clip((a - theta) / mu, 0, 1) determines where each theta may lie
    theta_min = np.where(beta < 1 - 1e-12, a - scaled * beta, -math.inf)
    theta_max = np.where(beta > 1e-12, a - scaled * beta, math.inf)
    low = max(np.max(theta_min[positive]), total - np.min(theta_max[~positive]))
    high = min(np.min(theta_max[positive]), total - np.max(theta_min[~positive]))
    assert low <= high + slack
    best = low if math.isfinite(low) else high
    theta = np.where(positive, best, total - best)
    assert dual(theta, z, y, mu) == pytest.approx(value, abs=1e-8)  # no gap: both are optimal
    rng = np.random.default_rng(seed)
    for scale in (1e-3, 0.1, 3.0):
        assert dual(theta + scale * rng.standard_normal(n), z, y, mu) >= value - 1e-9
    for other in best + np.array([-1.0, -0.1, 0.1, 1.0]):  # either f' is zero there too, or it is not optimal
        moved = np.where(positive, other, total - other)
        moved_beta = np.clip((a - moved) / scaled, 0, 1)
        slope = np.sum(moved_beta[~positive]) - np.sum(moved_beta[positive])
        assert (abs(slope) <= 1e-9) == (dual(moved, z, y, mu) <= value + 1e-9) or abs(slope) < 1e-6
