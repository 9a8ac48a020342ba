"""Three server processes on loopback, by the commands of docs/owners.md: fits, kills, and the logs."""

import contextlib
import json
import os
import shlex
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from tests.owners.conftest import RISKMIN, free_port, split, table

from riskmin import L2, LinearClassifier, load_model, minimize
from riskmin.cli import main
from riskmin.owners.executor import OwnersExecutor
from riskmin.owners.protection.audit import chain_key, read_log

NAMES = ("hospital-a", "hospital-b", "hospital-c")


class Guide:
    """The ten commands of docs/owners.md, on free ports, in a folder with the tables that they name."""

    def __init__(self, folder):
        self.folder, self.services = folder, {}
        page = (Path(__file__).parents[2] / "docs" / "owners.md").read_text(encoding="utf-8")
        block = page.partition("```sh\n")[2].partition("```")[0]
        for port in ("7001", "7002", "7003"):
            block = block.replace(f":{port}", f":{free_port()}")
        lines = [shlex.split(line) for line in block.splitlines()]
        assert [words[0] for words in lines] == [*["riskmin"] * 9, "kill"]
        self.init, *services = (words[1:] for words in lines[:4])
        self.later = [words[1:] for words in lines[4:9]]
        self.serve = {name: words[:-1] for name, words in zip(NAMES, services, strict=True)}
        self.X, self.y, _ = table(3000)
        columns = ",".join(f"x{j}" for j in range(8))
        for name, part in zip("abc", split(self.X, self.y).values(), strict=True):
            rows = np.column_stack([part["X"], part["y"]])
            np.savetxt(folder / f"{name}.csv", rows, delimiter=",", header=f"{columns},target", comments="")
        np.savetxt(folder / "new.csv", self.X[:50], delimiter=",", header=columns, comments="")

    def start(self, name):
        settings = {"cwd": self.folder, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
        command = [*RISKMIN, *self.serve[name]]
        self.services[name] = subprocess.Popen(command, **settings, stdout=subprocess.DEVNULL)

    def end(self, name, kill=False):
        process = self.services[name]
        (process.kill if kill else process.terminate)()
        return process.wait(20)

    def best(self, alpha):
        """The optimum of all rows in one place."""
        return LinearClassifier("logistic", alpha=alpha, tol=1e-9).fit(self.X, self.y).objective_


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    guide = Guide(tmp_path_factory.mktemp("guide"))
    with contextlib.chdir(guide.folder):
        assert main(guide.init) == 0
    policy = guide.folder / "keys" / "policy.toml"
    # several fits, for all of which one row is hidden: what they reveal adds up
    policy.write_text(policy.read_text().replace("max_leverage = 0.75", "max_leverage = 1.0"))
    for name in NAMES:
        guide.start(name)
    yield guide
    assert [guide.end(name) for name in NAMES] == [0, 0, 0]


def test_the_commands_of_the_guide(guide, capsys, monkeypatch):
    """Services that are not up yet are asked again."""
    monkeypatch.chdir(guide.folder)
    shown = []
    for words in guide.later:
        assert main(words) == 0
        shown.append(capsys.readouterr().out)
    assert "certified gap" in shown[0]
    assert "by rounding and noise" in shown[0]
    assert "certified" in shown[1]
    assert "all in the chain of hashes" in shown[3]
    assert "█" in shown[3]
    assert "<svg" in Path("audit.html").read_text(encoding="utf-8")
    model = load_model("pooled.riskmin")
    assert abs(model.objective_ / guide.best(1e-2) - 1) < 1e-3
    scores = guide.X[:50] @ model.coef_[0] + model.intercept_[0]
    labels = model.classes_[(scores > 0) * 1]
    assert Path("labels.txt").read_text().split() == [f"{label:g}" for label in labels]


def test_a_killed_owner_loses_nothing(guide):
    """kill -9 of an owner in the middle of a run, which goes on with its next process."""
    kills = []

    def callback(iterate, row):
        if row["iteration"] == 3:
            kills.append(guide.end("hospital-b", kill=True))
            guide.start("hospital-b")

    owners = OwnersExecutor.from_file(guide.folder / "keys" / "owners.toml")
    objective = owners.objective(owners.risk("logistic", fit_intercept=True), L2(), 1e-4)
    result = minimize(objective, callback=callback, tol=1e-4)
    owners.close()
    best = guide.best(1e-4)
    assert kills == [-9]
    assert result.status == "converged"
    assert result.lower <= best <= result.value * (1 + 1e-9) <= best * (1 + 2e-4)
    # nothing that was recorded is lost: the chains are whole, and begin with the first request
    for name in NAMES:
        key = chain_key((guide.folder / "keys" / f"{name}.key").read_bytes())
        entries = list(read_log(guide.folder / f"{name}.audit.jsonl", key))
        assert [entry["n"] for entry in entries] == list(range(1, len(entries) + 1))
        assert any(entry["what"] == "pull_back" for entry in entries)


def test_a_killed_coordinator_goes_on_from_its_checkpoint(guide, capsys, monkeypatch):
    monkeypatch.chdir(guide.folder)
    arguments = ["fit", "--owners", "keys/owners.toml", "--loss", "logistic", "--lam", "1e-4"]
    arguments += ["--tol", "1e-5", "--checkpoint", "killed.ckpt", "--checkpoint-every", "0"]
    arguments += ["-o", "killed.riskmin", "--json"]
    coordinator = subprocess.Popen([*RISKMIN, *arguments], stdout=subprocess.DEVNULL)
    while not Path("killed.ckpt").exists() and coordinator.poll() is None:
        time.sleep(0.005)
    coordinator.kill()
    coordinator.wait(20)
    assert Path("killed.ckpt").exists()
    assert main(arguments) == 0
    facts, best = json.loads(capsys.readouterr().out), guide.best(1e-4)
    assert facts["status"] == "converged"
    assert facts["lower_bound"] <= best <= facts["objective"] * (1 + 1e-9) <= best * (1 + 2e-5)
