"""Time of a fit against the number of ranks, T(n) = s + t / n, as in Figure 6 of the BMRM paper.

    OMP_NUM_THREADS=1 python -m benchmarks.scale [--data FOLDER] [--sets NAME ...] [--lams 1e-3 1e-5]
        [--ranks 1 2 4 8] [--iterations 20] [--repeats 3] [--plot FILE]
    python -m benchmarks.scale --constants      measures the constants of docs/scaling.md
    python -m benchmarks.scale --predict        prints the tables of docs/scaling.md

Hinge, ordinal regression and NDCG by `Bmrm`, for a given number of iterations, under mpiexec, one shard
per rank. Since a machine has fewer cores than ranks, T is computed from CPU times: the maximum over ranks of
the time in the functions of the shards, plus the time of the solver at rank 0. The time of the messages is
added, as measured between two ranks with one core each: the latency of a round times log2(n), the depth of a
tree of ranks, and the time per float times 2 (n - 1) / n, since each rank sums a range of the gradients and
sends it to all. Printed are milliseconds per iteration; s and t by least squares, and the largest residual.
The data sets are synthetic; with --data they are real: covtype and rcv1 (hinge), and the rankings of MSLR, by
query (NDCG) and by grade only (ordinal).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import riskmin as rm
from benchmarks import engines, scale_model
from benchmarks.harness.script import script_parser
from benchmarks.sets import column_max_scale, signs
from riskmin.data import load
from riskmin.executors import as_backend

LOSSES = {"hinge": rm.Hinge, "ordinal": rm.Ordinal, "NDCG": rm.Ndcg}


# ---------------------------------------------------------------- accounts
def timed(shard, f, *args):
    """Call f and add its CPU time to the cache of the shard."""
    start = time.thread_time()
    result = f(shard, *args)
    shard.cache["seconds"] = shard.cache.get("seconds", 0.0) + time.thread_time() - start
    return result


def spent(shard):
    return shard.cache.pop("seconds", 0.0)


class Metered(rm.Executor):
    """An executor that measures another: time on the shards and between calls, rounds, floats sent."""

    def __init__(self, executor, placed=None):
        self.executor, self.placed = executor, placed
        if placed is not None:
            self.coordination = placed.coordination
        self.clear()

    def __call__(self, shards):
        return Metered(self.executor, as_backend(self.executor).place(shards))

    def __getattr__(self, name):
        return getattr(self.placed, name)

    def clear(self):
        self.solver_seconds, self.rounds, self.floats, self.since = 0.0, 0, 0, time.thread_time()

    def map(self, f, *args, each=()):
        return self._call("map", f, args, each)

    def sum(self, f, *args, each=()):
        return self._call("sum", f, args, each)

    def _call(self, method, f, args, each):
        self.solver_seconds += time.thread_time() - self.since
        result = getattr(self.placed, method)(timed, f, *args, each=each)
        self.rounds += 1
        self.floats += length(result)  # arguments are not sent: all ranks have them
        self.since = time.thread_time()
        return result

    def shards_took(self):
        return self.placed.map(spent)


def length(things):
    """Total number of floats in nested arrays."""
    if isinstance(things, np.ndarray):
        return things.size
    return sum(map(length, things)) if isinstance(things, (list, tuple)) else 0


# ---------------------------------------------------------------- sets
def drawn(n=20_000, p=1000):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p), np.float32)
    z = X @ rng.standard_normal(p).astype(np.float32) / p**0.5 + 0.7 * rng.standard_normal(n)
    return X, z, np.digitize(z, [-1.0, 0.0, 1.0, 2.0]).astype(float), np.arange(n) // 20


def all_drawn(folder):
    X, z, grades, qid = drawn()
    yield "drawn, hinge", "hinge", X, signs(z), None
    yield "drawn, ordinal", "ordinal", X, grades, None
    yield "drawn, NDCG", "NDCG", X, grades, qid


def all_real(folder):
    from benchmarks.sets import rcv1

    X, y, *_ = load(folder / "covtype.svm.xz")
    order = np.random.default_rng(0).permutation(X.shape[0])
    yield "covtype, hinge", "hinge", column_max_scale(X)[order], signs(y, 2)[order], None
    split = rcv1("CCAT")(folder)
    yield "rcv1, hinge", "hinge", sp.vstack([split.X, split.T]).tocsr(), np.append(split.y, split.t), None
    parts = [load(folder / f"rank_mslr_fold1_5k.{part}.svm.xz", n_features=136) for part in ("train", "test")]
    X = column_max_scale(sp.vstack([part.X for part in parts])).toarray()
    grades, qid = (np.concatenate([part[k] for part in parts]) for k in (1, 2))
    yield "MSLR, ordinal", "ordinal", X, grades, None
    yield "MSLR, NDCG", "NDCG", X, grades, qid


def write(place, X, y, qid):
    """Write the arrays to files that the ranks map into memory."""
    arrays = {"y": y, "qid": qid} | (
        {"data": X.data, "indices": X.indices, "indptr": X.indptr} if sp.issparse(X) else {"X": X}
    )
    for name, array in arrays.items():
        if array is not None:
            np.save(place / f"{name}.npy", array)
    return list(X.shape)


def read(place, shape):
    arrays = {file.stem: np.load(file, mmap_mode="r") for file in place.glob("*.npy")}
    X = arrays.get("X")
    if X is None:
        X = sp.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape=tuple(shape))
    return X, np.array(arrays["y"]), arrays.get("qid")


# ---------------------------------------------------------------- runs
def run(case, lam, iterations, repeats, settings):
    """Measurements of a fit in seconds per iteration, for each rank the minimum of several runs."""
    X, y, qid = read(Path(case["place"]), case["shape"])
    executor = Metered(settings)
    risk = rm.linear_risk(X, y, LOSSES[case["loss"]](), qid=qid, executor=executor, n_shards=settings.size)
    J = rm.Objective(risk, rm.L2(), lam)
    executor, solver_seconds, shards = risk.executor, [], []
    for max_iter in (2, *[iterations] * repeats):  # the first run compiles the kernels and reads the data
        executor.clear()
        executor.shards_took()
        n = rm.minimize(J, rm.Bmrm(), tol=0.0, max_iter=max_iter).n_iter
        solver_seconds.append(executor.solver_seconds / n)
        account = {"rounds": executor.rounds / n, "floats": executor.floats / n}
        shards.append(np.array(executor.shards_took()) / n)
    return account | {"shards": np.min(shards[1:], axis=0).max(), "solver": min(solver_seconds[1:])}


def rank(file):
    """The program of one rank: all runs of a file."""
    settings = rm.Spmd()
    job = json.loads(Path(file).read_text())
    results = [
        {"name": case["name"], "lam": lam, **run(case, lam, job["iterations"], job["repeats"], settings)}
        for case in job["cases"]
        for lam in job["lams"]
    ]
    if settings.rank == 0:
        print(json.dumps(results))


def messages():
    """Latency of a round between two ranks, and seconds per additional float."""
    floats = 50_000
    options = ["--rank", "ordered", "--floats", floats, "--rounds", 600]
    short, _, long, _ = engines.on_ranks("benchmarks.engines", *options)
    return short, max(long - short, 0.0) / floats


def fit(ranks, times):
    """The s and t of T(n) = s + t / n, and the largest relative residual."""
    A = np.column_stack([np.ones(len(ranks)), 1 / np.array(ranks)])
    st = np.linalg.lstsq(A, np.array(times), rcond=None)[0]
    return (*st, float(max(abs(A @ st - times) / times)))


def measure(args):
    """T for each data set, lam and number of ranks."""
    latency, per_float = messages()
    print(f"messages: {1e3 * latency:.3f} ms per round and {1e9 * per_float:.2f} ns per float, two ranks\n")
    with tempfile.TemporaryDirectory() as folder:
        cases = []
        for k, (name, loss, *data) in enumerate((all_real if args.data else all_drawn)(args.data)):
            if args.sets and name not in args.sets:
                continue
            place = Path(folder, str(k))
            place.mkdir()
            cases.append({"name": name, "loss": loss, "place": str(place), "shape": write(place, *data)})
        file = Path(folder, "runs.json")
        job = {name: getattr(args, name) for name in ("lams", "iterations", "repeats")}
        file.write_text(json.dumps({"cases": cases} | job))
        results = {}
        for n in args.ranks:
            for one in engines.on_ranks("benchmarks.scale", "--rank", file, ranks=n):
                messages_time = np.log2(n) * one["rounds"] * latency
                messages_time += 2 * (n - 1) / n * one["floats"] * per_float
                parts = np.array([one["shards"], one["solver"], messages_time])
                results.setdefault((one["name"], one["lam"]), []).append(parts)
    return results


def figure(args):
    results = measure(args)
    head = " | ".join(f"T({n})" for n in args.ranks)
    print(f"| set | lam | {head} | s | t | residual | at {args.ranks[-1]}: shards, solver, messages |")
    print("|" + " --- |" * (len(args.ranks) + 6))
    for (name, lam), parts in results.items():
        times = np.array([p.sum() for p in parts])
        s, t, off = fit(args.ranks, times)
        cells = [*(f"{1e3 * x:.2f}" for x in (*times, s, t)), f"{off:.1%}"]
        last = ", ".join(f"{1e3 * x:.2f}" for x in parts[-1])
        print(f"| {name} | {lam:g} | " + " | ".join(cells) + f" | {last} |", flush=True)
    if args.plot:
        plot(args.ranks, results, args.plot)


def plot(ranks, results, file):
    """One panel per loss, one line per lam, as in the paper: T against ranks, with the model."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    names = list(dict.fromkeys(name for name, _ in results))
    _, fields = plt.subplots(1, len(names), figsize=(4 * len(names), 3), layout="constrained", squeeze=False)
    fine = np.linspace(min(ranks), max(ranks), 200)
    for field, name in zip(fields[0], names, strict=True):
        top = max(1e3 * p.sum() for (other, _), parts in results.items() if other == name for p in parts)
        for (other, lam), parts in results.items():
            if other == name:
                times = 1e3 * np.array([p.sum() for p in parts])
                s, t, _ = fit(ranks, times)
                (dots,) = field.plot(ranks, times, "o", label=f"lam {lam:g}: {s:.2g} + {t:.2g} / n")
                field.plot(fine, s + t / fine, color=dots.get_color(), linewidth=1)
        field.set(title=name, xlabel="ranks", ylabel="ms per iteration", ylim=(0, 1.2 * top), xticks=ranks)
        field.legend(fontsize="small")
    plt.savefig(file)


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder of real data sets  [default: synthetic data]")
    parser.add_argument("--sets", nargs="+", help="names, as in the table  [default: all]")
    parser.add_argument("--lams", nargs="+", type=float, default=[1e-3, 1e-5])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4, 8])
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument(
        "--repeats", type=int, default=3, help="repeats of each run; the smallest time counts"
    )
    parser.add_argument("--plot", type=Path, help="write an image, PNG or SVG (needs matplotlib)")
    parser.add_argument(
        "--constants", action="store_true", help="measure and write the constants of the predictions"
    )
    parser.add_argument("--predict", action="store_true", help="print the tables of docs/scaling.md")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank(args.rank)
    elif args.constants:
        scale_model.write()
    elif args.predict:
        print(scale_model.tables())
    else:
        figure(args)


if __name__ == "__main__":
    main()
