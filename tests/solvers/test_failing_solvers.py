"""A solver that fails, refuses or finds nothing ends its own turn: the run has a point, or a reason."""

from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

from helpers import LIST_LOSSES, MANY_LOSSES, problem, risk_of
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
    Lbfgs,
    LinearConstraints,
    LinearRegressor,
    Logistic,
    Objective,
    Pegasos,
    PrecisionAtK,
    QNorm,
    Quadratic,
    Rbf,
    Squared,
    kernel_risk,
    linear_risk,
    minimize,
)
from riskmin.core import SolverFailed, UnsupportedProblem


def objective(loss=None, n=80, reg=None, lam=1e-3):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 3))
    y = np.where(X[:, 0] + rng.standard_normal(n) > 0, 1.0, -1.0)
    return Objective(linear_risk(X, y, loss or Hinge()), reg or L2(), lam)


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
        result = minimize(objective(), Fallback((Breaks(steps), Bundle())))
    assert result.status == "converged"
    assert "Breaks failed (IndexError: index 7 is out of bounds)" in result.solver
    assert isinstance(caught[0].message.__cause__, IndexError)


def test_a_failure_is_an_error_where_warnings_are():
    with pytest.raises(SolverFailed):
        minimize(objective(), Fallback((Breaks(2), Bundle())))


@pytest.mark.parametrize("error", [MemoryError, OSError])
def test_errors_of_the_system_end_the_run(error):
    with pytest.raises(error):
        minimize(objective(), Fallback((Breaks(2, error), Bundle())))


def test_a_solver_that_was_given_alone_raises_its_exception():
    with pytest.raises(IndexError):
        minimize(objective(), Breaks(2))


def test_a_risk_that_cannot_be_evaluated_raises_its_own_error():
    X, y = np.ones((4, 2)), np.array([1.0, -1.0, 1.0, -1.0])
    with pytest.raises(ValueError, match="PrecisionAtK needs k=9 rows"):
        minimize(Objective(linear_risk(X, y, PrecisionAtK(k=9)), L1(), 0.1))


# ---------------------------------------------------------------- runs without an iterate
@pytest.mark.parametrize("solver", [Silent(), Fallback((Silent(),))])
@pytest.mark.parametrize("reg", [L2(), L1(), Entropy(), GroupLasso([0, 0, 1])])
def test_a_run_without_an_iterate_has_its_start(solver, reg):
    J = objective(reg=reg)
    result = minimize(J, solver)
    assert result.status == "stalled"
    assert 0 <= result.lower <= result.value == pytest.approx(J.value(result.w))
    assert len(result.trace) == 1


def test_only_refusals_are_one_of_them():
    with pytest.raises(UnsupportedProblem, match=r"^Lbfgs needs a smooth regularizer such as L2\(\), not L1"):
        minimize(objective(reg=L1()), Fallback((Lbfgs(), Pegasos())))


# ---------------------------------------------------------------- the causes of exceptions
@pytest.mark.parametrize("loss", [*MANY_LOSSES, *LIST_LOSSES], ids=repr)
def test_group_lasso_without_ridge_has_a_solver_or_a_refusal(loss):
    X, y, weights = problem(loss)
    risk = risk_of(loss, X, y, weights)
    J = Objective(risk, GroupLasso(np.arange(risk.dim) // 2), 0.3)
    try:
        result = minimize(J, tol=1e-2, max_iter=2000)
    except UnsupportedProblem as error:
        assert not loss.can_be_smoothed
        assert str(error).endswith("add a small multiple of L2 to it")  # noqa: PT017
        return
    assert result.status == "converged"


@pytest.mark.parametrize("size", [1e-9, 1.0, 1e11, 1e13])
@pytest.mark.parametrize("loss", [Squared(), Absolute()])
@pytest.mark.parametrize("reg", [L1(), Box(L1())])
def test_linear_programs_are_solved_in_units_of_the_objective(size, loss, reg):
    """HiGHS takes no bounds of 1e20 or more, and its tolerances are absolute."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 5))
    y = X[:, 0] + rng.standard_normal(60)
    results = []
    for unit in (1.0, size):
        lam = 0.05 * (unit if loss == Squared() else 1.0)
        J = Objective(linear_risk(X, unit * y, loss, fit_intercept=True), reg, lam)
        results.append(minimize(J, Bundle(), tol=1e-6))
    assert [result.status for result in results] == ["converged"] * 2
    power = 2 if loss == Squared() else 1
    assert results[1].value == pytest.approx(results[0].value * size**power, rel=2e-6)


def test_a_lasso_of_a_raw_table_ends_with_a_certificate():
    rng = np.random.default_rng(0)
    level = np.exp(rng.normal(0, 2, 400))
    people, income = np.round(1e6 * level), np.round(3e10 * level * np.exp(rng.normal(0, 0.4, 400)))
    X = np.column_stack([people, income, rng.uniform(0, 100, (400, 3)).round(1)])
    model = LinearRegressor(regularizer="l1").fit(X, 1e9 * level + income)
    assert model.result_.status == "converged"


@pytest.mark.parametrize("loss", [Squared(), Logistic(), Hinge(), LOSSES["squared_hinge"]])
@pytest.mark.parametrize("intercept", [False, True])
def test_auto_minimizes_with_unpenalized_directions(loss, intercept):
    X, y, _ = problem(LOSSES["hinge"])
    J = Objective(linear_risk(X, y, loss, fit_intercept=intercept), Equality(L2(), np.eye(1, 4)), 0.1)
    result = minimize(J)
    assert result.status == "converged"
    # the same problem, with a column that is hardly penalized
    nearly = Quadratic(np.diag([1e-9, 1.0, 1.0, 1.0]))
    same = minimize(Objective(J.risk, nearly, 0.1), tol=1e-6)
    assert result.lower <= same.value * (1 + 1e-6)
    assert result.value == pytest.approx(same.value, rel=2e-3)


@pytest.mark.parametrize(
    "loss", [LOSSES["softmax"], LOSSES["multiclass_hinge"], LOSSES["roc_area"]], ids=repr
)
def test_unpenalized_directions_are_refused_in_their_own_words(loss):
    X, y, _ = problem(loss)
    risk = risk_of(loss, X, y)
    J = Objective(risk, Equality(L2(), np.eye(1, risk.dim)), 0.1)
    with pytest.raises(
        UnsupportedProblem, match=r"^Equality needs local rows, and a loss that is a sum over rows"
    ):
        minimize(J, "augmented_lagrangian")


@pytest.mark.parametrize("loss", [loss for loss in LOSSES.values() if loss.multi_output], ids=repr)
def test_kernels_refuse_losses_of_several_scores(loss):
    X, y, _ = problem(loss)
    with pytest.raises(TypeError, match="kernel_risk has one score per row"):
        kernel_risk(X, y, loss, Rbf(1.0))


@pytest.mark.parametrize("loss", LIST_LOSSES, ids=repr)
def test_samples_of_rows_are_for_sums_over_rows(loss):
    X, y, weights = problem(loss)
    with pytest.raises(UnsupportedProblem, match="Pegasos visits rows"):
        minimize(Objective(risk_of(loss, X, y, weights), L2(), 0.1), Pegasos(batch_size=2))


@pytest.mark.parametrize("shape", [(5, 6), (30, 2)])
@pytest.mark.parametrize("far", [-1e8, 1e3, 1e8])
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
@pytest.mark.parametrize("seed", range(10))
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
