"""A solver that fails, refuses or finds nothing ends its own turn: the run has a point, or a reason."""

from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

from helpers import LIST_LOSSES, MANY_LOSSES, Problem, problem, risk_of
from riskmin import (
    L1,
    L2,
    LOSSES,
    SOLVERS,
    Absolute,
    Box,
    Bundle,
    Elastic,
    Entropy,
    Equality,
    Fallback,
    GroupLasso,
    Hinge,
    InteriorPoint,
    LinearConstraints,
    LinearRegressor,
    Logistic,
    Objective,
    QNorm,
    Quadratic,
    Squared,
    SquaredHinge,
    linear_risk,
    minimize,
)
from riskmin.core import SolverFailed, UnsupportedProblem


@dataclass(frozen=True)
class Breaks:
    """Takes some steps of a bundle method, then raises an exception."""

    steps: int
    error: type[Exception] = IndexError

    def iterates(self, obj, w0):
        if self.steps:
            yield from islice(Bundle().iterates(obj, w0), self.steps)
        raise self.error("index 7 is out of bounds")


class Silent:
    """Yields nothing."""

    def iterates(self, obj, w0):
        return iter(())


# ---------------------------------------------------------------- stages
@pytest.mark.parametrize("steps", [0, 2])
def test_the_next_solver_continues_after_an_exception(steps):
    with pytest.warns(SolverFailed, match="Breaks failed") as caught:
        result = minimize(Problem().objective(), Fallback((Breaks(steps), Bundle())))
    assert result.status == "converged"
    assert "Breaks failed (IndexError: index 7 is out of bounds)" in result.solver
    assert isinstance(caught[0].message.__cause__, IndexError)


def test_a_failure_is_an_error_where_warnings_are():
    with pytest.raises(SolverFailed):
        minimize(Problem().objective(), Fallback((Breaks(2), Bundle())))


@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_errors_of_the_system_end_the_run(error):
    with pytest.raises(error):
        minimize(Problem().objective(), Fallback((Breaks(2, error), Bundle())))


def test_a_solver_that_was_given_alone_raises_its_exception():
    with pytest.raises(IndexError):
        minimize(Problem().objective(), Breaks(2))


# ---------------------------------------------------------------- runs without an iterate
@pytest.mark.parametrize(
    ("solver", "reg"),
    [
        (Silent(), L2()),
        (Silent(), Entropy()),
        (Fallback((Silent(),)), L1()),
        (Fallback((Silent(),)), GroupLasso([0, 0, 1, 1])),
    ],
)
def test_a_run_without_an_iterate_has_its_start(solver, reg):
    J = Problem(reg=reg).objective()
    result = minimize(J, solver)
    assert result.status == "stalled"
    assert 0 <= result.lower <= result.value == pytest.approx(J.value(result.w))
    assert len(result.trace) == 1


# ---------------------------------------------------------------- the causes of exceptions
@pytest.mark.parametrize("loss", [*MANY_LOSSES, *LIST_LOSSES], ids=repr)
def test_group_lasso_without_ridge_has_a_solver_or_a_refusal(loss):
    J = Problem(loss, lam=0.3, n=20, weighted=True).objective()
    J = replace(J, reg=GroupLasso(np.arange(J.risk.dim) // 2))
    try:
        result = minimize(J, tol=3e-2, max_iter=2000)
    except UnsupportedProblem as error:
        assert not loss.can_be_smoothed
        assert str(error).endswith("add a small multiple of L2 to it")  # noqa: PT017
        return
    assert result.status == "converged"


@pytest.mark.parametrize("size", [1e-9, 1e11, 1e13])
@pytest.mark.parametrize(("loss", "reg"), [(Squared(), L1()), (Absolute(), Box(L1()))], ids=repr)
def test_linear_programs_are_solved_in_units_of_the_objective(size, loss, reg):
    """HiGHS takes no bounds of 1e20 or more, and its tolerances are absolute."""
    data, power = Problem(loss, reg, lam=0.05, n=30, intercept=True), 2 if loss == Squared() else 1
    risk = linear_risk(data.X, size * data.y, loss, fit_intercept=True)
    result = minimize(Objective(risk, reg, 0.05 * size ** (power - 1)), Bundle(), tol=1e-5)
    assert result.status == "converged"
    assert result.value == pytest.approx(data.optimum * size**power, rel=1.1e-5)


def test_a_lasso_of_a_raw_table_ends_with_a_certificate():
    rng = np.random.default_rng(0)
    level = np.exp(rng.normal(0, 2, 400))
    people, income = np.round(1e6 * level), np.round(3e10 * level * np.exp(rng.normal(0, 0.4, 400)))
    X = np.column_stack([people, income, rng.uniform(0, 100, (400, 3)).round(1)])
    model = LinearRegressor(regularizer="l1").fit(X, 1e9 * level + income)
    assert model.result_.status == "converged"


@pytest.mark.parametrize(
    ("loss", "intercept"), [(Squared(), False), (Logistic(), True), (Hinge(), True), (SquaredHinge(), False)]
)
def test_auto_minimizes_with_unpenalized_directions(loss, intercept):
    reg = Equality(L2(), np.eye(1, 4))
    J = Problem(loss, reg, lam=0.1, intercept=intercept).objective()
    result = minimize(J)
    assert result.status == "converged"
    # the same problem, with a column that is hardly penalized
    nearly = Quadratic(np.diag([1e-9, 1.0, 1.0, 1.0]))
    same = minimize(Objective(J.risk, nearly, 0.1), tol=1e-6)
    assert result.lower <= same.value * (1 + 1e-6)
    assert result.value == pytest.approx(same.value, rel=2e-3)


@pytest.mark.parametrize(("shape", "far"), [((5, 6), -1e8), ((30, 2), 1e3), ((30, 2), 1e8)])
def test_a_start_without_second_derivatives_is_no_obstacle(shape, far):
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal(shape), np.resize([1.0, -1.0], shape[0])
    J = Objective(linear_risk(X, y, Logistic(), fit_intercept=True), Elastic(0.3), 0.1)
    assert minimize(J, InteriorPoint(), np.full(shape[1], far)).status == "converged"


# ---------------------------------------------------------------- a sample of all combinations
def regularizers(dim):
    weights, row = np.resize([0.5, 1.0, 2.0, 0.7], dim), np.resize([1.0, 1.0, 0.0, -1.0, 0.5], (1, dim))
    return [
        L2(weights), L1(), Elastic(0.3), Box(L2()), Box(L1(), -1.0, 1.0), Quadratic(np.diag(weights) + 0.4),
        QNorm(1.5, 2.0), Entropy(weights), Entropy(weights, balanced=True), GroupLasso(np.arange(dim) // 2),
        GroupLasso(np.arange(dim) // 2, ridge=0.1), LinearConstraints(L2(), row, upper=-0.1),
        LinearConstraints(L2(), 1e9 * row, upper=-1e8), Equality(L2(), row),
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_any_combination_has_a_proof_or_a_refusal(seed):
    """Losses, regularizers, solvers, storages, units and starts, drawn at random."""
    rng = np.random.default_rng(seed)
    losses = [loss for loss in LOSSES.values() if getattr(loss, "k", 1) in (None, 1)]
    solvers = [None, *SOLVERS.values()]
    for _ in range(3):
        loss = losses[rng.integers(len(losses))]
        X, y, weights = problem(loss, n=12, seed=int(rng.integers(100)))
        X = X * 10.0 ** rng.uniform(-2, 9 * rng.integers(2), X.shape[1])
        X = sp.csr_array(X) if rng.random() < 0.3 else X.astype(np.float32) if rng.random() < 0.4 else X
        risk = risk_of(loss, X, y, weights if rng.random() < 0.5 else None)
        regs = regularizers(risk.dim)
        J = Objective(risk, regs[rng.integers(len(regs))], 10 ** rng.uniform(-3, 0))
        w0 = J.reg.prox(1e-3 * rng.standard_normal(risk.dim), 0.0) if rng.random() < 0.5 else None
        try:
            result = minimize(J, solvers[rng.integers(len(solvers))], w0, max_iter=50)
        except UnsupportedProblem as error:
            assert "\n" not in str(error)  # noqa: PT017
            continue
        other = minimize(J, max_iter=50)
        size = max(result.value, other.value)
        assert max(result.lower, other.lower) <= min(result.value, other.value) + 1e-9 * size
        at_zero = J.value(np.zeros(risk.dim))
        assert np.isfinite(result.value)
        assert result.value <= at_zero * (1 + 1e-9)
