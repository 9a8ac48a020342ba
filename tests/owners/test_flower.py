"""Flower as a second way in: a SuperLink and two SuperNodes carry the same messages."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.owners.conftest import free_port, split, table

from riskmin import LinearClassifier

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'riskmin[federated]'")

PROJECT = """
[project]
name = "pooled"
version = "1.0.0"
description = "A pooled model"
license = "MIT"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "riskmin"

[tool.flwr.app.components]
serverapp = "pooled:server"
clientapp = "pooled:client"

[tool.flwr.app.config]
"""

APP = """
import json, time
from pathlib import Path

from riskmin import LinearClassifier
from riskmin.owners.flower import make_client_app, make_server_app


def fit(owners):
    start = time.perf_counter()
    model = owners.fit(LinearClassifier("logistic", alpha=0.1, tol=0.05, fit_intercept=False))
    facts = {"coef": model.coef_.tolist(), "lower": model.lower_bound_, "objective": model.objective_}
    facts |= {"rounds": owners.connections[0].n_rounds, "seconds": time.perf_counter() - start}
    facts |= {"names": [connection.name for connection in owners.connections]}
    path = Path(OUTPUT)
    path.with_suffix(".part").write_text(json.dumps(facts))
    path.with_suffix(".part").rename(path)


client = make_client_app()
server = make_server_app(fit, n_owners=2)
"""


class Flower:
    """Processes of Flower's deployment, on loopback, in a home of their own."""

    def __init__(self, folder):
        self.folder, self.port, self.processes = folder, free_port(), []
        (folder / "home").mkdir()
        (folder / "app").mkdir()
        connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\n'
        (folder / "home" / "config.toml").write_text(connection + "insecure = true\n")
        (folder / "app" / "pyproject.toml").write_text(PROJECT)
        app = APP.replace("OUTPUT", repr(str(folder / "facts.json")))
        (folder / "app" / "pooled.py").write_text(app, encoding="utf-8")
        scripts = Path(sys.executable).parent
        self.environment = os.environ | {
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name, *command):
        with (self.folder / f"{name}.log").open("wb") as log:
            settings = {"env": self.environment, "cwd": self.folder, "start_new_session": True}
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, **settings)
        self.processes.append(process)
        return process

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
        for process in self.processes:
            process.wait(30)

    def logs(self):
        return "\n".join(f"{p.name}: {p.read_text()[-3000:]}" for p in sorted(self.folder.glob("*.log")))


@pytest.fixture
def flower(tmp_path):
    deployment = Flower(tmp_path)
    yield deployment
    deployment.stop()


@pytest.mark.exhaustive
def test_supernodes_give_the_same_model(flower, serve, certificates):
    """The model over SuperLink and two SuperNodes has the bits of that over gRPC."""
    X, y, _ = table(600)
    parts = split(X, y)
    owners = serve({name: parts[name] for name in ("north", "south")})
    command = ["flower-superlink", "--insecure", "--disable-runtime-dependency-installation"]
    flower.start("superlink", *command, f"--port={flower.port}")
    for name, address in reversed(owners.addresses):
        files = {"ca": "ca.pem", "cert": "coordinator.pem", "key": "coordinator.key"}
        settings = {"owner": name, "address": address} | {k: str(certificates / v) for k, v in files.items()}
        config = " ".join(f'{key}="{value}"' for key, value in settings.items())
        command = ["flower-supernode", "--insecure", f"--superlink=127.0.0.1:{flower.port}"]
        flower.start(name, *command, f"--port={free_port()}", f"--node-config={config}")
    time.sleep(5)
    run = flower.start("run", "flwr", "run", str(flower.folder / "app"), "here")
    assert run.wait(60) == 0, flower.logs()
    deadline, found = time.monotonic() + 900, flower.folder / "facts.json"
    while not found.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    assert found.exists(), flower.logs()
    facts = json.loads(found.read_text())
    print(f"{facts['rounds']} rounds, {facts['seconds'] / facts['rounds']:.2f} s each")
    same = owners.fit(LinearClassifier("logistic", alpha=0.1, tol=0.05, fit_intercept=False))
    assert facts["names"] == ["north", "south"]
    np.testing.assert_array_equal(facts["coef"], same.coef_)
    assert (facts["lower"], facts["objective"]) == (same.lower_bound_, same.objective_)
    # the requests are in the owner's log, under the name of the certificate by which they came
    entries = owners.servers["north"].owner.log.entries
    assert sum(e["what"] == "pull_back" and e["who"] == "coordinator" for e in entries) > 3
