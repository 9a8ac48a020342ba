"""Owners: in this process without a network, as servers over TLS in threads, and data in three parts."""

import socket
import sys

import numpy as np
import pytest

from riskmin import Objective, linear_risk
from riskmin.losses import get_loss
from riskmin.owners.client import checked_reply
from riskmin.owners.executor import OwnersExecutor
from riskmin.owners.owner import Owner
from riskmin.owners.server import OwnerServer, TlsFiles
from riskmin.owners.wire.certificates import make_authority
from riskmin.owners.wire.codec import decode, encode

RISKMIN = [sys.executable, "-c", "import sys; from riskmin.cli import main; sys.exit(main())"]
NAMES = ("north", "south", "west")


def table(n=6000, p=8, seed=0):
    """Rows of two classes with query ids: labels 0 and 1 are grades and numbers, too."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, p)) * rng.uniform(0.5, 2.0, p) + rng.uniform(-0.5, 0.5, p)
    y = (X @ rng.standard_normal(p) + rng.standard_normal(n) > 0).astype(float)
    return X, y, np.repeat(np.arange(n // 10), 10)


def split(X, y, qid=None, shares=(0.3, 0.55)):
    """Rows of the three owners: arrays by name."""
    n = len(y)
    ends = [0, *(int(s * n) // 10 * 10 for s in shares), n]
    arrays = {"X": X, "y": y} | ({} if qid is None else {"qid": qid})
    return {
        name: {key: a[i:j] for key, a in arrays.items()}
        for name, i, j in zip(NAMES, ends[:-1], ends[1:], strict=True)
    }


def in_one_place(X, y, loss, reg, lam, *, intercept=False, qid=None):
    """The objective of the rows of all owners together."""
    labels = 2 * y - 1 if get_loss(loss).task == "classification" else y
    return Objective(linear_risk(X, labels, loss, fit_intercept=intercept, qid=qid), reg, lam)


class Local:
    """A connection to an owner in this process; `alter` may change the n-th reply."""

    def __init__(self, owner, alter=None):
        self.owner, self.name, self.address = owner, owner.name, "here"
        self.alter, self.n_rounds, self.replies = alter, 0, []

    def start(self, message, reply_is_long=False):
        self.n_rounds += 1
        reply = decode(self.owner.handle("coordinator", encode(message)))
        self.replies.append(reply)
        altered = reply if self.alter is None else self.alter(self.n_rounds - 1, reply)
        return lambda: checked_reply(self.name, altered)

    def ask(self, message):
        return self.start(message)()

    def close(self):
        pass


def owner_of(parts, name, policy=None, certificates=None, **settings):
    """One of the owners; it can mask answers by its certificate."""
    identity = None if certificates is None else tls_files(certificates, name)
    return Owner(**parts[name], name=name, policy=policy, identity=identity, **settings)


def pool(parts, policy=None, certificates=None):
    """The executor over owners of these rows, in this process."""
    owners = [owner_of(parts, name, policy, certificates) for name in parts]
    return OwnersExecutor.from_connections([Local(owner) for owner in owners])


# ---------------------------------------------------------------- over the network
def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tls_paths(folder, name):
    return {"ca": folder / "ca.pem", "cert": folder / f"{name}.pem", "key": folder / f"{name}.key"}


def tls_files(folder, name):
    return TlsFiles(**tls_paths(folder, name))


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    make_authority(folder, [*NAMES, "coordinator", "stranger"], ["127.0.0.1"])
    return folder


@pytest.fixture
def serve(certificates):
    """Return a function that serves rows over TLS on loopback, by threads, and connects to them."""
    opened = []

    def start(parts, policy=None, patience=5.0):
        servers, addresses = {}, []
        for name in parts:
            owner = owner_of(parts, name, policy, certificates)
            servers[name] = OwnerServer(owner, tls_files(certificates, name))
            addresses.append((name, f"127.0.0.1:{servers[name].port}"))
        executor = OwnersExecutor(addresses, **tls_paths(certificates, "coordinator"), patience=patience)
        executor.addresses, executor.servers = addresses, servers
        opened.append(executor)
        return executor

    yield start
    for executor in opened:
        executor.close()
        for server in executor.servers.values():
            server.stop()
