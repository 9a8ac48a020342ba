"""Three server processes on loopback, started by the command: fits, kills, and what is recorded."""

import json
import subprocess
import threading
import time

import numpy as np
import pytest
from tests.owners.conftest import RISKMIN, split, table

from riskmin import LinearClassifier, load_model
from riskmin.owners.protection.audit import read_log


def riskmin(*arguments, check=True):
    done = subprocess.run([*RISKMIN, *map(str, arguments)], capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, done.stderr
    return done


def kill_during_a_fit(group, tmp_path, delay, victim, number):
    """Fit with a checkpoint while an owner or the coordinator is killed; return the facts of the fit."""
    arguments = ["fit", "--owners", group.file, "--loss", "logistic", "--lam", "1e-4", "--tol", "1e-4"]
    arguments += ["--checkpoint", tmp_path / f"{number}.ckpt", "--checkpoint-every", "0", "--json"]
    arguments += ["-o", tmp_path / f"{number}.riskmin"]
    process = subprocess.Popen(
        [*RISKMIN, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    if victim == "coordinator":
        timer = threading.Timer(delay, process.kill)
    else:
        timer = threading.Timer(delay, lambda: (group.kill(victim), group.start(victim)))
    timer.start()
    out, _ = process.communicate(timeout=120)
    timer.join()
    if process.returncode != 0:  # killed, or paused: the same command goes on
        out = riskmin(*arguments).stdout
    return json.loads(out)


def check_kills(group, tmp_path, kills, seed):
    rng = np.random.default_rng(seed)
    X, y = (np.concatenate([part[name] for part in group.tables.values()]) for name in ("X", "y"))
    best = LinearClassifier("logistic", alpha=1e-4, tol=1e-9).fit(X, y).objective_
    for number in range(kills):
        victim = ("north", "south", "west", "coordinator")[number % 4]
        facts = kill_during_a_fit(group, tmp_path, float(rng.uniform(0.3, 2.5)), victim, number)
        assert facts["status"] == "converged"
        assert facts["lower_bound"] <= best <= facts["objective"] * (1 + 1e-9)
        assert facts["objective"] <= best * (1 + 2e-4)
    # nothing that was recorded is lost: the chains are whole, and begin with the first request
    for name in group.tables:
        entries = list(read_log(group.log(name)))
        assert [entry["n"] for entry in entries] == list(range(1, len(entries) + 1))
        assert any(entry["what"] == "pull_back" for entry in entries)


def wide_table():
    X, y, _ = table(6000, 60)
    return X * 10.0 ** np.linspace(-2, 2, 60), y


@pytest.mark.slow
def test_commands_fit_certify_and_audit(owners, tmp_path):
    """The way of docs/owners.md but for `owners init`, with an owner killed and restarted during the fit."""
    X, y = wide_table()
    group = owners(split(X, y))
    facts = kill_during_a_fit(group, tmp_path, 1.0, "south", 0)
    same = LinearClassifier("logistic", alpha=1e-4, tol=1e-8).fit(X, y)
    assert facts["status"] == "converged"
    assert facts["rows"] == len(y)
    assert facts["lower_bound"] <= same.objective_ <= facts["objective"] * (1 + 1e-9)
    model = tmp_path / "0.riskmin"
    assert np.mean(load_model(model).predict(X) == same.predict(X)) > 0.99
    assert (
        json.loads(riskmin("certify", model, "--owners", group.file, "--json").stdout)["verdict"]
        == "certified"
    )
    shown = riskmin("audit", "log", group.log("north"), "-o", tmp_path / "log.html").stdout
    assert "all in the chain of hashes" in shown
    assert "█" in shown
    assert "<svg" in (tmp_path / "log.html").read_text(encoding="utf-8")


@pytest.mark.exhaustive
def test_fifty_kills(owners, tmp_path):
    start = time.monotonic()
    group = owners(split(*wide_table()), "runs_per_day = 1000\nrequests_per_day = 10000000")
    check_kills(group, tmp_path, 50, 1)
    assert time.monotonic() - start < 1200
