"""Identical results wherever the rows are; non-decomposable losses gather the scores and nothing else."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from benchmarks import scale, scale_model

from everywhere import PROBLEMS, SHARDS, TWO_ROUNDS, RemoteExecutor, check_long_sums, solve
from riskmin import Logistic, Serial, Threads, linear_risk


# ---------------------------------------------------------------- bitwise equal results
@cache
def expected(name, is_local):
    """The result of `Serial`, whose rows solvers may visit, or not."""
    return solve(name, Serial() if is_local else RemoteExecutor(Serial))


def pairs(serial=(), threads=(), processes=(), dask=(), spark=()):
    """Names with the kinds of executors; the remote ones are slow to start."""
    names = {"serial": serial, "threads": threads, "processes": processes, "dask": dask, "spark": spark}
    marks = dict.fromkeys(["processes", "dask", "spark"], pytest.mark.slow)
    return pytest.mark.parametrize(
        ("name", "backend"),
        [
            pytest.param(name, kind, marks=marks.get(kind, ()))
            for kind, some in names.items()
            for name in some
        ],
        indirect=["backend"],
    )


@pairs(
    threads=PROBLEMS,
    processes=["ROC area"],
    dask=["hinge, intercept", "L1", "ROC area", "NDCG", "chain CRF"],
    spark=["hinge, intercept", "L1", "ROC area", "NDCG", "chain CRF"],
)
def test_fits_have_the_bits_of_one_process(name, backend):
    result = solve(name, backend)
    assert result.tobytes() == expected(name, backend.is_local).tobytes()


@pytest.mark.parametrize("name", ["hinge, intercept", "L1", "ROC area"])
def test_remote_rows_on_threads_have_the_bits_of_one_process(name):
    """The number of threads does not matter, and may be above that of the shards."""
    assert solve(name, RemoteExecutor(Threads(3))).tobytes() == expected(name, False).tobytes()
    assert solve(name, Threads(9)).tobytes() == expected(name, True).tobytes()


def test_long_gradients_have_the_same_bits_and_are_kept(backend):
    check_long_sums(backend)


def test_the_number_of_shards_changes_rounding_only():
    X, y = np.random.default_rng(0).standard_normal((200, 6)), np.tile([1.0, -1.0], 100)
    values = [linear_risk(X, y, Logistic(), n_shards=k)(np.ones(6))[0] for k in (1, 2, 7, 200)]
    np.testing.assert_allclose(values, values[0], rtol=1e-14)


# ---------------------------------------------------------------- 8 bytes per row
@pairs(serial=TWO_ROUNDS, threads=["F-beta"], dask=["ROC area"])
def test_a_call_gathers_8_bytes_per_row(name, backend):
    risk = TWO_ROUNDS[name](RemoteExecutor(backend)).risk
    n, p = risk.row_metadata.shape
    risk(np.zeros(p))
    assert risk.executor.mapped == [8 * n]  # the scores
    assert risk.executor.summed == [8 * p]  # the gradient
    assert risk.executor.sent == [0, 8 * n]  # the gradient in the scores is sent back
    assert risk.executor.calls == 2


@pytest.mark.parametrize("name", TWO_ROUNDS)
def test_the_line_search_of_a_cursor_needs_no_round(name):
    risk = TWO_ROUNDS[name](RemoteExecutor()).risk
    n, p = risk.row_metadata.shape
    executor, cursor = risk.executor, risk.cursor(np.zeros(p))
    assert executor.mapped == [8 * n]
    cursor.set_direction(np.ones(p))
    assert executor.mapped == [8 * n, 8 * n]
    executor.clear()
    for t in (0.1, 0.2, 0.3):
        cursor.value_slope(t)
    cursor.advance(0.3)
    assert executor.calls == 0
    cursor.evaluate()
    assert (executor.mapped, executor.summed, executor.sent) == ([], [8 * p], [8 * n])
    executor.clear()
    for _ in range(200):
        cursor.advance(0.01)
    assert 1 <= executor.calls <= 20  # scores are recomputed from time to time
    assert set(executor.mapped) == {8 * n}


@pytest.mark.parametrize("name", ["hinge", "L1", "chain CRF", "NDCG"])
def test_decomposable_losses_gather_no_scores(name):
    J = PROBLEMS[name](RemoteExecutor())
    J.risk.executor.clear()
    J(np.zeros(J.risk.dim))
    assert sum(J.risk.executor.mapped) == 0
    assert J.risk.executor.summed == [8 * J.risk.dim]
    assert sum(J.risk.executor.sent) == 0


# ---------------------------------------------------------------- the cost model of benchmarks/scale
def test_the_scaling_page_has_the_tables_of_the_model():
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    for table in scale_model.tables().split("\n\n"):
        assert table in page


def test_a_metered_executor_counts_rounds_and_floats():
    risk = PROBLEMS["ROC area"](scale.Metered(Serial)).risk
    n, p = risk.row_metadata.shape
    risk.executor.clear()
    risk(np.zeros(p))
    assert (risk.executor.rounds, risk.executor.floats) == (2, n + p)
    seconds = risk.executor.shards_took()
    assert len(seconds) == SHARDS
    assert min(seconds) > 0
    assert risk.executor.solver_seconds > 0


def test_the_fit_separates_constant_and_divided_time():
    ranks = np.array([1, 2, 4, 8])
    assert scale.fit(ranks, 3 + 5 / ranks) == pytest.approx((3, 5, 0))
