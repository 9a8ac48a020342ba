"""Bundle methods with every regularizer: optima by cvxpy, the master problem, extreme values of lam."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import problem
from riskmin import (
    L1,
    L2,
    Absolute,
    Bmrm,
    Box,
    Bundle,
    CoordinateDescent,
    Cut,
    Elastic,
    Entropy,
    Hinge,
    LineSearchBmrm,
    Logistic,
    Objective,
    QNorm,
    Quadratic,
    Squared,
    linear_risk,
    minimize,
)
from riskmin.solvers.bundle.cutting_planes import CuttingPlaneModel

K = np.array([[2.0, 0.5, 0.0, 0.0], [0.5, 1.0, 0.3, 0.0], [0.0, 0.3, 1.5, 0.0], [0.0, 0.0, 0.0, 0.7]])
WEIGHTS = np.array([0.5, 1.0, 2.0, 1.5])


def cvxpy_regularizers(cp, w, pair):
    """Every regularizer as a cvxpy expression with constraints; `pair` is for balanced entropies."""
    plus, minus = pair
    split = [w == plus - minus]

    def kl(v, prior):
        return cp.sum(cp.kl_div(v, prior * np.ones(4)))  # v ln(v / prior) - v + prior

    def elastic(eps):
        return eps * cp.norm1(w) + cp.sum_squares(w) / 2

    return [
        (L2(WEIGHTS), cp.sum(cp.multiply(WEIGHTS, cp.square(w))) / 2, []),
        (L1(), cp.norm1(w), []),
        (L1(WEIGHTS), cp.sum(cp.multiply(WEIGHTS, cp.abs(w))), []),
        (Elastic(0.7), elastic(0.7), []),
        (Box(L2()), cp.sum_squares(w) / 2, [w >= 0]),
        (Box(L1(), -0.2, WEIGHTS), cp.norm1(w), [w >= -0.2, w <= WEIGHTS]),
        (Box(L1(), 0.3, 2.0), cp.norm1(w), [w >= 0.3, w <= 2]),
        (Box(Elastic(0.3), -np.inf, 0.1), elastic(0.3), [w <= 0.1]),
        (Entropy(0.25), kl(w, 0.25), [cp.sum(w) == 1]),
        (Entropy(WEIGHTS, normalized=False), kl(w, WEIGHTS), []),
        (Entropy(0.25, balanced=True), kl(plus, 0.25) + kl(minus, 0.25), [*split, cp.sum(plus + minus) == 2]),
        (Entropy(0.1, normalized=False, balanced=True), kl(plus, 0.1) + kl(minus, 0.1), split),
        (QNorm(1.5), cp.square(cp.pnorm(w, 1.5)) / 2, []),
        (QNorm(3.0, 1.5), cp.power(cp.pnorm(w, 3), 1.5) / 1.5, []),
        (Quadratic(K), cp.quad_form(w, K) / 2, []),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("lam", [0.5, 0.02])
@pytest.mark.parametrize("index", range(15))
def test_the_optimum_equals_cvxpys(index, lam):
    cp = pytest.importorskip("cvxpy")
    X, y, weights = problem(Hinge(), n=40)
    w, pair, b = cp.Variable(4), (cp.Variable(4), cp.Variable(4)), cp.Variable()
    reg, omega, constraints = cvxpy_regularizers(cp, w, pair)[index]
    for intercept in (False, True):
        z = X @ w + (b if intercept else 0.0)
        risk = (weights / weights.sum()) @ cp.pos(1 - cp.multiply(y, z))
        program = cp.Problem(cp.Minimize(lam * omega + risk), constraints)
        program.solve(solver=cp.CLARABEL)
        obj = Objective(linear_risk(X, y, Hinge(), sample_weight=weights, fit_intercept=intercept), reg, lam)
        result = minimize(obj, Bundle(), tol=1e-7)
        assert result.status == "converged"
        assert result.value == pytest.approx(program.value, rel=1e-5, abs=1e-7)
        assert result.lower <= program.value * (1 + 1e-5)


REGS = [
    L1(),
    Elastic(),
    Box(L1(), -0.3, 0.5),
    Box(L2()),
    Entropy(),
    Entropy(0.1, balanced=True),
    Entropy(normalized=False, balanced=True),
    QNorm(),
    QNorm(1.1),
    QNorm(3.0, 1.5),
    Quadratic(K),
]
each_regularizer = pytest.mark.parametrize("reg", REGS, ids=lambda r: repr(r)[:50])


@each_regularizer
def test_the_methods_agree(reg):
    """To six digits, each with its own certificate."""
    X, y, _ = problem(Absolute(), n=40)
    obj = Objective(linear_risk(X, y, Absolute()), reg, 0.05)
    best = minimize(obj, Bundle(), tol=1e-6)
    other = minimize(obj, Bmrm(floor=True), tol=1e-6, max_iter=3000)
    assert best.status == other.status == "converged"
    assert best.value == pytest.approx(other.value, rel=2e-6)
    if not reg.polyhedral:
        third = minimize(obj, LineSearchBmrm(), tol=1e-2, max_iter=200)
        assert third.lower <= best.value <= third.value * (1 + 1e-9)


@each_regularizer
@pytest.mark.parametrize("lam", [1e-6, 1e3])
def test_extreme_regularization_strengths(reg, lam):
    """For the smallest lam, tolerances and exponentials are critical, and the gap must still close."""
    X, y, _ = problem(Logistic(), n=60, p=4)
    obj = Objective(linear_risk(X, y, Hinge()), reg, lam)
    result = minimize(obj, Bundle(), tol=1e-5, max_iter=1000)
    assert result.status == "converged"
    rng = np.random.default_rng(0)
    for v in rng.standard_normal((20, 4)):
        assert result.lower <= obj.value(reg.prox(result.w + 0.1 * v, 0.0)) * (1 + 1e-12)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from([L2(), *REGS]), st.integers(1, 8), st.integers(0, 10_000), st.sampled_from([1e-3, 1.0])
)
def test_the_mixture_of_cuts_is_optimal(reg, m, seed, lam):
    """By duality: the model at its minimizer is at most the bound of the mixture."""
    rng = np.random.default_rng(seed)
    obj = Objective(linear_risk(np.eye(4), np.ones(4), Absolute()), reg, lam)
    cuts = CuttingPlaneModel.empty(obj, np.zeros(4))
    for _ in range(m):
        cuts.add(Cut(rng.standard_normal(4), float(rng.normal())))
    cuts.add(Cut(np.zeros(4), 0.0))
    best = cuts.best_mixture()
    assert np.all(cuts.alpha >= 0)
    assert cuts.alpha.sum() <= 1 + 1e-12
    w, rows = cuts.minimizer(obj, best), len(cuts.b)
    model = float(np.max(cuts.A[:rows] @ w + cuts.b)) + lam * reg.value(w)
    size = 1 + float(np.max(np.abs(cuts.A[:rows]) @ np.abs(w)))
    assert obj.lower(best) <= model + 1e-12 * size
    assert obj.lower(best) >= model - 1e-7 * size


def test_inactive_cuts_are_pruned():
    """Not one by one, but before they become many."""
    X, y, _ = problem(Hinge(), n=300, p=4)
    steps = Bundle(keep=3).iterates(Objective(linear_risk(X, y, Hinge()), L1(), 1e-3), np.zeros(4))
    n_cuts = [it.info["cuts"] for it, _ in zip(steps, range(60), strict=False)]
    assert max(n_cuts) <= 16


def test_columns_are_added_as_needed():
    """With a thousand features of which few matter, the linear program contains only some of them."""
    rng = np.random.default_rng(1)
    X = rng.standard_normal((200, 1000))
    y = np.where(X[:, :3].sum(axis=1) > 0, 1.0, -1.0)
    obj = Objective(linear_risk(X, y, Hinge()), L1(), 0.05)
    cuts = CuttingPlaneModel.empty(obj, np.zeros(1000))
    for w in (np.zeros(1000), 0.1 * (np.arange(1000) < 3), 0.3 * (np.arange(1000) < 3)):
        cuts.add(obj.cut(w))
        best = cuts.best_mixture()
    assert 0 < len(cuts.master.features) < 500
    assert np.max(np.abs(best.a)) <= 0.05 * (1 + 1e-6)


@pytest.mark.parametrize("reg", [L1(), Box(L1(), -1.0, 1.0)])
@pytest.mark.parametrize("lam", [1e-16, 1e-20, 1e-300])
def test_a_linear_program_with_numbers_beyond_its_range(reg, lam):
    """For such a lam no proof is possible, but a finite point is returned without an error."""
    X, y, _ = problem(Hinge(), n=60)
    y[::7] *= -1  # no w separates them
    obj = Objective(linear_risk(X, y, Hinge(), fit_intercept=True), reg, lam)
    result = minimize(obj, Bundle(), max_iter=100)
    assert 0 <= result.lower <= result.value < 1
    assert np.isfinite(result.w).all()


def test_a_linear_program_with_scaled_cuts():
    """For squares of large numbers, the bounds stay below the minimum."""
    rng = np.random.default_rng(0)
    X = 1e4 * rng.normal(size=(100, 5))
    y = 100 * X[:, 0] + 1e5 * rng.normal(size=100)
    obj = Objective(linear_risk(X, y, Squared()), L1(), 1e-6)
    result, reference = minimize(obj, Bundle(), tol=1e-6), minimize(obj, CoordinateDescent())
    assert result.lower <= reference.value * (1 + 1e-9)
    assert result.value <= 1.01 * reference.value
