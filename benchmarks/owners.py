"""Data owners: the cost of a round, honest fits, and what an answer tells about one row by loss.

    OMP_NUM_THREADS=1 python -m benchmarks.owners [--floats 50000] [--owners 2] [--rounds 200] [--seeds 3]

A round sends w to every owner, a process of its own, or gets a value and a gradient from each, by gRPC with
mutual TLS on this machine; the overhead is its time less that of the same sums in this process. The attack
asks for the gradient at w = s d, for random directions d, and takes the answer for a row: the column is the
largest cosine of an answer and a row, without and with protection (`max_leverage`). Honest fits run in this
process, one owner after the other, with the default policy.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.script import script_parser
from riskmin import L2, Objective, OwnersExecutor, minimize
from riskmin.arrays.matrix import as_matrix
from riskmin.core import Shard, ShardCache
from riskmin.executors.base import SerialExecutor
from riskmin.losses import get_loss
from riskmin.owners.client import OwnerRefused, checked_reply
from riskmin.owners.owner import Owner
from riskmin.owners.protection.audit import AuditLog
from riskmin.owners.protection.policy import OPEN, Policy
from riskmin.owners.risk import PooledRisk
from riskmin.owners.server import OwnerServer, TlsFiles, serve_forever
from riskmin.owners.wire.certificates import make_authority
from riskmin.owners.wire.codec import OwnerMessage, decode, encode


class LocalExecutor(SerialExecutor):
    """Shards in this process, for a `PooledRisk`."""

    n_restarts, value_at_zero = 0, np.inf


def files(folder: Path, name: str) -> dict[str, Path]:
    return {"ca": folder / "ca.pem", "cert": folder / f"{name}.pem", "key": folder / f"{name}.key"}


def run_owner(folder: Path, name: str, X: Any, y: Any, policy: Policy, ports: Any) -> None:
    # lines of the log and the basis of answers are written to the disk, as by `riskmin serve`
    owner = Owner(X, y, name=name, policy=policy, log=AuditLog(folder / f"{name}.audit.jsonl"))
    server = OwnerServer(owner, TlsFiles(**files(folder, name)))
    ports.put((name, server.port))
    serve_forever(server)


def start(
    folder: Path, tables: dict[str, tuple[Any, Any]], policy: Policy
) -> tuple[list[Any], OwnersExecutor]:
    """Start a process per owner, and connect to them."""
    make_authority(folder, [*tables, "coordinator"], ["127.0.0.1"])
    context = multiprocessing.get_context("spawn")
    ports = context.Queue()
    processes = [
        context.Process(target=run_owner, args=(folder, name, X, y, policy, ports))
        for name, (X, y) in tables.items()
    ]
    for process in processes:
        process.start()
    found = dict(ports.get() for _ in tables)
    addresses = [(name, f"127.0.0.1:{found[name]}") for name in tables]
    return processes, OwnersExecutor(addresses, **files(folder, "coordinator"))


def rounds(n_floats: int, n_owners: int, n_rounds: int) -> None:
    """Print the time of a round, and that of the same sums in this process."""
    rng = np.random.default_rng(0)
    tables = {
        f"owner-{k}": (rng.standard_normal((8, n_floats)), np.tile([0.0, 1.0], 4)) for k in range(n_owners)
    }
    policy = Policy(requests_per_run=10**7, max_rises=0)
    with tempfile.TemporaryDirectory() as folder:
        processes, owners = start(Path(folder), tables, policy)
        risk = owners.risk("logistic")
        owners.objective(risk, L2(), 1.0)
        c = np.full(8, 1 / (8 * n_owners))
        shards = [Shard(as_matrix(X), 2 * y - 1, c, ShardCache()) for X, y in tables.values()]
        local = PooledRisk(risk.loss, risk.linear_map, LocalExecutor(shards), n_floats)
        times: dict[str, list[float]] = {"points": [], "gradients": [], "sums": []}
        for _ in range(n_rounds):
            w = 1e-3 * rng.standard_normal(n_floats)
            before = time.perf_counter()
            cursor = risk.cursor(w)
            placed = time.perf_counter()
            cursor.evaluate()
            after = time.perf_counter()
            local.cursor(w).evaluate()
            times["points"].append(placed - before)
            times["gradients"].append(after - placed)
            times["sums"].append(time.perf_counter() - after)
        owners.close()
        for process in processes:
            process.terminate()
            process.join()
    print(f"{n_owners} owners, {n_floats:,} floats, {n_rounds} evaluations; ms, first decile and median:")
    parts = {
        "w to the owners, magnitudes back": times["points"],
        "step to the owners, gradients back": times["gradients"],
        "the same sums in this process": times["sums"],
    }
    for name, seconds in parts.items():
        low, middle = (1e3 * float(np.quantile(seconds, q)) for q in (0.1, 0.5))
        print(f"  {name:36} {low:6.2f} {middle:6.2f}")


def runs() -> None:
    """Print how many rounds a fit takes, beside the evaluations of the same solver on one machine."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((9000, 20))
    y = (X @ rng.standard_normal(20) + rng.standard_normal(9000) > 0).astype(float)
    tables = {name: (X[k::3], y[k::3]) for k, name in enumerate("abc")}
    print("\nfits of 9000 x 20 over three owners to 1e-3, default policy:")
    with tempfile.TemporaryDirectory() as folder:
        processes, owners = start(Path(folder), tables, Policy())
        for loss in ("hinge", "logistic", "absolute", "squared"):
            risk = owners.risk(loss)
            first, before = risk.executor.n_rounds, time.perf_counter()
            result = minimize(owners.objective(risk, L2(), 1e-3))
            seconds = time.perf_counter() - before
            signs = 2 * y - 1 if get_loss(loss).task == "classification" else y
            shards = [
                Shard(as_matrix(X[k::3]), signs[k::3], np.full(3000, 1 / 9000), ShardCache())
                for k in range(3)
            ]
            local = PooledRisk(risk.loss, risk.linear_map, LocalExecutor(shards), 20)
            same = minimize(Objective(local, L2(), 1e-3))
            print(
                f"  {loss:9} {result.status:9} {result.n_iter:3} iterations (one machine {same.n_iter:3}), "
                f"{risk.executor.n_rounds - first:4} rounds, {seconds:.2f} s"
            )
        owners.close()
        for process in processes:
            process.terminate()
            process.join()


class DirectConnection:
    """A connection to an owner in this process."""

    def __init__(self, owner: Owner) -> None:
        self.owner, self.name, self.address, self.n_rounds = owner, owner.name, "here", 0

    def start(self, message: OwnerMessage, reply_is_long: bool = False) -> Any:
        self.n_rounds += 1
        reply = decode(self.owner.handle("coordinator", encode(message)))
        return lambda: checked_reply(self.name, reply)

    def ask(self, message: OwnerMessage) -> OwnerMessage:
        return self.start(message)()  # type: ignore[no-any-return]

    def close(self) -> None:
        pass


def honest_fit(loss: str, intercept: bool, n: int, seed: int, heavy: bool) -> tuple[str, float, int, float]:
    """Fit n rows of three owners; return the status, the relative gap, requests, and the largest leverage."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 8)) * rng.uniform(0.5, 2.0, 8) + rng.uniform(-0.5, 0.5, 8)
    score = X @ rng.standard_normal(8) + rng.standard_normal(n)
    X[:, :2] = np.exp(X[:, :2]) if heavy else X[:, :2]
    y = score if loss in ("squared", "huber") else (score > 0).astype(float)
    y = np.digitize(score, [-1.0, 1.0]) if loss == "softmax" else y
    ends = [0, n // 4, n * 11 // 20, n]
    owners = []
    for name, i, j in zip(("north", "south", "west"), ends[:-1], ends[1:], strict=True):
        qid = np.arange(i, j) // 10 if loss == "ndcg" else None
        owners.append(DirectConnection(Owner(X[i:j], y[i:j], qid=qid, name=name)))
    executor = OwnersExecutor.from_connections(owners)
    status, gap = "refused", np.inf
    try:
        risk = executor.risk(loss, fit_intercept=intercept)
        result = minimize(executor.objective(risk, L2(), 1e-2))
        status, gap = result.status, result.gap / result.value
    except (OwnerRefused, ValueError):
        pass  # refused before the first iterate
    leverage = max(float(each.owner.span.leverages.max()) for each in owners)
    return status, gap, owners[0].n_rounds, leverage


def honest_fits(seeds: int) -> None:
    """Print statuses and gaps of fits under the default policy, by loss and number of rows."""
    print(
        f"\nhonest fits, default policy, three owners, 8 columns, lam 1e-2, to 1e-3, seeds 0 to {seeds - 1}:"
    )
    print("  loss                     rows    converged  gaps                 requests  leverage")
    cases = [("logistic", True, False), ("squared", True, False), ("softmax", True, False)]
    cases += [("smoothed_hinge", True, False), ("hinge", False, False), ("hinge", True, False)]
    cases += [("huber", True, False), ("ndcg", False, False), ("logistic", True, True), ("hinge", True, True)]
    for loss, intercept, heavy in cases:
        name = f"{loss}{', intercept' if intercept else ''}{', heavy tails' if heavy else ''}"
        for n in (600, 6000):
            found = [honest_fit(loss, intercept, n, seed, heavy) for seed in range(seeds)]
            gaps = sorted(each[1] for each in found)
            print(
                f"  {name:35} {n:5} {sum(each[0] == 'converged' for each in found):3} of {seeds}  "
                f"{gaps[0]:.1e} {gaps[seeds // 2]:.1e} {gaps[-1]:.1e} "
                f"{min(e[2] for e in found):5} to {max(e[2] for e in found):5}"
                f"  {max(each[3] for each in found):.2f}",
                flush=True,
            )


def attack() -> None:
    """Print the largest cosine of an answer and a row, by loss and size of w."""
    from tests.owners.attacker import Attacker

    rng = np.random.default_rng(0)
    X = rng.standard_normal((500, 30))
    labels = {"classification": (X[:, 0] > 0).astype(float), "regression": np.exp(0.1 * X[:, 0])}
    directions = rng.standard_normal((20, 30)) / np.sqrt(30)
    rows = X / np.linalg.norm(X, axis=1)[:, None]
    print("\nlargest cosine of an answer and a row of 500 x 30, without protection (with max_leverage):")
    print(f"  {'loss':16}" + "".join(f"{f'|w| = {s:g}':>18}" for s in (1, 10, 100)))
    for loss in (
        "hinge",
        "logistic",
        "smoothed_hinge",
        "absolute",
        "squared_hinge",
        "squared",
        "poisson",
        "exponential",
    ):
        y = labels[get_loss(loss).task]
        cells = []
        for s in (1, 10, 100):
            found = []
            for settings in (OPEN, OPEN | {"max_leverage": 0.75}):
                attacker = Attacker(Owner(X, y, policy=Policy(**settings)), loss)
                answers = [attacker.gradient(s * d) for d in directions]
                gradients = [g for answer in answers if answer is not None and (g := answer[1]).any()]
                cosines = [
                    np.max(np.abs(rows @ g)) / np.linalg.norm(g) for g in gradients if np.isfinite(g).all()
                ]
                found.append(max(cosines, default=0.0))
            cells.append(f"{found[0]:.2f} ({found[1]:.2f})")
        print(f"  {loss:16}" + "".join(f"{cell:>18}" for cell in cells))


if __name__ == "__main__":
    parser = script_parser(__doc__)
    parser.add_argument("--floats", type=int, default=50_000)
    parser.add_argument("--owners", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    rounds(given.floats, given.owners, given.rounds)
    runs()
    honest_fits(given.seeds)
    attack()
