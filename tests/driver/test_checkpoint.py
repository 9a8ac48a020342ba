"""Checkpoints: an ended run resumes to the same result, and what happens to the file is told."""

import os
import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

import riskmin as rm
from helpers import Problem
from riskmin.core.persist import FileError, save_arrays


def objective(loss=None, reg=None, **settings):
    settings = {"lam": 1e-3, "n": 60, "p": 6} | settings
    return Problem(loss or rm.Logistic(), reg or rm.L2(), **settings).objective()


def disk_full(fd):
    raise OSError(28, "No space left on device")


# ---------------------------------------------------------------- resumption
DUAL = rm.DualCoordinateAscent()
SAME_BITS = [
    (rm.Newton(), {"loss": rm.Hinge(), "intercept": True}),
    (rm.Newton(), {}),
    (rm.Newton(direct=1), {"loss": rm.Squared(), "sparse": True, "lam": 1e-6}),
    (rm.OwlQn(), {"reg": rm.L1(), "intercept": True}),
    (rm.ProximalGradient(), {"reg": rm.L1(), "intercept": True}),
    (DUAL, {"loss": rm.Hinge()}),
    (DUAL, {"intercept": True}),
    (rm.DualCoordinateAscent(seed=7), {"loss": rm.Hinge(), "sparse": True, "intercept": True}),
    (rm.DualCoordinateAscent(shrink=False), {"sparse": True}),
    *((rm.SeparableForm(DUAL), {"loss": a, "lam": 1e-2}) for a in (rm.Prbep(), rm.RocArea())),
]


@pytest.mark.parametrize(("solver", "problem"), SAME_BITS)
def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(solver, problem, tmp_path):
    obj = objective(**problem)
    whole = rm.minimize(obj, solver, tol=1e-6)
    for n_first in {1, max(1, whole.n_iter // 2), max(1, whole.n_iter - 1)}:
        path = tmp_path / f"run{n_first}"
        rm.minimize(obj, solver, tol=1e-6, max_iter=n_first, checkpoint=path)
        resumed = rm.minimize(obj, solver, tol=1e-6, checkpoint=path)
        assert resumed.w.tobytes() == whole.w.tobytes()
        assert resumed.value == whole.value
        # cuts of before the interruption are not in the file: the bound of Newton's method is proved again
        tolerance = 1e-6 if isinstance(solver, rm.Newton) else 0.0
        assert abs(resumed.lower - whole.lower) <= tolerance * whole.value
        assert resumed.status == "converged"


@pytest.mark.parametrize(
    ("solver", "problem"),
    [
        (rm.Bundle(), {}),
        (rm.Bmrm(floor=True), {}),
        (rm.LineSearchBmrm(), {"intercept": True}),
        *((rm.Lbfgs(memory=memory), {}) for memory in (1, 3, 20)),
        (rm.Auto(), {"intercept": True}),
    ],
)
def test_a_resumed_run_matches_an_uninterrupted_one(solver, problem, tmp_path):
    """The remaining iterates are those of the uninterrupted run, up to rounding."""
    obj, path = objective(**problem), tmp_path / "run"
    w0 = np.full(obj.risk.dim, 0.5)
    n_first = 2 if isinstance(solver, rm.Auto) else 8  # Newton's method ends after few iterations
    uninterrupted = rm.minimize(obj, solver, w0, tol=1e-9, max_iter=20)
    first = rm.minimize(obj, solver, w0, tol=1e-9, max_iter=n_first, checkpoint=path)
    assert first.status == "max_iter"
    second = rm.minimize(obj, solver, w0, tol=1e-9, max_iter=20, checkpoint=path)
    assert second.trace[:n_first] == first.trace
    assert [r["iteration"] for r in second.trace] == list(range(1, second.n_iter + 1))
    assert second.status == uninterrupted.status
    n = min(uninterrupted.n_iter, second.n_iter)
    values = [[r["value"] for r in result.trace[:n]] for result in (uninterrupted, second)]
    np.testing.assert_allclose(*values, rtol=1e-9)
    assert max(uninterrupted.lower, second.lower) <= min(uninterrupted.value, second.value) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("solver", "loss"), [(rm.Bundle(), rm.Hinge()), (rm.Lbfgs(), rm.Logistic())], ids=repr
)
def test_a_run_with_many_interruptions_converges(solver, loss, tmp_path):
    """Also with an intercept, whose search a resumed run starts afresh."""
    obj = objective(loss, intercept=True)
    uninterrupted = rm.minimize(obj, solver, tol=1e-6)
    for k in range(3, 200, 5):
        parts = rm.minimize(obj, solver, tol=1e-6, max_iter=k, checkpoint=tmp_path / "run")
        if parts.status == "converged":
            break
    assert parts.status == uninterrupted.status == "converged"
    assert parts.value == pytest.approx(uninterrupted.value, rel=2e-6)
    assert parts.n_iter <= 2 * uninterrupted.n_iter + 10


def test_a_finished_run_returns_immediately(tmp_path):
    obj, path = objective(), tmp_path / "run"
    first = rm.minimize(obj, tol=1e-4, checkpoint=path)
    written = path.stat().st_mtime_ns
    repeated = rm.minimize(obj, tol=1e-4, checkpoint=path)
    assert repeated.status == first.status == "converged"
    assert repeated.n_iter == first.n_iter
    assert repeated.value == first.value
    # the bound is that of the cut at w, since none is in the file
    assert 0 <= repeated.value - repeated.lower <= 1e-4 * repeated.value
    np.testing.assert_array_equal(repeated.w, first.w)
    assert [row["value"] for row in repeated.trace] == [row["value"] for row in first.trace]
    assert path.stat().st_mtime_ns == written
    # a smaller tol continues the run
    assert rm.minimize(obj, tol=1e-9, checkpoint=path).n_iter > first.n_iter


@pytest.mark.parametrize("solver", [None, rm.Bundle()], ids=repr)
def test_runs_resume_with_another_tolerance(solver, tmp_path):
    """`Auto` chooses its solver for the tolerance: another one goes on from the point."""
    obj, path = objective(rm.Hinge(), intercept=True), tmp_path / "run"
    rm.minimize(obj, solver, tol=1e-1, checkpoint=path)
    before = rm.minimize(obj, solver, tol=1e-2, checkpoint=path)
    for tol in (1e-6, 1e-3):
        result = rm.minimize(obj, solver, tol=tol, checkpoint=path)
        assert result.status == "converged"
        assert result.n_iter >= before.n_iter
        assert result.value - result.lower <= tol * result.value


def test_interrupted_and_stalled_runs_are_saved(tmp_path):
    obj, path = objective(), tmp_path / "run"
    stopped = rm.minimize(obj, tol=1e-12, checkpoint=path, callback=lambda it, row: row["iteration"] == 2)
    assert stopped.status == "interrupted"
    assert rm.minimize(obj, tol=1e-6, checkpoint=path).n_iter >= 2
    path.unlink()
    assert rm.minimize(obj, rm.Lbfgs(), tol=0.0, checkpoint=path).status in ("stalled", "converged")
    assert path.exists()


def test_whole_numbers_beyond_integers_are_saved(tmp_path):
    class Counting(rm.Lbfgs):
        def iterates(self, obj, w0):
            for it in super().iterates(obj, w0):
                yield it._replace(info={"visits": 2.0**70})

    obj, path = objective(), tmp_path / "run"
    for n in (2, 4, 6):
        result = rm.minimize(obj, Counting(), tol=0.0, max_iter=n, checkpoint=path)
        assert [row["visits"] for row in result.trace[:2]] == [2.0**70] * 2
        assert result.n_iter == n


# ---------------------------------------------------------------- writing
@pytest.mark.parametrize(("every", "always"), [(0.0, True), (1e9, False)])
def test_the_interval_between_checkpoints(every, always, tmp_path):
    path, times = tmp_path / "run", []

    def record_time(it, row):
        times.append(path.stat().st_mtime_ns if path.exists() else 0)

    obj, save = objective(rm.Hinge(), lam=1e-6), rm.Checkpoint(path, every=every)
    rm.minimize(obj, rm.Bundle(), tol=1e-6, max_iter=12, callback=record_time, checkpoint=save)
    assert len(set(times)) == (len(times) if always else 1)
    assert path.exists()


def test_a_full_disk_loses_neither_the_result_nor_the_old_file(tmp_path, monkeypatch):
    obj, path = objective(), tmp_path / "run"
    rm.minimize(obj, max_iter=1, checkpoint=path)
    content = path.read_bytes()
    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(FileError, match="cannot be written: No space left on device"):
        save_arrays(path, {"a": np.arange(9)}, {"kind": "test"})
    with pytest.warns(RuntimeWarning, match="No space left on device; the run goes on without a checkpoint"):
        result = rm.minimize(obj, checkpoint=rm.Checkpoint(path, every=0.0))
    assert result.status == "converged"
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_an_unwritable_path_raises_before_the_run(tmp_path):
    called = []
    with pytest.raises(FileError, match=r"cannot be written: .* is not a writable folder"):
        rm.minimize(
            objective(), checkpoint=tmp_path / "nowhere" / "run", callback=lambda *a: called.append(a)
        )
    assert not called


# ---------------------------------------------------------------- files of other runs, and other files
@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The file of a run of the bundle method."""
    path = tmp_path_factory.mktemp("saved") / "run"
    rm.minimize(objective(), rm.Bundle(), tol=1e-2, checkpoint=path)
    return path


def other_file(meta):
    return lambda path: save_arrays(path, {"w": np.zeros(6)}, meta)


@pytest.mark.parametrize(
    ("words", "change"),
    [
        *(
            ("truncated or damaged", lambda path, k=k: os.truncate(path, int(k * path.stat().st_size)))
            for k in (0.0, 0.01, 0.3, 0.999)
        ),
        *(
            (" ", lambda path, c=c: path.write_bytes(c))
            for c in (b"hello", b"\x00" * 100, b"\xff" * 100, b"{}" * 50)
        ),
        ("is not a riskmin checkpoint file", other_file({"kind": "model"})),
        ("is not a riskmin checkpoint file", lambda path: save_file({"w": np.zeros(6)}, path)),
        (" ", other_file({"kind": "checkpoint"})),
    ],
)
def test_damaged_and_other_files_are_refused(words, change, saved, tmp_path):
    path = shutil.copy(saved, tmp_path / "run")
    change(path)
    with pytest.raises(FileError, match=words) as caught:
        rm.minimize(objective(), rm.Bundle(), checkpoint=path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
