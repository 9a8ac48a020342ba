"""Checkpoints: a killed run resumes to the same result; partial files and files of other runs are refused."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest

from helpers import labels
from riskmin import (
    L1,
    L2,
    Auto,
    Bmrm,
    Bundle,
    Checkpoint,
    CoordinateDescent,
    DualCoordinateAscent,
    DualGaussSeidel,
    Hinge,
    Huber,
    Lbfgs,
    LineSearchBmrm,
    Logistic,
    Newton,
    Objective,
    OwlQn,
    ProximalGradient,
    linear_risk,
    minimize,
)
from riskmin.core.persist import FileError, load_arrays, save_arrays

SOLVERS = [Bundle(), Bmrm(), Bmrm(floor=True), LineSearchBmrm(), Lbfgs(), Auto()]
VISITORS = [DualCoordinateAscent(), DualGaussSeidel(), CoordinateDescent(), ProximalGradient()]
each_solver = pytest.mark.parametrize("solver", SOLVERS, ids=repr)


def objective(loss=None, lam=1e-3, seed=0, n=80, p=6, **settings):
    loss = loss or Logistic()
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p))
    return Objective(
        linear_risk(X, labels(loss, X @ rng.standard_normal(p), rng), loss, **settings), L2(), lam
    )


# ---------------------------------------------------------------- resumption in this process
@each_solver
@pytest.mark.parametrize("intercept", [False, True])
def test_resumed_run_matches_uninterrupted_run(solver, intercept, tmp_path):
    """The remaining iterates are those of the uninterrupted run, up to rounding."""
    obj, path = objective(fit_intercept=intercept), tmp_path / "run"
    w0 = np.full(6, 0.5)
    n_first = (
        2 if isinstance(solver, Auto) else 8
    )  # Auto chooses Newton's method, which ends after few iterations
    uninterrupted = minimize(obj, solver, w0, tol=1e-9, max_iter=25)
    first = minimize(obj, solver, w0, tol=1e-9, max_iter=n_first, checkpoint=path)
    assert first.status == "max_iter"
    second = minimize(obj, solver, w0, tol=1e-9, max_iter=25, checkpoint=path)
    assert second.trace[:n_first] == first.trace
    assert [r["iteration"] for r in second.trace] == list(range(1, second.n_iter + 1))
    assert second.status == uninterrupted.status
    # the search for the intercept reuses values along a line, and a resumed run starts it afresh
    if not (intercept and isinstance(solver, (Bundle, Lbfgs, Auto))):
        n = min(uninterrupted.n_iter, second.n_iter)
        values = [[r["value"] for r in result.trace[:n]] for result in (uninterrupted, second)]
        np.testing.assert_allclose(*values, rtol=1e-9)
    assert max(uninterrupted.lower, second.lower) <= min(uninterrupted.value, second.value) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("solver", "loss", "reg"),
    [
        (Newton(), Hinge(), L2()),
        (Newton(), Logistic(), L2()),
        (OwlQn(), Logistic(), L1()),
        (ProximalGradient(), Logistic(), L1()),
        (DualCoordinateAscent(), Hinge(), L2()),
        (DualCoordinateAscent(), Logistic(), L2()),
    ],
    ids=repr,
)
@pytest.mark.parametrize("intercept", [False, True])
def test_resumed_run_has_the_bits_of_an_uninterrupted_one(solver, loss, reg, intercept, tmp_path):
    obj = replace(objective(loss, fit_intercept=intercept), reg=reg)
    whole = minimize(obj, solver, tol=1e-8)
    for n_first in (1, 2, whole.n_iter - 1):
        path = tmp_path / f"run{n_first}"
        minimize(obj, solver, tol=1e-8, max_iter=n_first, checkpoint=path)
        resumed = minimize(obj, solver, tol=1e-8, checkpoint=path)
        assert resumed.w.tobytes() == whole.w.tobytes()
        assert resumed.value == whole.value
        # cuts of before the interruption are not in the file: the bound of Newton's method is proved again
        tolerance = 1e-8 if isinstance(solver, Newton) else 0.0
        assert abs(resumed.lower - whole.lower) <= tolerance * whole.value
        assert resumed.status == "converged"


@pytest.mark.parametrize("solver", [Bundle(), Lbfgs()], ids=repr)
@pytest.mark.parametrize("intercept", [False, True])
def test_run_with_many_interruptions_converges(solver, intercept, tmp_path):
    loss = Logistic() if isinstance(solver, Lbfgs) else Hinge()
    obj = objective(loss, fit_intercept=intercept)
    uninterrupted = minimize(obj, solver, tol=1e-8)
    for k in range(2, 200, 3):
        parts = minimize(obj, solver, tol=1e-8, max_iter=k, checkpoint=tmp_path / "run")
        if parts.status == "converged":
            break
    assert parts.status == uninterrupted.status == "converged"
    assert parts.value == pytest.approx(uninterrupted.value, rel=2e-8)
    assert parts.n_iter <= 2 * uninterrupted.n_iter + 10


@pytest.mark.parametrize("solver", [*SOLVERS, *VISITORS], ids=repr)
def test_states_round_trip_through_a_file(solver, tmp_path):
    if isinstance(solver, Auto):
        return
    obj = objective()
    for k, it in enumerate(islice(solver.iterates(obj, np.full(6, 0.5)), 6)):
        state = {name: np.asarray(a) for name, a in it.state().items()}
        save_arrays(tmp_path / "state", state, {"kind": "state"})
        back, _ = load_arrays(tmp_path / "state", "state")
        assert back.keys() == state.keys()
        for name, a in state.items():
            np.testing.assert_array_equal(back[name], a)
            assert back[name].dtype == a.dtype
        from_memory, from_file = (next(solver.resume(obj, s)) for s in (state, back))
        np.testing.assert_array_equal(from_memory.w, from_file.w)
        assert from_memory.value == from_file.value, k


def test_state_does_not_change_while_the_solver_continues():
    """A state is written while the solver continues, so later iterations must not modify it."""
    obj = objective(Hinge())
    for solver in SOLVERS[:-1]:
        iterates = solver.iterates(obj, np.full(6, 0.5))
        early = next(iterates)
        snapshot = {k: np.array(v, copy=True) for k, v in early.state().items()}
        list(islice(iterates, 30))
        for name, a in early.state().items():
            np.testing.assert_array_equal(a, snapshot[name])


def test_finished_run_returns_immediately(tmp_path):
    obj, path = objective(), tmp_path / "run"
    first = minimize(obj, tol=1e-3, checkpoint=path)
    written = path.stat().st_mtime_ns
    repeated = minimize(obj, tol=1e-3, checkpoint=path)
    assert repeated.status == first.status == "converged"
    assert repeated.n_iter == first.n_iter
    assert repeated.value == first.value
    # the bound is that of the cut at w, since none is in the file
    assert repeated.lower == pytest.approx(first.lower, rel=1e-9)
    np.testing.assert_array_equal(repeated.w, first.w)
    np.testing.assert_allclose(repeated.cut.a, first.cut.a, atol=1e-12)
    assert [row["value"] for row in repeated.trace] == [row["value"] for row in first.trace]
    assert path.stat().st_mtime_ns == written
    assert minimize(obj, tol=1e-9, checkpoint=path).n_iter > first.n_iter  # a smaller tol continues the run


def test_interrupted_and_stalled_runs_are_saved(tmp_path):
    obj, path = objective(), tmp_path / "run"
    stopped = minimize(obj, tol=1e-12, checkpoint=path, callback=lambda it, row: row["iteration"] == 2)
    assert stopped.status == "interrupted"
    assert minimize(obj, tol=1e-6, checkpoint=path).n_iter >= 2
    path.unlink()
    stalled = minimize(obj, Lbfgs(), tol=0.0, checkpoint=path)
    assert stalled.status in ("stalled", "converged")
    assert path.exists()


# ---------------------------------------------------------------- SIGKILL
SCRIPT = """
    import sys, numpy as np, riskmin
    path, solver, seconds = sys.argv[1], getattr(riskmin, sys.argv[2])(), float(sys.argv[3])
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((300, 20)), np.where(rng.random(300) < 0.5, 1.0, -1.0)
    risk = riskmin.linear_risk(X, y, riskmin.Hinge(), fit_intercept=len(sys.argv) > 4)
    if seconds:
        import time
        callback = lambda it, row: time.sleep(seconds)
    else:
        callback = None
    result = riskmin.minimize(riskmin.Objective(risk, riskmin.L2(), 1e-4), solver, tol=1e-5, max_iter=3000,
                              callback=callback, checkpoint=riskmin.Checkpoint(path, every=0.0))
    print(result.status, repr(result.value), repr(result.lower), result.n_iter)
"""


def start(path, solver, seconds, *more):
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(path), solver, str(seconds), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finish(run):
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 0
    status, value, lower, n_iter = out.split()
    return status, float(value), float(lower), int(n_iter)


def kill_and_resume(tmp_path, solver, *more, kills):
    path, uninterrupted = tmp_path / "run", finish(start(tmp_path / "whole", solver, 0, *more))
    chance = random.Random(0)
    for _ in range(kills):
        run = start(path, solver, 0.01, *more)
        deadline = time.monotonic() + 30
        before = path.stat().st_mtime_ns if path.exists() else 0
        while not (path.exists() and path.stat().st_mtime_ns > before) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.2))
        run.send_signal(signal.SIGKILL)
        run.communicate()
        assert run.returncode == -signal.SIGKILL
        load_arrays(path, "checkpoint")  # the file is complete, whenever the run was killed
    status, value, lower, n_iter = finish(start(path, solver, 0, *more))
    assert status == uninterrupted[0] == "converged"
    assert abs(value - uninterrupted[1]) <= 1e-5 * value
    assert max(lower, uninterrupted[2]) <= min(value, uninterrupted[1])
    assert n_iter <= uninterrupted[3] + 10 * kills


@pytest.mark.exhaustive
def test_sigkill_and_resume(tmp_path):
    kill_and_resume(tmp_path, "Bundle", "intercept", kills=2)


# ---------------------------------------------------------------- files
def test_readers_never_see_partial_files(tmp_path):
    path, stop, read_numbers = tmp_path / "file", threading.Event(), []
    save_arrays(path, {"a": np.zeros(200_000)}, {"kind": "test", "k": 0})

    def write():
        k = 0
        while not stop.is_set():
            k += 1
            save_arrays(path, {"a": np.full(200_000 + k % 7, float(k))}, {"kind": "test", "k": k})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(40):
            arrays, meta = load_arrays(path, "test")
            assert (arrays["a"] == meta["k"]).all()
            read_numbers.append(meta["k"])
    finally:
        stop.set()
        writer.join()
    assert read_numbers == sorted(read_numbers)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    save_arrays(path, {"a": np.arange(3)}, {"kind": "test"})

    def disk_full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(FileError, match="cannot be written: No space left on device"):
        save_arrays(path, {"a": np.arange(9)}, {"kind": "test"})
    monkeypatch.undo()
    np.testing.assert_array_equal(load_arrays(path, "test")[0]["a"], np.arange(3))
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_unwritable_path_raises_before_the_run(tmp_path):
    called = []
    with pytest.raises(FileError, match=r"cannot be written: .* is not a writable folder"):
        minimize(objective(), checkpoint=tmp_path / "nowhere" / "run", callback=lambda *a: called.append(a))
    assert not called


def test_full_disk_does_not_lose_the_result(tmp_path, monkeypatch):
    def disk_full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.warns(RuntimeWarning, match="No space left on device; the run goes on without a checkpoint"):
        result = minimize(objective(), checkpoint=Checkpoint(tmp_path / "run", every=0.0))
    assert result.status == "converged"


@pytest.mark.slow
def test_user_defined_loss_resumes_in_another_process(tmp_path):
    """The default repr contains an address, which differs between processes."""
    script = tmp_path / "fit.py"
    script.write_text(
        textwrap.dedent("""
        import sys, numpy as np, riskmin
        class Own:
            separable = True
            def __init__(self, power):
                self.power = power
            def value_grad(self, z, y, c):
                r = abs(z - y)
                return c @ r**self.power, c * self.power * r ** (self.power - 1) * np.sign(z - y)
        rng = np.random.default_rng(0)
        X = rng.standard_normal((50, 4))
        risk = riskmin.linear_risk(X, X[:, 0] + rng.standard_normal(50), Own(float(sys.argv[2])))
        J = riskmin.Objective(risk, riskmin.L2(), 0.01)
        result = riskmin.minimize(J, tol=1e-6, max_iter=int(sys.argv[3]), checkpoint=sys.argv[1])
        print(result.status, result.n_iter, result.trace[1]["seconds"])
        """)
    )

    def fit(power, max_iter):
        command = [sys.executable, script, tmp_path / "run", str(power), str(max_iter)]
        return subprocess.run(command, capture_output=True, text=True)

    first, second = fit(1.5, 3).stdout.split(), fit(1.5, 500).stdout.split()
    assert first[:2] == ["max_iter", "3"]
    assert second[0] == "converged"
    assert second[2] == first[2]  # the same run, not a new one
    assert "belongs to another problem" in fit(1.7, 500).stderr


def test_runs_resume_with_another_tolerance(tmp_path):
    """`Auto` chooses its solver for the tolerance: another one goes on from the point."""
    for loss in (Hinge(), Logistic()):
        obj = objective(loss, fit_intercept=True)
        for solver in (None, Bundle()):
            path = tmp_path / f"{loss} {solver}"
            minimize(obj, solver, tol=1e-1, checkpoint=path)
            before = minimize(obj, solver, tol=1e-2, checkpoint=path)
            for tol in (1e-7, 1e-3):
                result = minimize(obj, solver, tol=tol, checkpoint=path)
                assert result.status == "converged"
                assert result.n_iter >= before.n_iter
                assert result.value - result.lower <= tol * result.value


def test_whole_numbers_beyond_integers_are_saved(tmp_path):
    class Counting(Lbfgs):
        def iterates(self, obj, w0):
            for it in super().iterates(obj, w0):
                yield it._replace(info={"visits": 2.0**70})

    obj, path = objective(), tmp_path / "run"
    for n in (2, 4, 6):
        result = minimize(obj, Counting(), tol=0.0, max_iter=n, checkpoint=path)
        assert [row["visits"] for row in result.trace[:2]] == [2.0**70] * 2
        assert result.n_iter == n


def refusal(path, obj, solver=None):
    with pytest.raises(FileError) as caught:
        minimize(obj, solver, checkpoint=path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


def test_checkpoints_of_other_problems_are_refused(tmp_path):
    path = tmp_path / "run"
    minimize(objective(), Bundle(), tol=1e-2, checkpoint=path)
    content = path.read_bytes()
    assert "another problem" in refusal(path, objective(lam=2e-3), Bundle())
    assert "another problem" in refusal(path, objective(Huber()), Bundle())
    assert "another problem" in refusal(path, objective(p=7), Bundle())
    assert "another solver" in refusal(path, objective(), Bmrm())
    assert "another solver" in refusal(path, objective(), Bundle(keep=3))
    assert "other data" in refusal(path, objective(seed=1), Bundle())
    assert path.read_bytes() == content


def test_checkpoint_without_intercept_is_refused(tmp_path):
    path = tmp_path / "run"
    minimize(objective(), Bundle(), tol=1e-2, checkpoint=path)
    refusal(path, objective(fit_intercept=True), Bundle())


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.9, 0.999])
def test_truncated_checkpoints_are_refused(share, tmp_path):
    path = tmp_path / "run"
    minimize(objective(), tol=1e-2, checkpoint=path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert "truncated or damaged" in refusal(path, objective())


@pytest.mark.parametrize("content", [b"hello", b"\x00" * 100, b"\xff" * 100, b"{}" * 50])
def test_invalid_files_are_refused(content, tmp_path):
    path = tmp_path / "run"
    path.write_bytes(content)
    refusal(path, objective())


def test_files_of_another_kind_are_refused(tmp_path):
    from safetensors.numpy import save_file

    path = tmp_path / "run"
    save_arrays(path, {"w": np.zeros(6)}, {"kind": "model"})
    assert "is not a riskmin checkpoint file" in refusal(path, objective())
    save_file({"w": np.zeros(6)}, path)
    assert "is not a riskmin checkpoint file" in refusal(path, objective())
    save_arrays(path, {"w": np.zeros(6)}, {"kind": "checkpoint"})
    refusal(path, objective())


def test_interval_between_checkpoints(tmp_path):
    obj, path, times = objective(Hinge(), lam=1e-6), tmp_path / "run", []

    def record_time(it, row):
        times.append(path.stat().st_mtime_ns if path.exists() else 0)

    minimize(
        obj, Bundle(), tol=1e-6, max_iter=20, callback=record_time, checkpoint=Checkpoint(path, every=0.0)
    )
    assert len(set(times)) == len(times)
    path.unlink()
    times.clear()
    minimize(
        obj, Bundle(), tol=1e-6, max_iter=20, callback=record_time, checkpoint=Checkpoint(path, every=1e9)
    )
    assert set(times) == {0}
    assert path.exists()
