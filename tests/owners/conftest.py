"""Real owners: server processes on loopback, certificates, and data in three parts."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from riskmin.owners.executor import OwnersExecutor
from riskmin.owners.owner import Owner
from riskmin.owners.server import OwnerServer, TlsFiles
from riskmin.owners.wire.certificates import make_authority

RISKMIN = [sys.executable, "-c", "import sys; from riskmin.cli import main; sys.exit(main())"]
NAMES = ("north", "south", "west")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Group:
    """Three server processes, started by the command, and the file that names them."""

    def __init__(self, folder, tables, policy=""):
        self.folder, self.tables, self.processes = Path(folder), tables, {}
        self.ports = {name: free_port() for name in tables}
        lines = ['ca = "ca.pem"', 'cert = "coordinator.pem"', 'key = "coordinator.key"', "patience = 20.0"]
        for name, port in self.ports.items():
            lines += ["[[owners]]", f'name = "{name}"', f'address = "127.0.0.1:{port}"']
        self.file = self.folder / "owners.toml"
        self.file.write_text("\n".join(lines) + "\n")
        (self.folder / "policy.toml").write_text(f'coordinators = ["coordinator"]\n{policy}\n')
        for name, arrays in tables.items():
            np.savez(self.folder / f"{name}.npz", **arrays)
        for name in tables:
            self.start(name, wait=False)
        for name in tables:
            self.wait(name)

    def start(self, name, wait=True):
        tls = [f"--{kind}={self.folder / file}" for kind, file in self.files(name).items()]
        command = [*RISKMIN, "serve", str(self.folder / f"{name}.npz"), "--name", name, *tls]
        command += ["--listen", f"127.0.0.1:{self.ports[name]}", "--policy", str(self.folder / "policy.toml")]
        command += ["--log", str(self.log(name))]
        self.processes[name] = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        if wait:
            self.wait(name)

    def wait(self, name):
        line = self.processes[name].stdout.readline()
        assert f"127.0.0.1:{self.ports[name]}" in line, self.processes[name].stderr.read()

    def files(self, name):
        return {"ca": "ca.pem", "cert": f"{name}.pem", "key": f"{name}.key"}

    def log(self, name):
        return self.folder / f"{name}.audit.jsonl"

    def kill(self, name, number=signal.SIGKILL):
        process = self.processes[name]
        process.send_signal(number)
        process.wait(20)
        process.stdout.close()
        process.stderr.close()

    def connect(self, patience=20.0):
        return OwnersExecutor.from_file(self.file, patience)

    def stop(self):
        for name, process in self.processes.items():
            if process.poll() is None:
                self.kill(name, signal.SIGTERM)
            else:
                process.stdout.close()
                process.stderr.close()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    make_authority(folder, [*NAMES, "coordinator", "stranger"], ["127.0.0.1"])
    return folder


@contextmanager
def server_processes(folder, certificates):
    """Yield a function that starts three owners of the given rows, as processes."""
    groups = []

    def start(tables, policy=""):
        for path in certificates.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        groups.append(Group(folder, tables, policy))
        return groups[-1]

    yield start
    for group in groups:
        group.stop()


@pytest.fixture
def owners(tmp_path, certificates):
    """Return a function that starts three owners of the given rows."""
    with server_processes(tmp_path, certificates) as start:
        yield start


def split(X, y, qid=None, shares=(0.3, 0.55)):
    """Rows of the three owners: arrays by name."""
    n = len(y)
    ends = [0, *(int(s * n) // 10 * 10 for s in shares), n]
    extra = {} if qid is None else {"qid": qid}
    return {
        name: {"X": X[i:j], "y": y[i:j], **{k: v[i:j] for k, v in extra.items()}}
        for name, i, j in zip(NAMES, ends[:-1], ends[1:], strict=True)
    }


@contextmanager
def servers_in_threads(certificates):
    """Yield a function that serves rows in this process, over TLS on loopback, and connects to them."""
    opened = []

    def start(tables, policy=None, patience=5.0, **settings):
        policies = policy if isinstance(policy, dict) else dict.fromkeys(tables, policy)
        identities = {name: tls_files(certificates, name) for name in tables}
        servers = {
            name: OwnerServer(
                Owner(**arrays, name=name, policy=policies[name], identity=identities[name], **settings),
                identities[name],
            )
            for name, arrays in tables.items()
        }
        addresses = [(name, f"127.0.0.1:{server.port}") for name, server in servers.items()]
        executor = OwnersExecutor(addresses, **tls_paths(certificates, "coordinator"), patience=patience)
        executor.addresses = addresses
        executor.servers = servers
        opened.append(executor)
        return executor

    yield start
    for executor in opened:
        executor.close()
        for server in executor.servers.values():
            server.stop()


@pytest.fixture
def serve(certificates):
    """Return a function that serves rows in this process, over TLS on loopback, and connects to them."""
    with servers_in_threads(certificates) as start:
        yield start


@pytest.fixture(scope="module")
def shared(certificates):
    """Three owners of the rows of `table()` under the default policy, the same for all tests of a module."""
    with servers_in_threads(certificates) as start:
        yield start(split(*table()))


def tls_paths(folder, name):
    return {"ca": folder / "ca.pem", "cert": folder / f"{name}.pem", "key": folder / f"{name}.key"}


def tls_files(folder, name):
    return TlsFiles(**tls_paths(folder, name))


def table(n=6000, p=8, seed=0):
    """Rows of two classes with query ids: labels 0 and 1 are grades and numbers, too."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * rng.uniform(0.5, 2.0, p) + rng.uniform(-0.5, 0.5, p)
    y = (X @ rng.standard_normal(p) + rng.standard_normal(n) > 0).astype(float)
    return X, y, np.repeat(np.arange(n // 10), 10)
