"""Turn each optional mechanism off, and compare CPU seconds to a certified gap on real sets.

    OMP_NUM_THREADS=1 python -m benchmarks.ablation --data FOLDER --data UNSEEN [--switch NAME ...]
        [--fits 12] [--limit 4] [--budget 60] [--tables 80] [--seed 0] [--lines FILE]

A mechanism is measured on its own fits: those of its losses, in random order, raw tables, sets and shapes in
turn, on which the switch changes the result. Runs with the mechanism and without it alternate in one process,
and the least CPU time of each counts. The ratio is that without the mechanism to that with it: above 1, it
pays. A fit is proved by the mechanism alone if it is certified within the limit only with it.

A mechanism stays if its median ratio is 1.15 or more, or if it proves fits that are not proved without it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.machine import set_threads

set_threads(1)  # before NumPy is imported

import riskmin as rm  # noqa: E402
from benchmarks.ablation.problems import Fit, of_sets, of_shapes, of_tables  # noqa: E402
from benchmarks.ablation.switches import SWITCHES, Switch, counted_calls, switched_off  # noqa: E402
from benchmarks.auto import CPU, run_to_proof  # noqa: E402
from benchmarks.harness.script import print_head, script_parser  # noqa: E402

PAYS = 1.15
"""The least median ratio of a mechanism that stays."""
ROUNDS, MIN_ROUNDS, ENOUGH = 7, 2, 2.0
"""Most and fewest rounds of a fit after the first, and the CPU seconds after which there are no more."""


class Run(NamedTuple):
    """CPU seconds, whether the gap was proved, and what tells whether another run did the same."""

    seconds: float
    proved: bool
    trace: Any


def run(fit: Fit, limit: float) -> Run:
    X, y = fit.read()
    start = CPU.read()
    try:
        result = run_to_proof(X, y, fit, fit.strength(X, y), "auto", fit.tol, limit, CPU)
    except Exception as error:
        return Run(CPU.read() - start, False, repr(error))
    spent = CPU.read() - start
    if result is None:
        return Run(spent, False, None)
    return Run(
        spent, result.status == "converged", (result.w.tobytes(), result.n_iter, result.trace[-1]["calls"])
    )


def selects_others(fit: Fit, switch: Switch) -> bool:
    """Whether `Auto` has other solvers for the fit without the mechanism."""
    X, y = fit.read()
    risk = rm.linear_risk(X, y, fit.loss, executor=rm.Serial, fit_intercept=fit.intercept)
    obj = rm.Objective(risk, fit.reg, fit.strength(X, y))
    before = repr(rm.Auto().portfolio(obj, fit.tol)[0].every)
    with switched_off(switch):
        return repr(rm.Auto().portfolio(obj, fit.tol)[0].every) != before


class Ablation:
    """The runs of all switches; those with every mechanism are shared."""

    def __init__(self, fits: list[Fit], args: argparse.Namespace) -> None:
        self.fits, self.args = fits, args
        self.first: dict[str, Run] = {}

    def measure(self, switch: Switch) -> Iterator[dict[str, Any]]:
        """The cells of the fits that use the mechanism."""
        start, found = CPU.read(), 0
        for fit in self.fits:
            if found == self.args.fits or CPU.read() - start > self.args.budget:
                return
            if fit.is_for(switch.tasks, switch.sparse) and (cell := self._cell(fit, switch)):
                found += 1
                yield cell

    def _cell(self, fit: Fit, switch: Switch) -> dict[str, Any] | None:
        """Both least times and proofs; None if the fit does not use the mechanism, or nothing proves it."""
        limit = self.args.limit
        if switch.selects and not selects_others(fit, switch):
            return None
        if fit.name not in self.first:
            self.first[fit.name] = run(fit, limit)
        first = self.first[fit.name]
        calls = counted_calls(switch)
        with switched_off(switch):
            other = run(fit, limit)
        if not (first.proved or other.proved):
            return None
        if first.trace == other.trace and counted_calls(switch) == calls:
            return None
        on, off = [], []
        while len(on) < ROUNDS and (len(on) < MIN_ROUNDS or sum(one.seconds for one in on + off) < ENOUGH):
            on.append(run(fit, limit))
            with switched_off(switch):
                off.append(run(fit, limit))
            if not (on[0].proved and off[0].proved):
                break
        with_it, without = (min(one.seconds for one in runs) for runs in (on, off))
        return {
            "fit": fit.name,
            "with": with_it,
            "without": without,
            "ratio": without / with_it,
            "proved with": on[0].proved or first.proved,
            "proved without": off[0].proved or other.proved,
        }


def row(name: str, cells: list[dict[str, Any]]) -> str:
    """The row of the table: median and extreme ratios where both prove, and proofs by one alone."""
    ratios = [cell["ratio"] for cell in cells if cell["proved with"] and cell["proved without"]]
    alone = sum(not cell["proved without"] for cell in cells)
    harmed = sum(not cell["proved with"] for cell in cells)
    if not cells:
        return f"| {name} | 0 | - | - | - | - | - | no fit |"
    middle = statistics.median(ratios) if ratios else float("nan")
    stays = alone > harmed or middle >= PAYS
    figures = [f"{middle:.2f}", f"{min(ratios, default=middle):.2f}", f"{max(ratios, default=middle):.2f}"]
    proofs = f"{alone} | {harmed} | {'stays' if stays else 'goes'}"
    return f"| {name} | {len(cells)} | {' | '.join(figures)} | {proofs} |"


def in_turn(*sources: list[Fit]) -> list[Fit]:
    """Fits of each source in turn."""
    return [fit for fit in chain.from_iterable(zip_longest(*sources)) if fit is not None]


def parsed() -> argparse.Namespace:
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, action="append", default=[], help="folders of sets")
    parser.add_argument("--switch", nargs="*", help="names, or parts of names; default: all")
    parser.add_argument("--fits", type=int, default=12, help="fits per mechanism")
    parser.add_argument("--limit", type=float, default=4.0, help="CPU seconds of a run")
    parser.add_argument("--budget", type=float, default=60.0, help="CPU seconds per mechanism")
    parser.add_argument("--tables", type=int, default=80, help="raw tables, drawn with the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lines", type=Path, help="append a line of JSON per fit")
    return parser.parse_args()


def main() -> None:
    args = parsed()
    folders = tuple(args.data)
    sources = [
        list(of_tables(args.tables, args.seed)),
        list(of_sets(folders, args.seed)),
        list(of_shapes(folders)),
    ]
    ablation = Ablation(
        in_turn(*(sorted(one, key=lambda fit: fit.order(args.seed)) for one in sources)), args
    )
    print_head(
        "mechanism | fits | median | least | largest | proved by it alone | proved only without it | it"
    )
    for name, switch in SWITCHES.items():
        if args.switch and not any(part in name for part in args.switch):
            continue
        cells = []
        for cell in ablation.measure(switch):
            cells.append(cell)
            if args.lines:
                with args.lines.open("a") as out:
                    out.write(json.dumps({"mechanism": name} | cell) + "\n")
        print(row(name, cells), flush=True)


if __name__ == "__main__":
    main()
