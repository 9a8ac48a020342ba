"""The same answers wherever the rows are; losses of all scores together gather these and nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks import scale, scale_model

import everywhere
from everywhere import PROBLEMS, SHARDS, TOL, TWO_ROUNDS, Elsewhere, default, keeps, solve
from riskmin import Auto, Processes, Serial, Threads
from riskmin.problem.risk import RECOMPUTE_SCORES_EVERY

each_problem = pytest.mark.parametrize("name", PROBLEMS)


# ---------------------------------------------------------------- 8 bytes a row
def check_a_call(name, executor):
    risk = TWO_ROUNDS[name](Elsewhere(executor)).risk
    n, p = risk.row_metadata.shape
    risk(np.zeros(p))
    held = risk.executor
    assert held.mapped == [8 * n]  # the scores
    assert held.summed == [8 * p]  # the gradient
    assert held.sent == [0, 8 * n]  # that of the scores goes back
    assert held.calls == 2


@pytest.mark.parametrize("name", TWO_ROUNDS)
@pytest.mark.parametrize("executor", [Serial, Threads(n_workers=2)], ids=["Serial", "Threads"])
def test_a_call_gathers_8_bytes_a_row(name, executor):
    check_a_call(name, executor)


@pytest.mark.parametrize("name", TWO_ROUNDS)
def test_a_cursor_gathers_8_bytes_a_row_and_looks_for_nothing(name):
    risk = TWO_ROUNDS[name](Elsewhere()).risk
    n, p = risk.row_metadata.shape
    held = risk.executor
    at = risk.cursor(np.zeros(p))
    assert held.mapped == [8 * n]
    at.set_direction(np.ones(p))
    assert held.mapped == [8 * n, 8 * n]
    held.clear()
    for t in (0.1, 0.2, 0.3):
        at.value_slope(t)
    at.advance(0.3)
    assert held.calls == 0
    at.evaluate()
    assert (held.mapped, held.summed, held.sent) == ([], [8 * p], [8 * n])
    held.clear()
    for _ in range(RECOMPUTE_SCORES_EVERY - 1):
        at.advance(0.01)
    assert held.mapped == [8 * n]  # scores are computed anew now and then


@pytest.mark.parametrize("name", ["hinge", "logistic", "L1", "chain CRF", "NDCG"])
def test_losses_of_rows_sequences_and_queries_gather_no_scores(name):
    J = PROBLEMS[name](Elsewhere())
    J(np.zeros(J.risk.dim))
    assert sum(J.risk.executor.mapped) == 0
    assert J.risk.executor.summed == [8 * J.risk.dim]
    assert sum(J.risk.executor.sent) == 0


# ---------------------------------------------------------------- the same bits
@pytest.fixture(scope="module")
def serial():
    """What `Serial` finds."""
    return {name: solve(name, Serial) for name in PROBLEMS}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two ranks find, of one job."""
    pytest.importorskip("mpi4py")
    beside = Path(sys.executable).with_name("mpiexec")
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    if launcher is None:
        pytest.skip("no mpiexec on this system")
    file = tmp_path_factory.mktemp("ranks") / "found.npz"
    command = [launcher, "-n", "2", sys.executable, "-W", "error", everywhere.__file__, file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(file) as found:
        return dict(found)


@pytest.fixture(scope="module")
def cluster():
    """A scheduler and two workers, each a process."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local,
        distributed.Client(local) as client,
    ):
        yield client


def same(found, want):
    assert found.shape == want.shape
    np.testing.assert_array_equal(found, want)


@pytest.mark.slow
@each_problem
def test_threads_and_rows_elsewhere(name, serial):
    same(solve(name, Threads(n_workers=2)), serial[name])
    same(solve(name, Elsewhere()), serial[name])
    same(solve(name, Elsewhere(), Auto()), serial[name])


@pytest.mark.slow
@each_problem
def test_auto_itself_where_it_picks_the_same(name, serial):
    chosen, _ = Auto().choose(PROBLEMS[name](Serial), TOL)
    if chosen == default(name):
        same(solve(name, Serial, Auto()), serial[name])


@pytest.mark.slow
@each_problem
def test_processes(name, serial):
    same(solve(name, Processes(n_workers=2)), serial[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", TWO_ROUNDS)
def test_a_call_gathers_8_bytes_a_row_from_a_cluster(name, cluster):
    from riskmin.executors.dask.executor import DaskExecutor

    check_a_call(name, DaskExecutor(cluster))


@pytest.mark.slow
def test_a_gradient_is_not_changed_by_the_next(ranks):
    assert keeps(Processes(n_workers=2))
    assert ranks["keeps"]


@pytest.mark.slow
@each_problem
def test_ranks_with_ordered_sums(name, serial, ranks):
    same(ranks[name], serial[name])


@pytest.mark.slow
@each_problem
def test_dask(name, serial, cluster):
    from riskmin.executors.dask.executor import DaskExecutor

    found = solve(name, DaskExecutor(cluster))
    assert found.shape == serial[name].shape
    np.testing.assert_allclose(found, serial[name], rtol=1e-12, atol=0)


# ---------------------------------------------------------------- what scale costs
def test_the_page_says_what_its_constants_give():
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text(encoding="utf-8")
    for table in scale_model.tables().split("\n\n"):
        assert table in page


def test_accounts_of_a_run():
    risk = PROBLEMS["ROC area"](scale.Metered(Serial)).risk
    n, p = risk.row_metadata.shape
    risk.executor.clear()
    risk(np.zeros(p))
    assert (risk.executor.rounds, risk.executor.floats) == (2, n + p)
    seconds = risk.executor.shards_took()
    assert len(seconds) == SHARDS
    assert min(seconds) > 0
    assert risk.executor.own > 0


def test_time_is_what_stays_and_what_is_divided():
    ranks = np.array([1, 2, 4, 8])
    assert scale.fit(ranks, 3 + 5 / ranks) == pytest.approx((3, 5, 0))
