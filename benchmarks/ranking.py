"""Test NDCG@10 of ranking losses on MQ2008, compared with pointwise baselines; and fits in raw units.

    python -m benchmarks.ranking --data FOLDER [--tol 1e-3] [--seconds 30]
    python -m benchmarks.ranking --units 12 [--regularizer l1] [--lam 1e-6] [--tol 1e-3] [--seconds 4]

Every row minimizes mean loss + lam |w|^2 / 2 on the training queries, for lam = 10^0, 10^-0.5, ..., 10^-6 in
turn, each until a relative gap of tol is *proved* or the time limit is reached, and keeps the lam with the
best NDCG@10 on the validation queries. NDCG@10 has the gains 2^y - 1 and is the mean over the queries that
have a relevant document; all orders of the other queries are equally good. The number after +- is the
standard error of the test mean over queries. The pointwise baselines fit the grades without queries: squared
loss, and ordinal regression over all pairs. The folder holds rank_mq2008.train.svm.xz, and the same for vali
and test.

With `--units`, that many drawn tables of 16 to 1000 rows are fitted with each list loss. Their columns are
multiplied by 1e-6 to 1e6, shifted by up to 1000 standard deviations, and sometimes nearly collinear. Counted
are fits that were proved (to tol, or to the absolute tolerance where J is nearly zero), that stalled, and
that ran out of CPU seconds.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from sklearn.metrics import ndcg_score

import riskmin as rm
from benchmarks.harness.script import script_parser
from riskmin.data import load
from riskmin.regularizers import get_regularizer

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


# ---------------------------------------------------------------- drawn tables in raw units
RANKINGS = {
    "`Ndcg()`": rm.Ndcg(),
    "`Mrr()`": rm.Mrr(),
    "`ExpectedRankUtility()`": rm.ExpectedRankUtility(),
    '`Ndcg(weights="discount")`': rm.Ndcg(weights="discount"),
    '`Mrr(weights="discount")`': rm.Mrr(weights="discount"),
    "`PairwiseHinge()`": rm.PairwiseHinge(),
}
LISTS = {
    "`FBeta()`": rm.FBeta(),
    "`FBeta(2.0)`": rm.FBeta(2.0),
    "`PrecisionAtK(5)`": rm.PrecisionAtK(5),
    "`RecallAtK(5)`": rm.RecallAtK(5),
    "`RocArea()`": rm.RocArea(),
}


def in_raw_units(seed):
    """Rows, their noisy scores and query ids."""
    rng = np.random.default_rng(seed)
    n, p = int(rng.choice([16, 60, 300, 1000])), int(rng.integers(2, 25))
    X = rng.standard_normal((n, p))
    if p > 3 and rng.random() < 0.3:
        X[:, -1] = X[:, 0] + 1e-3 * rng.random() * X[:, 1]
    scores = X @ rng.standard_normal(p) + np.sqrt(p) * rng.choice([0.1, 1.0]) * rng.standard_normal(n)
    X = (X + rng.choice([0.0, 1.0, 1000.0], p)) * 10.0 ** rng.uniform(-6, 6, p)
    return X, scores, np.sort(rng.integers(0, max(n // 12, 1), n)), float(rng.choice([0.1, 0.3, 0.5]))


def outcome(obj, tol, seconds):
    """Status, relative gap, whether J is above that at w = 0, and CPU seconds of a fit at the defaults."""
    start = time.process_time()
    result = rm.minimize(
        obj, tol=tol, callback=lambda *_: time.process_time() - start > seconds, max_seconds=10 * seconds
    )
    worse = result.value > obj.value(np.zeros(obj.risk.dim)) * (1 + 1e-9)
    return result.status, result.gap / result.value, worse, time.process_time() - start


def units_row(name, loss, reg, args):
    """One line of the table of fits in raw units."""
    outcomes = []
    for seed in range(args.units):
        X, scores, qid, share = in_raw_units(seed)
        if name in RANKINGS:
            y = np.digitize(scores, np.quantile(scores, [1 - share, 1 - share / 3])).astype(float)
            risk = rm.linear_risk(X, y, loss, qid=qid)
        else:
            y = np.where(scores > np.quantile(scores, 1 - share), 1.0, -1.0)
            risk = rm.linear_risk(X, y, loss, fit_intercept=isinstance(loss, rm.FBeta))
        outcomes.append(outcome(rm.Objective(risk, reg, args.lam), args.tol, args.seconds))
    statuses = [status for status, *_ in outcomes]
    seconds = [each[3] for each in outcomes]
    proved, stalled = statuses.count("converged"), statuses.count("stalled")
    cells = [name, len(statuses), proved, stalled, len(statuses) - proved - stalled]
    cells += [f"{max(gap for _, gap, *_ in outcomes):.0e}", sum(worse for *_, worse, _ in outcomes)]
    cells += [f"{sum(seconds):.1f} / {np.median(seconds):.3f} / {max(seconds):.1f}"]
    return "| " + " | ".join(map(str, cells)) + " |"


def fit_in_raw_units(args):
    """Print the table of fits in raw units."""
    columns = "loss", "fits", "proved", "stalled", "out of time", "largest gap", "worse than w = 0"
    print("| " + " | ".join((*columns, "CPU s: all / median / worst")) + " |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    reg = get_regularizer(args.regularizer)
    for name, loss in {**RANKINGS, **LISTS}.items():
        print(units_row(name, loss, reg, args), flush=True)


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, help="folder of the files")
    parser.add_argument(
        "--units", type=int, help="number of drawn tables in raw units, in place of the files"
    )
    parser.add_argument("--regularizer", default="l2", help="name of the regularizer of these")
    parser.add_argument("--lam", type=float, default=1e-6, help="its strength")
    parser.add_argument("--tol", type=float, default=1e-3, help="relative gap to prove")
    parser.add_argument("--seconds", type=float, default=30.0, help="time limit per fit")
    args = parser.parse_args()
    if args.units:
        fit_in_raw_units(args)
        return
    if args.data is None:
        parser.error("give --data or --units")
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
