"""Test NDCG@10 of ranking losses on MQ2008, compared with pointwise baselines.

    python -m benchmarks.ranking --data FOLDER [--tol 1e-3] [--seconds 30]

Every row minimizes mean loss + lam |w|^2 / 2 on the training queries, for lam = 10^0, 10^-0.5, ..., 10^-6 in
turn, each until a relative gap of tol is *proved* or the time limit is reached, and keeps the lam with the
best NDCG@10 on the validation queries. NDCG@10 has the gains 2^y - 1 and is the mean over the queries that
have a relevant document; all orders of the other queries are equally good. The number after +- is the
standard error of the test mean over queries. The pointwise baselines fit the grades without queries: squared
loss, and ordinal regression over all pairs. The folder holds rank_mq2008.train.svm.xz, and the same for vali
and test.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from sklearn.metrics import ndcg_score

import riskmin as rm
from benchmarks.harness.script import script_parser
from riskmin.data import load

LAMS = 10.0 ** -np.arange(0, 6.5, 0.5)
LOSSES = {
    "`Ndcg(k=10)`": rm.Ndcg(k=10),
    "`Mrr()`": rm.Mrr(),
    "`ExpectedRankUtility()`": rm.ExpectedRankUtility(),
    "`PairwiseHinge()`": rm.PairwiseHinge(),
    "`Ordinal()`, no queries": rm.Ordinal(),
    "`Squared()` on grades, no queries": rm.Squared(),
}


def ndcg(data, w):
    """NDCG@10 of each query that has a relevant row."""
    z, each = data.X @ w, []
    for query in np.unique(data.qid):
        rows = data.qid == query
        if np.any(data.y[rows] > 0) and np.sum(rows) > 1:
            each.append(ndcg_score([2.0 ** data.y[rows] - 1], [z[rows]], k=10))
    return np.array(each)


def fit(loss, data, tol, seconds):
    """The results for all lams, and their seconds."""
    ranks = getattr(loss, "task", None) == "ranking"
    risk = rm.linear_risk(data.X, data.y, loss, fit_intercept=True, **({"qid": data.qid} if ranks else {}))
    risk(np.zeros(risk.dim))  # compile the kernels
    start = time.perf_counter()
    results = rm.path(risk, rm.L2(), LAMS, tol=tol, max_seconds=seconds)
    return results, time.perf_counter() - start


def row(name, loss, parts, tol, seconds):
    """One line of the table."""
    train, vali, test = parts
    results, took = fit(loss, train, tol, seconds)
    weights = [result.w[: train.X.shape[1]] for result in results]  # without the intercept
    best = int(np.argmax([ndcg(vali, w).mean() for w in weights]))
    each, gaps = ndcg(test, weights[best]), [result.gap / result.value for result in results]
    cells = [
        name,
        f"{each.mean():.4f} +- {each.std(ddof=1) / len(each) ** 0.5:.4f}",
        f"{ndcg(vali, weights[best]).mean():.4f}",
        f"{LAMS[best]:.0e}",
        f"{gaps[best]:.1e}",
        f"{max(gaps):.1e}",
        f"{took:.2f}",
        str(sum(int(result.trace[-1]["calls"]) for result in results)),
    ]
    return "| " + " | ".join(cells) + " |"


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the files")
    parser.add_argument("--tol", type=float, default=1e-3, help="relative gap to prove")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit per fit")
    args = parser.parse_args()
    files = [args.data / f"rank_mq2008.{part}.svm.xz" for part in ("train", "vali", "test")]
    parts = [load(file, n_features=46) for file in files]
    print(
        "| loss | test NDCG@10 | validation | lam | gap | largest gap of all lam | seconds for all | calls |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, loss in LOSSES.items():
        print(row(name, loss, parts, args.tol, args.seconds), flush=True)


if __name__ == "__main__":
    main()
