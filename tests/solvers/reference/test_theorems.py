"""The theorems of the papers as tests: exact iterates, rates and bounds.

A: Teo et al., KDD 2007. C: Zhang, Saha, Vishwanathan, NIPS 2010.
"""

from dataclasses import replace
from fractions import Fraction
from itertools import islice

import numpy as np
import pytest

import riskmin as rm
from riskmin.regularizers import L2

FOUR = np.array([[-1.0], [-0.5], [0.5], [1.0]]), np.array([-1.0, -1.0, 1.0, 1.0])


def points(solver, obj, w0, n):
    return list(islice(solver.iterates(obj, w0), n))


# ---------------------------------------------------------------- C, Theorem 2
def ls_bmrm_exactly(n):
    """Algorithm 2 of paper C on the four points with lam = 1/16, in rational arithmetic."""
    lam, w, model, out = Fraction(1, 16), Fraction(0), None, []
    for _ in range(n):
        out.append(w)
        a = -(Fraction(1, 4) if w < 2 else 0) - (Fraction(1, 2) if w < 1 else 0)
        risk = Fraction(max(0, 1 - w / 2)) / 2 + Fraction(max(0, 1 - w)) / 2
        b = risk - a * w
        if model is not None:
            a0, b0 = model  # maximize -(a0 + s (a - a0))^2 / (2 lam) + b0 + s (b - b0) over s in [0, 1]
            s = ((b - b0) * lam - a0 * (a - a0)) / (a - a0) ** 2
            s = min(Fraction(1), max(Fraction(0), s))
            a, b = a0 + s * (a - a0), b0 + s * (b - b0)
        model, w = (a, b), -a / lam
    return out


def test_line_search_bmrm_has_the_exact_iterates():
    obj = rm.Objective(rm.linear_risk(*FOUR, rm.Hinge()), L2(), 1 / 16)
    weights = [float(it.w[0]) for it in points(rm.LineSearchBmrm(), obj, np.zeros(1), 12)]
    np.testing.assert_allclose(weights, [float(w) for w in ls_bmrm_exactly(12)], rtol=1e-12)


@pytest.mark.exhaustive
def test_line_search_bmrm_converges_at_the_rate_one_over_k():
    """k (J(w_k) - J*) tends to 1/8, alternating around w* = 2, and k |w_k - 2| tends to 1.

    The paper prints 1/4 and 2: the recursion (12) of its Lemma 3 multiplies alpha_{2k-1,1} where the
    algorithm multiplies alpha_{2k,1} = (w_2k / w_{2k-1}) alpha_{2k-1,1}. The exact iterates above decide:
    alpha_{3,1} = 5/72, where (12) gives 5/8.
    """
    obj = rm.Objective(rm.linear_risk(*FOUR, rm.Hinge()), L2(), 1 / 16)
    iterates = points(rm.LineSearchBmrm(), obj, np.zeros(1), 30_002)
    for k in (30_000, 30_001):
        assert k * (iterates[k].value - 1 / 8) == pytest.approx(1 / 8, rel=1e-3)
        assert k * abs(iterates[k].w[0] - 2) == pytest.approx(1, rel=1e-3)
    assert (iterates[30_000].w[0] - 2) * (iterates[30_001].w[0] - 2) < 0


def test_the_correct_part_of_lemma_3():
    """w_2k = 2 - 8 alpha_{2k-1,1} / w_{2k-1}, and (12) with alpha_{2k,1} on its right-hand side."""
    w = ls_bmrm_exactly(14)
    alpha = Fraction(1)  # alpha_{1,1}
    for k in range(1, 7):
        odd, even = w[2 * k - 1], w[2 * k]
        assert even == 2 - 8 * alpha / odd
        at_even = alpha * even / odd
        assert w[2 * k + 1] == 2 + 8 * alpha * (odd - 4 * alpha) / (odd * (odd + 4 * alpha))
        alpha = (odd**2 + 16 * alpha**2) / (odd + 4 * alpha) ** 2 * at_even


# ---------------------------------------------------------------- C, Theorem 5
class Theorem5Risk:
    """The risk of Theorem 5 with the subgradient chosen in the proof: one example at a time."""

    def __init__(self, n):
        self.n, self.dim = n, n + 1

    def __call__(self, w):
        margins = 1 - np.sqrt(self.n) * w[0] - self.n * w[1:]
        grad = np.zeros(self.dim)
        for i in np.flatnonzero(margins > 1e-9):
            grad[0] -= 1 / np.sqrt(self.n)
            grad[i + 1] -= 1.0
        on_margin = np.flatnonzero(np.abs(margins) <= 1e-9)
        if len(on_margin):  # any fraction of the slope is a subgradient; the proof takes the first example
            grad[0] -= 1 / np.sqrt(self.n)
            grad[on_margin[0] + 1] -= 1.0
        return float(np.maximum(margins, 0).mean()), grad


@pytest.mark.parametrize("n", [4, 40])
def test_bmrm_satisfies_theorem_5(n):
    obj = rm.Objective(Theorem5Risk(n), L2(), 1.0)
    w0 = np.zeros(n + 1)
    w0[0] = 1 / np.sqrt(n)
    iterates = points(rm.Bmrm(), obj, w0, n + 2)
    best = 1 / (4 * n)
    for k in range(1, n + 1):
        expected = np.concatenate([[1 / np.sqrt(n)], np.full(k, 1 / k), np.zeros(n - k)])
        np.testing.assert_allclose(iterates[k].w, expected, atol=1e-10)
        gap = min(it.value for it in iterates[1 : k + 1]) - best
        assert gap == pytest.approx(1 / (2 * k) + 1 / (4 * n), abs=1e-10)
    star = np.concatenate([[0.5 / np.sqrt(n)], np.full(n, 0.5 / n)])
    np.testing.assert_allclose(iterates[n + 1].w, star, atol=1e-10)  # after n steps exactly the minimizer
    assert iterates[n + 1].value == pytest.approx(best, abs=1e-12)


# ---------------------------------------------------------------- C, Theorem 1
@pytest.mark.slow
@pytest.mark.parametrize("solver", [rm.Bmrm(), rm.LineSearchBmrm()], ids=repr)
@pytest.mark.parametrize("seed", range(2))
def test_upper_bound_of_theorem_1_is_never_exceeded(solver, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((40, 6))
    y = np.where(X @ rng.standard_normal(6) + rng.standard_normal(40) > 0, 1.0, -1.0)
    lam = 10 ** rng.uniform(-2, 0)
    obj = rm.Objective(rm.linear_risk(X, y, rm.Hinge()), L2(), lam)
    G = float(np.linalg.norm(X, axis=1).mean())  # bounds every subgradient of the mean hinge
    at_zero = obj.value(np.zeros(6))
    best = np.inf
    for k, it in enumerate(points(solver, obj, np.zeros(6), 200), start=1):
        best = min(best, it.value)
        model = it.cut.b - float(it.cut.a @ it.cut.a) / (2 * lam)  # J_k(w_k), without scaling the cut
        gap = best - model
        if 1e-12 < gap < 4 * G**2 / lam:
            assert k - 1 <= np.log2(lam * at_zero / G**2) + 8 * G**2 / (lam * gap) - 1


# ---------------------------------------------------------------- A, Lemmas 1 and 5
@pytest.mark.parametrize("loss", [rm.Hinge(), rm.Logistic(), rm.SquaredHinge()], ids=repr)
def test_bounds_of_lemma_1_are_monotone_and_bracket_the_optimum(loss):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((60, 5))
    y = np.where(X[:, 0] + 0.5 * rng.standard_normal(60) > 0, 1.0, -1.0)
    obj = rm.Objective(rm.linear_risk(X, y, loss), L2(), 0.05)
    star = rm.minimize(obj, rm.Bundle(), tol=1e-10).value
    lowers, best = [], []
    for it in points(rm.Bmrm(floor=True), obj, np.zeros(5), 40):
        lowers.append(it.cut.b - float(it.cut.a @ it.cut.a) / (2 * obj.lam))
        best.append(min([it.value, *best[-1:]]))
        model = max(0.0, float(it.cut.a @ obj.argmin(it.cut)) + it.cut.b)  # J_i(w_i) by strong duality
        assert lowers[-1] == pytest.approx(model + obj.lam * L2().value(obj.argmin(it.cut)), abs=1e-10)
    assert (np.diff(lowers) >= -1e-13).all()
    assert (np.diff(best) <= 0).all()
    assert max(lowers) <= star * (1 + 1e-9)
    assert min(best) >= star * (1 - 1e-9)
    assert best[-1] - lowers[-1] < 1e-3 * star


def test_lemma_5_is_the_cut_bound_without_shrinkage():
    """min J >= f(x0) - x0 @ g - |g|^2 / (2 lam): the cut at x0 with s = 1; the best s is never worse."""
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((30, 4)), rng.standard_normal(30)
    for lam in (1e-3, 0.1, 10.0):
        obj = rm.Objective(rm.linear_risk(X, y, rm.Squared()), L2(), lam)
        star = rm.minimize(obj, tol=1e-12)
        for scale in (0.0, 0.1, 1.0):
            x0 = star.w + scale * rng.standard_normal(4)
            r, g = obj.risk(x0)
            lemma = r - float(x0 @ g) - float(g @ g) / (2 * lam)
            assert lemma <= obj.lower(obj.cut(x0)) + 1e-12
            assert obj.lower(obj.cut(x0)) <= star.value * (1 + 1e-9)
        at_star = obj.risk(star.w)
        lemma = at_star[0] - float(star.w @ at_star[1]) - float(at_star[1] @ at_star[1]) / (2 * lam)
        assert lemma == pytest.approx(star.value, rel=1e-9)  # tight at the optimum


def test_significant_figures_of_equation_16_are_those_that_agree_with_the_optimum():
    """As a property and as a column of the trace: the promised digits are there."""
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((40, 5)), np.sign(rng.standard_normal(40))
    obj = rm.Objective(rm.linear_risk(X, y, rm.Logistic()), L2(), 0.01)
    star = rm.minimize(obj, tol=1e-14).value
    result = rm.minimize(obj, rm.Bmrm(), tol=1e-6)
    for row in result.trace:
        formula = -np.log10(2 * row["gap"] / (abs(row["value"]) + abs(row["lower"])))
        assert row["significant_figures"] == pytest.approx(formula, rel=1e-12)
        error = 10 ** -row["significant_figures"] * max(row["value"], star)
        assert abs(row["value"] - star) <= error * (1 + 1e-9)
    figures = [row["significant_figures"] for row in result.trace]
    assert figures == sorted(figures)
    assert 6 <= result.significant_figures == figures[-1] <= 15.66


@pytest.mark.parametrize(
    ("value", "lower", "figures"),
    [(0.0, 0.0, 15.65), (1.0, 1.0, 15.65), (1.0, -np.inf, -0.301), (2.0, 0.0, -0.301)],
)
def test_significant_figures_are_finite(value, lower, figures):
    obj = rm.Objective(rm.linear_risk(*FOUR, rm.Hinge()), L2(), 1 / 16)
    result = replace(rm.minimize(obj), value=value, lower=lower)
    assert result.significant_figures == pytest.approx(figures, abs=0.01)


# ---------------------------------------------------------------- B, Theorems 4 and 5: smooth losses
@pytest.mark.parametrize("solver", [rm.Bmrm(floor=True), rm.LineSearchBmrm()], ids=repr)
@pytest.mark.parametrize(
    ("loss", "curvature"), [(rm.Logistic(), 0.25), (rm.Squared(), 1.0), (rm.SquaredHinge(), 1.0)], ids=repr
)
def test_the_rate_is_linear_on_smooth_losses(loss, curvature, solver):
    """The gap falls by the factor 1 - lam / (4 H H*) in each step, where H bounds the Hessian of J, H* that
    of Omega*; so eps takes at most (4 H H* / lam) log(gap_0 / eps) steps.

    The gradient of J at w_t is at most sqrt(2 H gap), and the dual, along the line to the new cut, is a
    parabola with slope gap and curvature |grad J|^2 H* / lam.
    """
    rng = np.random.default_rng(8)
    X = rng.standard_normal((60, 5)) * [1.0, 3.0, 0.3, 1.0, 1.0]
    y = np.where(X[:, 0] + 0.5 * rng.standard_normal(60) > 0, 1.0, -1.0)
    for metric, lam in ((np.eye(5), 0.05), (np.diag([0.5, 1.0, 2.0, 1.0, 3.0]) + 0.2, 0.5)):
        obj = rm.Objective(rm.linear_risk(X, y, loss), rm.Quadratic(metric), lam)
        H = lam * np.linalg.eigvalsh(metric)[-1] + curvature * np.linalg.eigvalsh(X.T @ X / 60)[-1]
        share = lam * np.linalg.eigvalsh(metric)[0] / (4 * H)
        steps = points(solver, obj, np.zeros(5), 60)
        lower = np.array([it.cut.b - lam * obj.reg.conjugate(-it.cut.a / lam) for it in steps])
        best = np.minimum.accumulate([it.value for it in steps])
        rounding = 1e-12 * best[0]
        # the increase of the bound by the cut at w_t is at least `share` of J(w_t) - J_t(w_t)
        increase = np.diff(lower) - share * (np.array([it.value for it in steps[1:]]) - lower[:-1])
        assert (increase >= -rounding).all()
        gap = best - lower
        assert (gap[1:] <= (1 - share) * gap[:-1] + rounding).all()
        assert gap[-1] <= (1 - share) ** 59 * gap[0] + 60 * rounding
