"""Identical results wherever the rows are; non-decomposable losses gather the scores and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import scale, scale_model

import everywhere
from everywhere import PROBLEMS, SHARDS, TOL, TWO_ROUNDS, RemoteExecutor, default, keeps, solve
from riskmin import Auto, Processes, Serial, Threads
from riskmin.problem.risk import RECOMPUTE_SCORES_EVERY

each_problem = pytest.mark.parametrize("name", PROBLEMS)


# ---------------------------------------------------------------- 8 bytes per row
def check_traffic_of_a_call(name, executor):
    risk = TWO_ROUNDS[name](RemoteExecutor(executor)).risk
    n, p = risk.row_metadata.shape
    risk(np.zeros(p))
    executor_with_shards = risk.executor
    assert executor_with_shards.mapped == [8 * n]  # the scores
    assert executor_with_shards.summed == [8 * p]  # the gradient
    assert executor_with_shards.sent == [0, 8 * n]  # the gradient in the scores is sent back
    assert executor_with_shards.calls == 2


@pytest.mark.parametrize("name", TWO_ROUNDS)
@pytest.mark.parametrize("executor", [Serial, Threads(n_workers=2)], ids=["Serial", "Threads"])
def test_call_gathers_8_bytes_per_row(name, executor):
    check_traffic_of_a_call(name, executor)


@pytest.mark.parametrize("name", TWO_ROUNDS)
def test_line_search_of_a_cursor_needs_no_round(name):
    risk = TWO_ROUNDS[name](RemoteExecutor()).risk
    n, p = risk.row_metadata.shape
    executor_with_shards = risk.executor
    cursor = risk.cursor(np.zeros(p))
    assert executor_with_shards.mapped == [8 * n]
    cursor.set_direction(np.ones(p))
    assert executor_with_shards.mapped == [8 * n, 8 * n]
    executor_with_shards.clear()
    for t in (0.1, 0.2, 0.3):
        cursor.value_slope(t)
    cursor.advance(0.3)
    assert executor_with_shards.calls == 0
    cursor.evaluate()
    assert (executor_with_shards.mapped, executor_with_shards.summed, executor_with_shards.sent) == (
        [],
        [8 * p],
        [8 * n],
    )
    executor_with_shards.clear()
    for _ in range(RECOMPUTE_SCORES_EVERY - 1):
        cursor.advance(0.01)
    assert executor_with_shards.mapped == [8 * n]  # scores are recomputed from time to time


@pytest.mark.parametrize("name", ["hinge", "logistic", "L1", "chain CRF", "NDCG"])
def test_decomposable_losses_gather_no_scores(name):
    J = PROBLEMS[name](RemoteExecutor())
    J(np.zeros(J.risk.dim))
    assert sum(J.risk.executor.mapped) == 0
    assert J.risk.executor.summed == [8 * J.risk.dim]
    assert sum(J.risk.executor.sent) == 0


# ---------------------------------------------------------------- bitwise equal results
@pytest.fixture(scope="module")
def serial():
    """Results of `Serial`."""
    return {name: solve(name, Serial) for name in PROBLEMS}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Results of one MPI job with two ranks."""
    pytest.importorskip("mpi4py")
    beside = Path(sys.executable).with_name("mpiexec")
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if launcher is None:
        pytest.skip("no mpiexec on this system")
    file = tmp_path_factory.mktemp("ranks") / "found.npz"
    command = [launcher, "-n", "2", sys.executable, "-W", "error", everywhere.__file__, file]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 0, completed.stderr
    with np.load(file) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def cluster():
    """A scheduler and two workers, each a process."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local,
        distributed.Client(local) as client,
    ):
        yield client


def assert_same(result, expected):
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)


@pytest.mark.slow
@each_problem
def test_threads_and_remote_rows(name, serial):
    assert_same(solve(name, Threads(n_workers=2)), serial[name])
    assert_same(solve(name, RemoteExecutor()), serial[name])
    assert_same(solve(name, RemoteExecutor(), Auto()), serial[name])


@pytest.mark.slow
@each_problem
def test_auto_where_it_chooses_the_same_solver(name, serial):
    chosen, _ = Auto().choose(PROBLEMS[name](Serial), TOL)
    if chosen == default(name):
        assert_same(solve(name, Serial, Auto()), serial[name])


@pytest.mark.exhaustive
@each_problem
def test_processes(name, serial):
    assert_same(solve(name, Processes(n_workers=2)), serial[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", TWO_ROUNDS)
def test_call_gathers_8_bytes_per_row_from_a_cluster(name, cluster):
    from riskmin.executors.dask.executor import DaskExecutor

    check_traffic_of_a_call(name, DaskExecutor(cluster))


@pytest.mark.exhaustive
def test_gradients_are_not_overwritten(ranks):
    assert keeps(Processes(n_workers=2))
    assert ranks["keeps"]


@pytest.mark.slow
@each_problem
def test_ranks_with_ordered_sums(name, serial, ranks):
    assert_same(ranks[name], serial[name])


@pytest.mark.exhaustive
@each_problem
def test_dask(name, serial, cluster):
    from riskmin.executors.dask.executor import DaskExecutor

    result = solve(name, DaskExecutor(cluster))
    assert result.shape == serial[name].shape
    np.testing.assert_allclose(result, serial[name], rtol=1e-12, atol=0)


# ---------------------------------------------------------------- the cost model of benchmarks/scale
def test_scaling_page_has_the_tables_of_the_model():
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    for table in scale_model.tables().split("\n\n"):
        assert table in page


def test_metered_executor_counts_rounds_and_floats():
    risk = PROBLEMS["ROC area"](scale.Metered(Serial)).risk
    n, p = risk.row_metadata.shape
    risk.executor.clear()
    risk(np.zeros(p))
    assert (risk.executor.rounds, risk.executor.floats) == (2, n + p)
    seconds = risk.executor.shards_took()
    assert len(seconds) == SHARDS
    assert min(seconds) > 0
    assert risk.executor.solver_seconds > 0


def test_fit_separates_constant_and_divided_time():
    ranks = np.array([1, 2, 4, 8])
    assert scale.fit(ranks, 3 + 5 / ranks) == pytest.approx((3, 5, 0))
