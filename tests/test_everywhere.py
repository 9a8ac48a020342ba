"""The same answers wherever the rows are; losses of all scores together gather these and nothing else."""

import numpy as np
import pytest

from everywhere import PROBLEMS, TWO_ROUNDS, Elsewhere, solve
from riskmin import Auto, Serial, Threads
from riskmin.risk import REFRESH, cursor

each_problem = pytest.mark.parametrize("name", PROBLEMS)


# ---------------------------------------------------------------- 8 bytes a row
@pytest.mark.parametrize("name", TWO_ROUNDS)
@pytest.mark.parametrize("executor", [Serial, Threads(n_workers=2)], ids=["Serial", "Threads"])
def test_a_call_gathers_8_bytes_a_row(name, executor):
    risk = TWO_ROUNDS[name](Elsewhere(executor)).risk
    n, p = risk.table.shape
    risk(np.zeros(p))
    held = risk.executor
    assert held.mapped == [8 * n]  # the scores
    assert held.summed == [8 * p]  # the gradient
    assert held.sent == [0, 8 * n]  # that of the scores goes back
    assert held.calls == 2


@pytest.mark.parametrize("name", TWO_ROUNDS)
def test_a_cursor_gathers_8_bytes_a_row_and_looks_for_nothing(name):
    risk = TWO_ROUNDS[name](Elsewhere()).risk
    n, p = risk.table.shape
    held = risk.executor
    at = cursor(risk, np.zeros(p))
    assert held.mapped == [8 * n]
    at.aim(np.ones(p))
    assert held.mapped == [8 * n, 8 * n]
    held.clear()
    for t in (0.1, 0.2, 0.3):
        at.along(t)
    at.move(0.3)
    assert held.calls == 0
    at.value_grad()
    assert (held.mapped, held.summed, held.sent) == ([], [8 * p], [8 * n])
    held.clear()
    for _ in range(REFRESH - 1):
        at.move(0.01)
    assert held.mapped == [8 * n]  # scores are computed anew now and then


@pytest.mark.parametrize("name", ["hinge", "logistic", "L1", "chain CRF"])
def test_losses_of_rows_gather_no_scores(name):
    J = PROBLEMS[name](Elsewhere())
    J(np.zeros(J.risk.dim))
    assert J.risk.executor.mapped == []
    assert J.risk.executor.summed == [8 * J.risk.dim]
    assert J.risk.executor.sent == [0]


# ---------------------------------------------------------------- the same bits
@pytest.fixture(scope="module")
def serial():
    """What `Serial` finds."""
    return {name: solve(name, Serial) for name in PROBLEMS}


def same(found, want):
    assert found.shape == want.shape
    np.testing.assert_array_equal(found, want)


@pytest.mark.slow
@each_problem
def test_threads_and_rows_elsewhere(name, serial):
    same(solve(name, Threads(n_workers=2)), serial[name])
    same(solve(name, Elsewhere()), serial[name])
    same(solve(name, Elsewhere(), Auto()), serial[name])
