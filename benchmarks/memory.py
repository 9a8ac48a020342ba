"""Fits of data larger than the memory limit, compared with the same fits with all of X in memory.

    OMP_NUM_THREADS=1 python -m benchmarks.memory [--limit 512] [--times 3] [--rounds 3] [--folder FOLDER]

Synthetic data of `--times` the limit are stored in a temporary folder. Every fit runs in a separate process;
kernels are compiled and checksums verified before the clock starts:

- memory: X is copied from disk into memory first, and nothing is limited
- limit: X is mapped; RLIMIT_DATA allows `--limit` MiB of anonymous memory, and the process releases mapped
  pages itself, so that all resident memory, including mapped pages, stays below the limit
- group: X is mapped, in a memory control group of `--limit` MiB that also counts the page cache: pages are
  evicted after use and read from disk again in the next pass. Needs root

Printed are wall and CPU seconds, minimum of the rounds (CPU time is more reliable on a shared machine); the
speed relative to memory by each, which is meaningful if the data are in the page cache, as with "limit"; peak
resident memory (VmHWM) and peak anonymous memory (RssAnon, sampled), to be compared with the limit; and
whether objective and weights are bitwise equal to those of the fit in memory.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np

import riskmin as rm
from benchmarks.harness.script import memory_bytes, print_head, script_parser
from benchmarks.kernels import sparse
from riskmin.data import load, save

FITS = {
    "dense, logistic": ("dense", "logistic", "Auto", True),
    "dense, logistic, Lbfgs": ("dense", "logistic", "Lbfgs", True),
    "sparse, hinge": ("sparse", "hinge", "Auto", False),
    "sparse, hinge, Bundle": ("sparse", "hinge", "Bundle", True),
}


MODES = ("memory", "limit", "group")


# ---------------------------------------------------------------- data
def dense_parts(size, p=100, rows=20_000):
    """Dense rows of about `size` bytes in total, in parts."""
    rng, w = np.random.default_rng(0), np.random.default_rng(1).standard_normal(p)
    for _ in range(-(-size // (8 * p * rows))):
        X = rng.standard_normal((rows, p))
        yield X, np.where(X @ w + 3 * rng.standard_normal(rows) > 0, 1.0, -1.0)


def sparse_parts(size, p=20_000, row=60, rows=20_000):
    """Sparse rows of about `size` bytes in total, twelve bytes per entry, in parts."""
    rng, w = np.random.default_rng(0), np.random.default_rng(1).standard_normal(p)
    for k in range(-(-size // (12 * row * rows))):
        X = sparse(rows, p, row, seed=k)
        yield X, np.where(X @ w + rng.standard_normal(rows) > 0, 1.0, -1.0)


def drop_cache(folder):
    """Evict the files of a folder from the page cache."""
    for path in folder.glob("*.npy"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# ---------------------------------------------------------------- one fit
class Sampled:
    """Samples the peak of anonymous memory in a thread."""

    def __init__(self):
        self.peak = 0
        self.stop = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        while not self.stop.wait(0.01):
            self.peak = max(self.peak, memory_bytes("RssAnon"))


def objective(X, y, loss, intercept):
    return rm.Objective(rm.linear_risk(X, y, loss, fit_intercept=intercept), rm.L2(), 1e-4)


def worker(name, path, mode, limit, tol):
    """One fit: its time, memory and result."""
    _, loss, solver, intercept = FITS[name]
    if mode == "limit":
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    X, y, *_ = load(path)
    some_rows = X[:3000].copy()
    rm.minimize(objective(some_rows, y[:3000], loss, intercept), getattr(rm, solver)(), tol=tol, max_iter=50)
    if mode == "memory":
        X = X.copy()
    sampled = Sampled()
    start = time.perf_counter(), time.process_time()
    result = rm.minimize(objective(X, y, loss, intercept), getattr(rm, solver)(), tol=tol)
    seconds, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    sampled.stop.set()
    return {
        "seconds": seconds,
        "cpu": cpu,
        "peak": memory_bytes("VmHWM"),
        "anon": max(sampled.peak, memory_bytes("RssAnon")),
        "value": result.value.hex(),
        "w": float(np.sum(result.w * np.arange(1, len(result.w) + 1))).hex(),
        "status": result.status,
        "solver": result.solver.split("(")[0],
        "calls": result.trace[-1]["calls"],
    }


def run(name, path, mode, limit, tol, group=None):
    """One fit in a separate process, optionally in a control group."""
    call = f"worker({name!r}, {str(path)!r}, {mode!r}, {limit}, {tol})"
    code = f"import json; from benchmarks.memory import worker; print(json.dumps({call}))"

    def enter():
        Path(group, "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=False, preexec_fn=enter if group else None,
    )  # fmt: skip
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return json.loads(done.stdout)


@contextmanager
def control_group(limit):
    """Create a memory control group below that of this process; None if that fails."""
    folder = None
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, kinds, place = line.split(":", 2)
            if kinds == "memory" or (not kinds and Path("/sys/fs/cgroup/cgroup.controllers").exists()):
                top = Path("/sys/fs/cgroup", kinds) / place.lstrip("/")
                group = top / f"riskmin-{os.getpid()}"
                group.mkdir()
                (group / ("memory.limit_in_bytes" if kinds else "memory.max")).write_text(str(limit))
                folder = group
                break
    try:
        yield folder
    finally:
        if folder is not None:
            folder.rmdir()


# ---------------------------------------------------------------- the table
def measure(name, path, args):
    limit = int(args.limit * 2**20)
    fits = {}
    for _ in range(args.rounds):
        for mode in [how for how in args.how if how != "group"]:
            new = run(name, path, mode, limit, args.tol)
            old = fits.setdefault(mode, new)
            if "failed" not in new and "failed" not in old:
                fits[mode] = new | {key: min(new[key], old[key]) for key in ("seconds", "cpu")}
                fits[mode] |= {key: max(new[key], old[key]) for key in ("peak", "anon")}
    with control_group(limit) if "group" in args.how else nullcontext() as group:
        if group is not None:
            drop_cache(path)
            fits["group"] = run(name, path, "group", limit, args.tol, group)
    return fits


def line(name, mode, fit, base):
    if "failed" in fit:
        return f"| {name} | {mode} | {fit['failed']} | | | | | | |"
    same = "yes" if (fit["value"], fit["w"]) == (base["value"], base["w"]) else "NO"
    seconds, cpu = (f"{base[key] / fit[key]:.0%}" for key in ("seconds", "cpu"))
    cells = [f"{name} ({fit['solver']}, {fit['calls']:.0f} calls)", mode]
    cells += [f"{fit['seconds']:.2f}", f"{fit['cpu']:.2f}"]
    cells += ["", ""] if mode == "memory" else [seconds, cpu]
    cells += [f"{fit['peak'] / 2**20:.0f}", f"{fit['anon'] / 2**20:.0f}", "" if mode == "memory" else same]
    return f"| {' | '.join(cells)} |"


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--limit", type=float, default=512, help="of memory, in MiB")
    parser.add_argument("--times", type=float, default=3, help="size of the data relative to the limit")
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--how", nargs="+", choices=MODES, default=list(MODES), help="modes; the first is the baseline"
    )
    parser.add_argument("--only", nargs="+", choices=FITS, default=list(FITS))
    parser.add_argument("--folder", type=Path, help="folder for the data")
    args = parser.parse_args()
    size = int(args.limit * args.times * 2**20)
    print(f"limit {args.limit:g} MiB, X {args.times:g} times that, tol {args.tol:g}, lam 1e-4\n")
    print_head(
        "| fit | how | wall | CPU | speed by wall | by CPU | peak RSS, MiB | not of files | same bits |"
    )
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for kind, parts in (("dense", dense_parts), ("sparse", sparse_parts)):
            names = [name for name in args.only if FITS[name][0] == kind]
            path = Path(folder, f"{kind}.rsk")
            if names:
                save(path, parts(size))
            for name in names:
                fits = measure(name, path, args)
                for mode, fit in fits.items():
                    print(line(name, mode, fit, fits[args.how[0]]), flush=True)


if __name__ == "__main__":
    main()
