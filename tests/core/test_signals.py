"""The command treats SIGTERM and SIGHUP as Ctrl-C; the library saves before the signal takes effect."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import helpers
from riskmin import Hinge, Processes, Progress, linear_risk, load_model
from riskmin.core import signals
from riskmin.core.persist import load_arrays

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of this system are others")

HERE = Path(__file__).parents[1]
each_ending = pytest.mark.parametrize(
    "number", signals.TERMINATION_SIGNALS, ids=lambda n: signal.Signals(n).name
)


# ---------------------------------------------------------------- handlers
@each_ending
def test_a_signal_is_an_interrupt_once(number):
    """`timeout` sends a signal twice. The previous handlers are restored."""
    before = signal.getsignal(number)
    with signals.as_interrupts():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(number)
        assert signals.last_signal() == number
        with signals.as_interrupts():  # a command within a command
            assert signals.last_signal() == signal.SIGINT
    assert signal.getsignal(number) == before


def test_handled_or_ignored_signals_are_unchanged(monkeypatch):
    received = []
    before = (
        signal.signal(signal.SIGTERM, lambda *args: received.append(args[0])),
        signal.getsignal(signal.SIGHUP),
    )
    try:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for block in (
            signals.as_interrupts(),
            signals.deferred_termination(),
            signals.ignore_interrupts(),
        ):
            with block:
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGHUP)
        assert received == [signal.SIGTERM] * 3
    finally:
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGHUP, before[1])


def test_other_threads_do_not_change_handlers():
    def run():
        with signals.as_interrupts(), signals.deferred_termination(), signals.ignore_interrupts():
            handlers.append(signal.getsignal(signal.SIGTERM))

    handlers = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.SIG_DFL]


def test_writing_at_the_end_is_not_interrupted(monkeypatch):
    """A signal during it is ignored, unless it is repeated seconds later."""
    with signals.as_interrupts():
        with signals.ignore_interrupts():
            for number in (signal.SIGINT, *signals.TERMINATION_SIGNALS):
                signal.raise_signal(number)
        now = time.monotonic()
        monkeypatch.setattr(time, "monotonic", itertools.count(now + 5, 5).__next__)
        with signals.ignore_interrupts():
            signal.raise_signal(signal.SIGTERM)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


# ---------------------------------------------------------------- the command
def test_exit_codes(tmp_path, run, monkeypatch):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 1:-1\n")

    def strike(*args, **settings):
        signal.raise_signal(number)

    # a signal while the data are read
    monkeypatch.setattr("riskmin.cli.loading.load", strike)
    for number, word in (
        (signal.SIGINT, "interrupted"),
        (signal.SIGTERM, "SIGTERM"),
        (signal.SIGHUP, "SIGHUP"),
    ):
        code, out, err = run("fit", tmp_path / "a.svm", "-o", tmp_path / "m")
        assert (code, out) == (128 + number, "")
        assert word in err
        assert err.strip().count("\n") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["a.svm"]


@each_ending
def test_an_interrupted_fit_is_saved(number, tmp_path, run, monkeypatch):
    """The last checkpoint and the model of the best iterate are saved; a repeated signal does not matter."""
    rows = np.random.default_rng(0).standard_normal((60, 3))
    np.savez(tmp_path / "d.npz", X=rows, y=np.sign(rows[:, 0] + rows[:, 1] ** 2 - 1))

    class Interrupted(Progress):
        def __call__(self, it, row):
            if row["iteration"] == 5:
                with contextlib.suppress(KeyboardInterrupt):
                    signal.raise_signal(number)
                    raise AssertionError
                signal.raise_signal(number)
                raise KeyboardInterrupt
            return super().__call__(it, row)

    # the command has no callback of the user
    monkeypatch.setattr("riskmin.cli.commands.fit.Progress", Interrupted)
    options = ["--checkpoint", tmp_path / "c", "--solver", "bmrm", "--lam", "1e-6", "--tol", "1e-9"]
    code, out, err = run("fit", tmp_path / "d.npz", "-o", tmp_path / "m", *options)
    assert code == 3
    assert "interrupted" in out
    assert err.splitlines()[-1].startswith("riskmin: not converged (interrupted)")
    assert load_model(tmp_path / "m").result_.status == "interrupted"
    assert len(load_arrays(tmp_path / "c", "checkpoint")[0]["trace"]) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c", "d.npz", "m"]


COMMAND = """
    import subprocess, sys
    import riskmin.cli.commands.fit as fit
    from riskmin.cli import main
    class Progress(fit.Progress):
        def __call__(self, it, row):
            if row["iteration"] == 5:
                # to all processes of the group, workers among them
                subprocess.run(["sh", "-c", "trap '' TERM; kill -TERM 0; kill -TERM 0"])
            return super().__call__(it, row)
    fit.Progress = Progress
    if __name__ == "__main__":
        sys.exit(main())
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", [["--processes", "2"]], ids=str)
def test_sigterm_to_the_group_saves_the_best_iterate(where, tmp_path, run):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 10))
    np.savez(tmp_path / "d.npz", X=X, y=np.sign(X[:, 0] + rng.standard_normal(200)))
    assert run("convert", tmp_path / "d.npz", tmp_path / "d.rsk", "--quiet", "--shard-mb", "0.001")[0] == 0
    (tmp_path / "command.py").write_text(textwrap.dedent(COMMAND))
    done = subprocess.run(
        [
            *(sys.executable, tmp_path / "command.py", "fit", tmp_path / "d.rsk", "-o", tmp_path / "m"),
            *("--checkpoint", tmp_path / "c", "--solver", "bmrm", "--lam", "1e-6", "--tol", "1e-9", *where),
        ],
        capture_output=True, text=True, check=False, start_new_session=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    # a slow machine prints a line of progress first
    *progress, message = done.stderr.splitlines()
    assert all(line.startswith("riskmin: iteration") for line in progress)
    assert message.startswith("riskmin: not converged (interrupted)")
    assert len(load_arrays(tmp_path / "c", "checkpoint")[0]["trace"]) == 5
    assert run("predict", tmp_path / "m", tmp_path / "d.npz")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"d.npz", "d.rsk", "command.py", "c", "m"}


# ---------------------------------------------------------------- the library
SCRIPT = """
    import os, signal, sys, numpy as np, riskmin
    how, path = sys.argv[1:]
    X = np.random.default_rng(0).standard_normal((50, 5))
    J = riskmin.Objective(riskmin.linear_risk(X, np.sign(X[:, 0] + 0.1), riskmin.Hinge()), riskmin.L2(), 1e-4)
    if how == "exits":
        signal.signal(signal.SIGTERM, lambda *args: sys.exit(7))
    def strike(it, row):
        if row["iteration"] == 3:
            os.kill(os.getpid(), signal.SIGTERM)
    result = riskmin.minimize(J, riskmin.Bundle(), tol=1e-9, callback=strike, checkpoint=path)
    print("went on")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("plain", -signal.SIGTERM), ("exits", 7)])
def test_the_library_saves_and_the_signal_takes_effect(how, code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), how, tmp_path / "c"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
    assert len(load_arrays(tmp_path / "c", "checkpoint")[0]["trace"]) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


# ---------------------------------------------------------------- workers
@pytest.mark.exhaustive
@pytest.mark.skipif(not hasattr(signal, "sigwaitinfo"), reason="this system does not say who sent a signal")
def test_workers_are_ended_by_their_driver_only():
    risk = linear_risk(
        np.eye(4), np.array([1.0, -1, 1, -1]), Hinge(), executor=Processes(n_workers=1), n_shards=2
    )
    executor, process = risk.executor, risk.executor._workers[0].process
    for number in (*signals.TERMINATION_SIGNALS, signal.SIGINT):
        subprocess.run(["kill", f"-{int(number)}", str(process.pid)], check=True)
    assert executor.map(helpers.size) == [2, 2]
    process.terminate()
    process.join(60)
    assert process.exitcode == -signal.SIGTERM
    with pytest.raises(RuntimeError, match="a worker process ended with exit code -15"):
        executor.map(helpers.size)
