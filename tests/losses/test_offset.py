"""The loss at scores plus an offset of the rows: its contract, its minimum by Clarabel, its refusals."""

import cvxpy as cp
import numpy as np
import pytest

import riskmin as rm
from helpers import labels, name_of, refusals
from reference import losses
from riskmin.losses.offset import AtOffset
from riskmin.testing.cases import make_case_sampler

OF_SCORES = [
    rm.Hinge(),
    rm.SquaredHinge(),
    rm.PowerHinge(p=1.5),
    rm.SmoothedHinge(),
    rm.Exponential(),
    rm.Logistic(),
    rm.Poisson(),
]
"""Losses that are not functions of z - y."""
OF_RESIDUALS = [rm.Squared(), rm.Quantile(0.8), rm.EpsilonInsensitive(0.2), rm.Huber(0.5)]

N, P = 40, 4
RNG = np.random.default_rng(0)
X, OFFSET = RNG.standard_normal((N, P)), 2 * RNG.standard_normal(N)


def drawn(loss):
    return labels(loss, X @ [1.0, -0.5, 0.3, 0.0] + OFFSET, np.random.default_rng(1))


@pytest.mark.parametrize("loss", OF_SCORES, ids=name_of)
def test_the_contract_of_losses(loss):
    sampler = make_case_sampler(loss)

    def with_offsets(rng, n):
        return np.column_stack([sampler.labels(rng, n), rng.standard_normal(n)])

    rm.check_loss(AtOffset(loss), labels=with_offsets)


@pytest.mark.parametrize("loss", OF_SCORES + OF_RESIDUALS, ids=name_of)
@pytest.mark.parametrize(
    "solver", ["auto", "newton", "bundle", "dual", "interior_point", "dual_gauss_seidel"]
)
@pytest.mark.parametrize("reg", [rm.L2(), rm.L1()], ids=name_of)
def test_every_solver_proves_the_minimum_of_another_program(loss, solver, reg):
    y = drawn(loss)
    risk = rm.linear_risk(X, y, loss, offset=OFFSET, fit_intercept=True)
    objective = rm.Objective(risk, reg, 0.05)
    if rm.SOLVERS[solver].supports(objective):
        pytest.skip("not a problem of this solver")
    result = rm.minimize(objective, solver, tol=1e-5, max_iter=5000)
    w, b = cp.Variable(P), cp.Variable()
    penalty = cp.sum_squares(w) / 2 if reg == rm.L2() else cp.norm1(w)
    program = cp.Minimize(0.05 * penalty + cp.sum(losses(loss, X @ w + b + OFFSET, y)) / N)
    optimum = cp.Problem(program).solve(solver=cp.CLARABEL)
    slack = 1e-7 * max(1.0, optimum)
    assert result.lower - slack <= optimum <= result.value + slack
    assert result.value - result.lower <= 1e-4 * result.value
    without = rm.minimize(rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=True), reg, 0.05))
    assert abs(without.value - optimum) > 1e-3  # the offset matters


def test_rounding_of_large_offsets_is_subtracted_from_the_bound():
    """Scores of 1e9 lose their digits after the point: no bound may claim more than these digits prove."""
    far = 1e9 + OFFSET
    risk = rm.linear_risk(X, np.where(drawn(rm.Hinge()) > 0, 1.0, -1.0), rm.Logistic(), offset=far)
    cut = risk.evaluate(np.zeros(P)).cut
    for w in 1e3 * np.random.default_rng(2).standard_normal((50, P)):
        assert cut.a @ w + cut.b <= risk(w)[0] * (1 + 1e-12)


GIVEN = (X, drawn(rm.Poisson()), rm.Poisson())
SIGNS = drawn(rm.Hinge())
REFUSED = [
    (lambda: rm.linear_risk(*GIVEN, offset=OFFSET[:-1]), r"offset has shape \(39,\).* one number per row"),
    (lambda: rm.linear_risk(*GIVEN, offset=OFFSET * np.nan), "offset holds NaN"),
    (lambda: rm.linear_risk(*GIVEN, offset=["a"] * N), "offset holds NaN, infinity or something"),
    (lambda: rm.linear_risk(X, SIGNS, "roc_area", offset=OFFSET), "RocArea is no sum over rows"),
    (lambda: rm.linear_risk(X, SIGNS > 0, "softmax", offset=OFFSET), "Softmax is no sum .*leave it out"),
    (lambda: rm.linear_risk(X, None, "novelty", offset=OFFSET), "Novelty is no sum over rows"),
]
test_refusals = refusals((REFUSED, ValueError))
