"""Run the campaign: counts and failures are written to a JSON file, from which a stopped run resumes."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

EVERY = 100
"""Number of problems between two lines of progress, and between two writes of the file."""


def _one(seed: int) -> tuple[int, dict[str, int], list[dict[str, Any]]]:
    from benchmarks.campaign.check import check

    report = check(seed)
    loss, kind = type(report.problem.loss).__name__, "kernel" if report.problem.kernel else "linear"
    counts = {"problems": 1, "fits": report.fits, "refusals": report.refused, "exact minima": report.minima}
    return seed, counts | {f"loss {loss}": 1, f"{kind} problems": 1}, report.failures


def _reports(seeds: list[int], jobs: int) -> Iterator[tuple[int, dict[str, int], list[dict[str, Any]]]]:
    if jobs == 1:
        yield from map(_one, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(_one, seeds, chunksize=10)


def _save(path: Path, state: dict[str, Any]) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(state, indent=1))
    new.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.campaign", description=__doc__)
    parser.add_argument("--n", type=int, default=1000, help="number of problems")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first problem")
    parser.add_argument("--jobs", type=int, default=1, help="number of processes")
    parser.add_argument("--out", type=Path, default=Path("campaign.json"), help="file of counts and failures")
    args = parser.parse_args(arguments)
    state: dict[str, Any] = {
        "seed": args.seed,
        "next": args.seed,
        "seconds": 0.0,
        "counts": {},
        "failures": [],
    }
    if args.out.exists():
        state = json.loads(args.out.read_text())
        if state["seed"] != args.seed:
            parser.error(f"{args.out} is of seed {state['seed']}: name another file by --out, or remove it")
        print(f"{args.out}: {state['counts'].get('problems', 0)} problems are done")
    counts, began, last = Counter(state["counts"]), time.perf_counter() - state["seconds"], args.seed + args.n
    for seed, new_counts, failures in _reports(list(range(state["next"], last)), args.jobs):
        counts.update(new_counts)
        state["failures"] += failures
        for one in failures:
            print(
                f"seed {one['seed']}: {one['kind']}, {one['solver']}: {one['message']} [{one['problem']}]",
                flush=True,
            )
        state |= {"next": seed + 1, "counts": dict(counts), "seconds": time.perf_counter() - began}
        if (seed + 1 - args.seed) % EVERY == 0 or seed + 1 == last:
            _save(args.out, state)
            kinds = dict(Counter(one["kind"] for one in state["failures"]))
            done = f"{counts['problems']} problems, {counts['fits']} fits, {state['seconds']:.0f} s"
            print(f"{done}: {kinds or 'no failures'}", flush=True)
    return int(bool(state["failures"]))


if __name__ == "__main__":
    raise SystemExit(main())
