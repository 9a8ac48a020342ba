"""Newton's method on every kind of problem: minima of another program, cuts, and saved states."""

from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from helpers import COST, Problem, labels
from riskmin import L2, Hinge, Logistic, Newton, Quadratic, Squared, minimize

ROWS = [
    *(Logistic(), rm.SquaredHinge(), rm.SmoothedHinge(0.3), Squared(), rm.Huber(0.5), rm.Huber(0.01)),
    *(rm.Poisson(), rm.Exponential(), rm.EpsilonInsensitive(0.2, 2.0), rm.PowerHinge(3.0)),
    *(Hinge(), rm.Absolute(), rm.Quantile(0.3), rm.EpsilonInsensitive(0.4)),
]
LISTS = [rm.RocArea(), rm.Ordinal(), rm.Ordinal(costs=[[0], [1, 0], [2, 0.5, 0], [3, 0, 1, 0]]), rm.Prbep()]
OUTPUTS = [
    *(rm.Softmax(), rm.MulticlassSquaredHinge(), rm.MultivariateSquared(np.eye(3) + 1)),
    *(rm.MulticlassHinge(), rm.MulticlassHinge(COST), rm.MulticlassHinge(COST, rescaled=True)),
    *(rm.MulticlassHinge(COST, rescaled=0.5), rm.MulticlassHinge(COST, rescaled=0.7, scaled_margin=True)),
]
METRIC = np.diag([0.1, 1.0, 2.0, 5.0]) + 0.05


@dataclass
class Case:
    """A problem, and the solver for it."""

    loss: object
    solver: Newton = field(default_factory=Newton)
    settings: dict = field(default_factory=dict)

    def __post_init__(self):
        self.problem = Problem(self.loss, **self.settings)

    def __repr__(self):
        words = (f"{name}={value if np.isscalar(value) else '...'}" for name, value in self.settings.items())
        return ", ".join(
            [repr(self.loss), *words, *([repr(self.solver)] if self.solver.direct < 2500 else [])]
        )


def list_rows(loss, n=25):
    """Rows of four grades or two classes, far more than those whose rankings are enumerated."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4))
    z = X @ rng.standard_normal(4)
    if loss.task != "ordinal":
        return X, labels(Hinge(), z - 0.5, rng), None
    return X, np.append(np.arange(4.0), np.clip(np.floor(z[4:] + 2), 0, 3)), rng.random(n) + 0.1


WITH_INTERCEPT = {"intercept": True, "weighted": True, "lam": 1e-2}
CASES = [
    *(Case(loss, settings=WITH_INTERCEPT) for loss in [*ROWS, *OUTPUTS]),
    # no matrix is factorized
    *(Case(loss, Newton(direct=1), {"sparse": True, "lam": 1e-3}) for loss in ROWS[::2]),
    *(Case(loss, settings={"sparse": True, "lam": 1e-4}) for loss in OUTPUTS),
    *(Case(loss, settings={"data": list_rows(loss), "weighted": True, "lam": 1e-4}) for loss in LISTS),
    *(Case(loss, Newton(direct=1), {"data": list_rows(loss), "lam": 0.1}) for loss in LISTS[2:]),
    Case(rm.Novelty(), settings={"weighted": True}),
    # more columns than rows
    *(
        Case(loss, settings={"n": 30, "p": 50, "intercept": True, "lam": 1e-3})
        for loss in (Hinge(), Logistic(), Squared(), rm.Softmax())
    ),
    # weights per feature, and a metric
    *(
        Case(loss, settings={"reg": reg, "weighted": True, "intercept": True, "lam": 1e-3})
        for loss, reg in [
            (Hinge(), L2([0.1, 1.0, 2.0, 5.0])),
            (Hinge(), Quadratic(METRIC)),
            (Logistic(), L2([0.1, 1.0, 2.0, 5.0])),
            (Logistic(), Quadratic(sp.csr_array(METRIC))),
            (Squared(), Quadratic(METRIC)),
            (rm.Huber(0.3), Quadratic(METRIC)),
        ]
    ),
    Case(
        rm.RocArea(),
        Newton(direct=1),
        {"data": list_rows(rm.RocArea()), "reg": Quadratic(METRIC), "lam": 1e-3},
    ),
]
each_case = pytest.mark.parametrize("case", CASES, ids=repr)


@each_case
def test_the_minimum_is_that_of_another_program(case):
    result = minimize(case.problem.objective(), case.solver, tol=1e-7)
    case.problem.check(result, tol=1e-7)


@each_case
def test_values_are_those_of_j_and_cuts_are_below_the_risk(case):
    obj, rng = case.problem.objective(), np.random.default_rng(1)
    sizes = (0.0, 0.1, 1.0, 3.0) if case.loss.smooth else (0.0, 0.1, 10.0, 1e3)
    points = [size * rng.standard_normal(obj.risk.dim) for size in sizes for _ in range(2)]
    risks = [obj.risk(v)[0] for v in points]
    for it in islice(case.solver.iterates(obj, 0.5 * rng.standard_normal(obj.risk.dim)), 10):
        value = obj.value(it.w)
        # an inexact intercept may raise J by a tenth of the gap
        excess = 0.1 * max(0.0, it.value - obj.lower(it.cut)) if case.problem.intercept else 0.0
        assert -1e-12 * (1 + value) <= it.value - value <= 1e-12 * (1 + value) + excess
        assert not it.cut.a[obj.risk.dim - obj.risk.n_intercepts :].any()  # or it would bound nothing
        for v, risk in zip(points, risks, strict=True):
            assert it.cut.a @ v + it.cut.b <= risk + 1e-11 * (1 + abs(risk))


@pytest.mark.parametrize("case", CASES[::3], ids=repr)
def test_a_saved_run_continues_with_the_same_iterates(case):
    obj, solver = case.problem.objective(), case.solver
    steps = list(islice(solver.iterates(obj, np.zeros(obj.risk.dim)), 12))
    for k in range(0, len(steps) - 1, 4):
        state = {name: np.atleast_1d(np.array(a)) for name, a in steps[k].state().items()}
        for it, after in zip(islice(solver.resume(obj, state), 2), steps[k + 1 :], strict=False):
            if isinstance(case.loss, rm.MulticlassSquaredHinge):  # its system is preconditioned anew
                assert it.value <= steps[k].value
            elif obj.risk.multi_output:  # their scores are computed again
                np.testing.assert_allclose(it.w, after.w, rtol=1e-9, atol=1e-12)
                assert it.value == pytest.approx(after.value, rel=1e-9)
            else:
                np.testing.assert_array_equal(it.w, after.w)
                assert (it.value, it.cut.b) == (after.value, after.cut.b)
