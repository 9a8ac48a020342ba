"""Three server processes on loopback, started by the command: fits, kills, and what is recorded."""

import json
import os
import shlex
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.owners.conftest import RISKMIN, free_port, server_processes, split, table
from tests.owners.test_pooled import check_pooled_optimum

from riskmin import L1, L2, LinearClassifier, load_model, minimize
from riskmin.cli import main
from riskmin.owners.protection.audit import chain_key, read_log


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


def best_objective(group):
    """The optimum of all rows in one place."""
    X, y = (np.concatenate([part[name] for part in group.tables.values()]) for name in ("X", "y"))
    return LinearClassifier("logistic", alpha=1e-4, tol=1e-9).fit(X, y).objective_


def check_facts(facts, best):
    assert facts["status"] == "converged"
    assert facts["lower_bound"] <= best <= facts["objective"] * (1 + 1e-9)
    assert facts["objective"] <= best * (1 + 2e-4)


def check_logs(group):
    """Nothing that was recorded is lost: the chains are whole, and begin with the first request."""
    for name in group.tables:
        key = chain_key((group.folder / f"{name}.key").read_bytes())
        entries = list(read_log(group.log(name), key))
        assert [entry["n"] for entry in entries] == list(range(1, len(entries) + 1))
        assert any(entry["what"] == "pull_back" for entry in entries)


def wide_table():
    X, y, _ = table(6000, 60)
    return X * 10.0 ** np.linspace(-2, 2, 60), y


@pytest.fixture(scope="module")
def group(tmp_path_factory, certificates):
    """Three processes with the rows of `table()`, started once."""
    with server_processes(tmp_path_factory.mktemp("group"), certificates) as start:
        # one group for many fits: what they reveal adds up
        yield start(split(*table()), "max_leverage = 1.0")


@pytest.fixture(scope="module")
def connected(group):
    executor = group.connect()
    yield executor
    executor.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "reg", "lam", "intercept"),
    [
        ("hinge", L2(), 1e-2, False),
        ("quantile:level=0.7", L2(), 1e-2, False),
        ("softmax", L2(), 1e-3, True),
        ("ndcg", L2(), 1e-2, False),
        ("logistic", L1(), 1e-2, False),
    ],
)
def test_processes_reach_the_pooled_optimum(connected, loss, reg, lam, intercept):
    check_pooled_optimum(connected, loss, reg, lam, intercept)


@pytest.mark.slow
def test_a_killed_owner_loses_nothing(group, connected):
    """kill -9 of an owner in the middle of a run, which goes on with its next process."""
    kills = []

    def callback(iterate, row):
        if row["iteration"] == 3:
            group.kill("south")
            group.start("south")
            kills.append("south")

    objective = connected.objective(connected.risk("logistic", fit_intercept=True), L2(), 1e-4)
    result = minimize(objective, callback=callback, tol=1e-4)
    assert kills == ["south"]
    facts = {"status": result.status, "lower_bound": result.lower, "objective": result.value}
    check_facts(facts, best_objective(group))
    check_logs(group)


@pytest.mark.slow
def test_the_commands_of_the_guide(tmp_path, monkeypatch, capsys):
    """The ten commands of docs/owners.md, on free ports."""
    page = (Path(__file__).parents[2] / "docs" / "owners.md").read_text(encoding="utf-8")
    block = page.partition("```sh\n")[2].partition("```")[0]
    for port in ("7001", "7002", "7003"):
        block = block.replace(f":{port}", f":{free_port()}")
    lines = block.splitlines()
    assert len(lines) == 10
    assert lines[-1].startswith("kill ")
    monkeypatch.chdir(tmp_path)
    X, y, _ = table(6000)
    names = [f"x{j}" for j in range(8)]
    for name, part in zip("abc", split(X, y).values(), strict=True):
        rows = np.column_stack([part["X"], part["y"]])
        np.savetxt(f"{name}.csv", rows, delimiter=",", header=",".join([*names, "target"]), comments="")
    np.savetxt("new.csv", X[:50], delimiter=",", header=",".join(names), comments="")
    services, shown = [], []
    try:
        for line in lines[:-1]:
            words = shlex.split(line)[1:]
            if words[-1] != "&":
                assert main(words) == 0
                shown.append(capsys.readouterr().out)
                continue
            process = subprocess.Popen([*RISKMIN, *words[:-1]], stdout=subprocess.PIPE, text=True)
            services.append(process)
        # services that are not up yet are asked again
    finally:
        for process in services:
            process.terminate()
            process.wait(20)
            process.stdout.close()
    assert "certified gap" in shown[1]
    assert "by rounding and noise" in shown[1]
    assert "certified" in shown[2]
    assert "all in the chain of hashes" in shown[4]
    assert "█" in shown[4]
    assert "<svg" in Path("audit.html").read_text(encoding="utf-8")
    model = load_model("pooled.riskmin")
    same = LinearClassifier("logistic", alpha=1e-2, tol=1e-7).fit(X, y)
    assert abs(model.objective_ / same.objective_ - 1) < 1e-3
    scores = X[:50] @ model.coef_[0] + model.intercept_[0]
    assert Path("labels.txt").read_text().split() == [
        f"{label:g}" for label in model.classes_[(scores > 0) * 1]
    ]
    assert [process.returncode for process in services] == [0, 0, 0]


@pytest.mark.exhaustive
def test_kills(owners, tmp_path):
    """kill -9 of owners and coordinator at random times: the same optimum.

    ``RISKMIN_KILLS=50`` kills fifty times, in five minutes.
    """
    group = owners(split(*wide_table()), "runs_per_day = 1000\nrequests_per_day = 10000000")
    rng, best = np.random.default_rng(1), best_objective(group)
    for number in range(int(os.environ.get("RISKMIN_KILLS", 1))):
        victim = ("north", "south", "west", "coordinator")[number % 4]
        delay = float(rng.uniform(0.3, 2.5))
        check_facts(kill_during_a_fit(group, tmp_path, delay, victim, number), best)
    check_logs(group)
