"""The iterates of the methods of the papers: values, cuts at far points, and saved runs, to the last bit."""

from itertools import islice

import numpy as np
import pytest

import riskmin as rm
from helpers import Problem

RESTARTED = rm.DualAccelerated(restart=4.0)
CASES = [
    *(
        (rm.AcceleratedGradient(), Problem(rm.Logistic(), reg, 0.02, n=30, intercept=True, weighted=True), 10)
        for reg in (rm.L2(), rm.L1(), rm.Elastic(0.3))
    ),
    (rm.Smoothing(inner=rm.AcceleratedGradient()), Problem(rm.RocArea(), lam=0.05), 10),
    (RESTARTED, Problem(rm.Hinge(), lam=0.05, n=30, weighted=True), 70),
    (RESTARTED, Problem(rm.EpsilonInsensitive(0.2), lam=0.05, n=30, intercept=True, weighted=True), 70),
    (rm.ExcessiveGap(), Problem(rm.ChainMaxMargin(), lam=0.3, n=10, p=2), 12),
]


@pytest.mark.parametrize(("solver", "problem", "n"), CASES, ids=repr)
def test_iterates_are_valid_and_saved_runs_continue(solver, problem, n):
    J, rng = problem.objective(), np.random.default_rng(0)
    points = rng.standard_normal((10, J.risk.dim)) * rng.exponential(30, (10, 1))
    risks = [J.risk(v)[0] for v in points]
    steps = list(islice(solver.iterates(J, np.ones(J.risk.dim)), n))
    for it in steps[:5] + steps[-5:]:
        assert it.value == pytest.approx(J.value(it.w), rel=1e-12)
        assert all(it.cut.a @ v + it.cut.b <= r + 1e-11 * (1 + r) for v, r in zip(points, risks, strict=True))
    for k in {0, 1, n // 2 - 4, n // 2 - 3, n - 2}:
        saved = {name: np.array(a, copy=True) for name, a in steps[k].state().items()}
        resumed = next(solver.resume(J, saved))
        if resumed.info.get("mu") == steps[k + 1].info.get("mu"):  # a smoothed stage may end at a saved state
            np.testing.assert_array_equal(resumed.w, steps[k + 1].w)
            assert resumed.value == steps[k + 1].value
            assert J.lower(resumed.cut) == pytest.approx(J.lower(steps[k + 1].cut), rel=1e-12)
        assert J.lower(resumed.cut) <= resumed.value
