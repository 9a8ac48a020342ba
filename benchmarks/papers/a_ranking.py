"""The ranking losses of Teo et al., A scalable modular convex solver (KDD 2007), as linear assignments.

    python -m benchmarks.papers.a_ranking --data FOLDER [--only "drawn, even"] [--tol 1e-2] [--seconds 5]
        [--lam 1e-2] [--solver smoothing]

Test NDCG@10 of the losses with weights c_i of positions, as the paper has them, and with equal weights of
pairs, the default, on MQ2008, on 43 queries of MSLR, and on two drawn sets of 20 rows per query: one with
five grades of equal frequency, one with two relevant rows per query. lam is chosen among 1e-1, 1e-2, 1e-3 and
1e-4 by the validation queries (for MSLR, a quarter of the training queries). Columns are standardized. Each
fit runs until the gap is proved or the time is over; "max abs w" is 0 where the bound is least at w = 0. The
number after +- is the standard error over queries. A set whose files are missing is skipped, and so are
losses that the solver does not support.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import riskmin as rm
from benchmarks.harness.script import print_head, script_parser
from benchmarks.ranking import ndcg
from riskmin import ExpectedRankUtility, Mrr, Ndcg, PositionWeights
from riskmin.core import UnsupportedProblem
from riskmin.data import load

LAMS = [1e-1, 1e-2, 1e-3, 1e-4]
WEIGHTS = {
    "pairs (default)": None,
    "1 / sqrt(i)": 0.5,
    "1 / (i + 1)": PositionWeights(power=1, shift=1),
    "1 / sqrt(i), i <= 10": PositionWeights(power=0.5, k=10),
    "discount": "discount",
}
LOSSES = {
    f"`{kind.__name__}`, {name}": kind(weights=weights)
    for kind in (Ndcg, ExpectedRankUtility, Mrr)
    for name, weights in WEIGHTS.items()
    if kind is Ndcg or name in ("pairs (default)", "1 / sqrt(i)", "discount")
}


class Queries(NamedTuple):
    """Rows, grades and the query of each row."""

    X: np.ndarray
    y: np.ndarray
    qid: np.ndarray

    def select(self, rows):
        """Some of the rows."""
        return Queries(*(part[rows] for part in self))


def standardized(*parts):
    """The parts with columns of mean 0 and variance 1 over the rows of the first."""
    X = [
        np.asarray(part.X.todense() if hasattr(part.X, "todense") else part.X, dtype=float) for part in parts
    ]
    mean, scale = X[0].mean(axis=0), X[0].std(axis=0)
    scale[scale == 0] = 1.0
    return [Queries((a - mean) / scale, part.y, part.qid) for a, part in zip(X, parts, strict=True)]


def drawn(rare, n_queries=300, m=20, p=10):
    """Thirds of queries whose grades depend on a linear score and noise."""
    rng = np.random.default_rng(0)
    qid, X = np.repeat(np.arange(n_queries), m), rng.standard_normal((n_queries * m, p))
    quality = X @ rng.standard_normal(p) / np.sqrt(p) + (1.0 if rare else 0.5) * rng.standard_normal(len(X))
    rank = np.argsort(np.argsort(-quality.reshape(n_queries, m), axis=1), axis=1).ravel()
    y = (rank < 2).astype(float) if rare else 4.0 - rank // (m // 5)
    return standardized(*(Queries(X, y, qid).select(qid % 3 == part) for part in range(3)))


def mq2008(folder):
    """The parts of the files."""
    return standardized(
        *(load(folder / f"rank_mq2008.{part}.svm.xz", n_features=46) for part in ("train", "vali", "test"))
    )


def mslr(folder):
    """A quarter of the training queries serves for validation."""
    train, test = (
        load(folder / f"rank_mslr_fold1_5k.{part}.svm.xz", n_features=136) for part in ("train", "test")
    )
    train, test = standardized(train, test)
    held = np.isin(train.qid, np.unique(train.qid)[::4])
    return train.select(~held), train.select(held), test


SETS = {
    "MQ2008": mq2008,
    "MSLR, 43 queries": mslr,
    "drawn, even": lambda folder: drawn(rare=False),
    "drawn, rare": lambda folder: drawn(rare=True),
}


def row(name, loss, parts, args):
    """One line of a table."""
    train, vali, test = parts
    risk, start = rm.linear_risk(train.X, train.y, loss, qid=train.qid), time.process_time()
    settings = {"tol": args.tol, "max_seconds": args.seconds}
    results = [rm.minimize(rm.Objective(risk, rm.L2(), lam), args.solver, **settings) for lam in args.lam]
    took = time.process_time() - start
    best = int(np.argmax([ndcg(vali, result.w).mean() for result in results]))
    each, gaps = ndcg(test, results[best].w), [result.gap / result.value for result in results]
    cells = [
        name,
        f"{each.mean():.4f} +- {each.std(ddof=1) / len(each) ** 0.5:.4f}",
        f"{ndcg(vali, results[best].w).mean():.4f}",
        f"{args.lam[best]:.0e}",
        f"{np.abs(results[best].w).max():.2g}",
        f"{gaps[best]:.1e}",
        f"{max(gaps):.1e}",
        f"{took:.1f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the files")
    parser.add_argument("--only", choices=list(SETS), help="one of the sets")
    parser.add_argument("--tol", type=float, default=1e-2, help="relative gap to prove")
    parser.add_argument("--seconds", type=float, default=5.0, help="time limit per fit")
    parser.add_argument("--lam", type=float, nargs="+", default=LAMS, help="to choose from")
    parser.add_argument("--solver", help="its name; by default Auto")
    args = parser.parse_args()
    for name in [args.only] if args.only else SETS:
        try:
            parts = SETS[name](args.data)
        except FileNotFoundError as error:
            print(f"\n{name}: skipped, {error}")
            continue
        print(f"\n### {name}\n")
        print_head(
            "| loss, weights | test NDCG@10 | validation | lam | max abs w | gap | largest gap | CPU s |"
        )
        for title, loss in LOSSES.items():
            try:
                print(row(title, loss, parts, args), flush=True)
            except UnsupportedProblem as error:
                print(f"| {title}: {error} |")


if __name__ == "__main__":
    main()
