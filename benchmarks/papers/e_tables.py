"""Tables 1 and 2 of Zhang, On the dual formulation of regularized linear systems with convex risks (2002).

    python -m benchmarks.papers.e_tables --table 1 [--d 500] [--draws 5]
    python -m benchmarks.papers.e_tables --table 2 --data FOLDER [--only UWin LM-UWin]

Online learners and their large-margin versions, which have the same transfer function: the Perceptron and the
SVM (LM-Perc), unnormalized and normalized Winnow (UWin, NWin) and their large-margin versions, and sparse
regularization (Spars). As in the paper: 200 passes over the rows in their order, learning rate 0.01, prior
0.01, balanced Winnows, a constant feature appended, the hinge loss; exact steps for LM-Perc, gradient steps
with rate 0.01 for the others. The folder holds reuters21578_modapte.jsonl.xz, one JSON object per line with
split, topics, title and body.
"""

from __future__ import annotations

import json
import lzma
import re
import time
from collections import deque
from itertools import islice
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from benchmarks.harness.script import print_head, script_parser
from riskmin import (
    L2,
    DualCoordinateAscent,
    DualGaussSeidel,
    Elastic,
    Entropy,
    Hinge,
    Objective,
    linear_risk,
    minimize,
    online,
)

RATE = 0.01
UWIN, NWIN = (Entropy(prior=0.01, normalized=normalized, balanced=True) for normalized in (False, True))
ONLINE = {"Perceptron": L2(), "UWin": UWIN, "NWin": NWIN}
MARGIN = {"LM-Perc": L2(), "LM-UWin": UWIN, "LM-NWin": NWIN, "Spars": Elastic(eps=0.1)}
PAPER_1 = {
    500: {"Perceptron": 82.2, "LM-Perc": 87.1, "UWin": 82.4, "LM-UWin": 94.0, "NWin": 82.4, "LM-NWin": 94.3},
    5000: {"Perceptron": 67.9, "LM-Perc": 69.8, "UWin": 69.7, "LM-UWin": 87.4, "NWin": 69.7, "LM-NWin": 88.6},
}
PAPER_2 = {
    "Perceptron": 78.5,
    "LM-Perc": 85.7,
    "UWin": 79.2,
    "LM-UWin": 87.0,
    "NWin": 79.2,
    "LM-NWin": 87.1,
    "Spars": 86.7,
}


def with_ones(X):
    return sp.hstack([sp.csr_array(X), np.ones((X.shape[0], 1))]).tocsr()


def large_margin(X, y, reg, lam, passes):
    """The weights of a regularized hinge loss."""
    obj = Objective(linear_risk(X, y, Hinge()), reg, lam)
    if isinstance(reg, L2):
        return minimize(obj, DualCoordinateAscent(), tol=1e-3, max_iter=passes).w
    solver = DualGaussSeidel(rate=RATE, shuffle=False)
    start = reg.conjugate_grad(np.zeros(X.shape[1]))
    return deque(islice(solver.iterates(obj, start), passes), maxlen=1)[0].w


# ---------------------------------------------------------------- Table 1
def artificial(d, rng):
    """A thousand rows of random bits with margin at least 1, and 5 % wrong labels."""
    w = np.zeros(d)
    w[:6] = 1, 1, 1, 1, 1, -1
    rows = np.empty((0, d))
    while len(rows) < 1000:
        X = rng.integers(0, 2, (1500, d)).astype(float)
        rows = np.vstack([rows, X[np.abs(X @ w - 2) >= 1]])[:1000]
    y = np.sign(rows @ w - 2)
    y[rng.permutation(1000)[:50]] *= -1
    return with_ones(rows), y


def accuracies(d, seed, passes):
    rng = np.random.default_rng([d, seed])
    (X, y), (T, t) = artificial(d, rng), artificial(d, rng)

    def percent_correct(w):
        return 100 * float(np.mean(np.where(T @ w > 0, 1, -1) == t))

    accuracy = {
        name: percent_correct(online(X, y, reg, rate=RATE, epochs=passes).w) for name, reg in ONLINE.items()
    }
    for name in ("LM-Perc", "LM-UWin", "LM-NWin"):
        grid = 10.0 ** np.arange(-2, 1.1, 0.5) if name == "LM-Perc" else 10.0 ** np.arange(-3, -0.9, 0.5)
        tried = {lam: percent_correct(large_margin(X, y, MARGIN[name], lam, passes)) for lam in grid}
        best = max(tried, key=tried.get)
        accuracy[name] = tried[best]
        print(f"  d={d} draw {seed} {name}: best lam {best:.1e}", flush=True)
    return accuracy


def table_1(args):
    for d in args.d:
        paper = PAPER_1[d]
        draws = [accuracies(d, seed, args.passes) for seed in range(args.draws)]
        print(f"\nTable 1, d = {d}: test accuracy, mean (standard deviation) of {args.draws} draws\n")
        print_head("method | ours | paper")
        for name, theirs in paper.items():
            ours = np.array([draw[name] for draw in draws])
            print(f"| {name} | {ours.mean():.1f} ({ours.std():.1f}) | {theirs} |")
        print(flush=True)


# ---------------------------------------------------------------- Table 2
def words(document):
    return set(re.findall(r"[^\W_]+", f"{document['title']} {document['body']}".lower()))


def reuters(folder):
    """Binary matrices of the words and the topics of each document, training documents first."""
    with lzma.open(folder / "reuters21578_modapte.jsonl.xz", "rt", encoding="utf-8") as lines:
        documents = [json.loads(line) for line in lines]
    documents.sort(key=lambda document: document["split"] != "train")  # stable
    n = sum(document["split"] == "train" for document in documents)
    bags = [words(document) for document in documents]
    column = {word: j for j, word in enumerate(sorted(set().union(*bags[:n])))}
    columns_of_bags = [[column[word] for word in bag if word in column] for bag in bags]
    indptr = np.cumsum([0, *map(len, columns_of_bags)])
    indices = np.concatenate([np.sort(row) for row in columns_of_bags]).astype(np.int32)
    X = sp.csr_array((np.ones(len(indices)), indices, indptr), shape=(len(bags), len(column)))
    topics = sorted({topic for document in documents for topic in document["topics"]})
    Y = np.array(
        [[1.0 if topic in document["topics"] else -1.0 for topic in topics] for document in documents]
    )
    return with_ones(X), Y, n, topics


def at_break_even(scores, y):
    """Number of true positives at the break-even point, where as many rows are predicted as are positive.

    Ties at the threshold count by their expected number.
    """
    positives = int(np.sum(y > 0))
    if not positives:
        return 0.0
    threshold = np.sort(scores)[-positives]
    above, tied = scores > threshold, scores == threshold
    return float(np.sum(y[above] > 0) + (positives - above.sum()) * np.mean(y[tied] > 0))


def break_even(fit, X, Y, T, S):
    """The micro-averaged break-even point, the weights and the time."""
    start, hits, W = time.perf_counter(), 0.0, []
    for k in range(Y.shape[1]):
        if np.ptp(Y[:, k]) == 0:  # a topic without training documents
            hits += at_break_even(np.zeros(len(S)), S[:, k])
            continue
        W.append(fit(X, Y[:, k]))
        hits += at_break_even(T @ W[-1], S[:, k])
    return 100 * hits / np.sum(S > 0), W, time.perf_counter() - start


def choose_lam(reg, X, Y, grid, passes):
    """Choose lam on a held-out third of the training documents, for the ten largest topics."""
    largest = np.argsort(-np.sum(Y > 0, axis=0))[:10]
    order = np.random.default_rng(0).permutation(len(Y))
    hold, keep = order[: len(Y) // 3], np.sort(order[len(Y) // 3 :])

    def score(lam):
        def fit(A, y):
            return large_margin(A, y, reg, lam, passes)

        return break_even(fit, X[keep], Y[np.ix_(keep, largest)], X[hold], Y[np.ix_(hold, largest)])[0]

    tried = {float(lam): score(lam) for lam in grid}
    print("   held out:", {f"{lam:.0e}": round(float(value), 1) for lam, value in tried.items()}, flush=True)
    return max(tried, key=lambda lam: (tried[lam], lam))


def table_2(args):
    X, Y, n, topics = reuters(args.data)
    print(f"{n} training and {X.shape[0] - n} test documents, {X.shape[1]} features, {len(topics)} topics")
    X, Y, T, S = X[:n], Y[:n], X[n:], Y[n:]
    rows = {}
    for name in args.only:
        if name in ONLINE:

            def fit(A, y, reg=ONLINE[name]):
                return online(A, y, reg, rate=RATE, epochs=args.passes).w

            lam_text = "-"
        else:
            lam = choose_lam(MARGIN[name], X, Y, 10.0 ** np.arange(-4.5, -1.9, 0.5), args.tuning_passes)

            def fit(A, y, reg=MARGIN[name], lam=lam):
                return large_margin(A, y, reg, lam, args.passes)

            lam_text = f"{lam:.1e}"
        bep, W, seconds = break_even(fit, X, Y, T, S)
        rows[name] = bep, W
        print(
            f"   {name}: break-even {bep:.1f} (paper {PAPER_2[name]}), lam {lam_text}, {seconds:.0f} s",
            flush=True,
        )
    print("\nTable 2: micro-averaged break-even point\n\n| method | ours | paper |\n|---|---|---|")
    for name, (bep, _) in rows.items():
        print(f"| {name} | {bep:.1f} | {PAPER_2[name]} |")
    if "Spars" not in rows:
        return
    sizes = np.array([np.count_nonzero(w) for w in rows["Spars"][1]])
    largest = np.argsort(-np.sum(Y > 0, axis=0)[np.ptp(Y, axis=0) > 0])[:10]
    print(f"\nNonzero weights of Spars: {sizes.mean():.0f} on average (paper 400),", end=" ")
    print(
        f"{sizes[largest].mean():.0f} for the ten largest topics (paper 1500), of {X.shape[1]} (paper 45000)"
    )


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--table", type=int, choices=(1, 2), required=True)
    parser.add_argument("--data", type=Path, help="folder of the Reuters documents")
    parser.add_argument("--d", type=int, nargs="+", choices=(500, 5000), default=[500, 5000])
    parser.add_argument(
        "--draws", type=int, default=5, help="number of data sets drawn for Table 1, with seeds 0, 1, ..."
    )
    parser.add_argument("--only", nargs="+", choices=list(PAPER_2), default=list(PAPER_2), help="of Table 2")
    parser.add_argument("--passes", type=int, default=200)
    parser.add_argument(
        "--tuning-passes", type=int, default=100, help="passes for the choice of lam in Table 2"
    )
    args = parser.parse_args()
    if args.table == 1:
        table_1(args)
    elif args.data is None:
        parser.error("--table 2 needs --data, the folder of reuters21578_modapte.jsonl.xz")
    else:
        table_2(args)


if __name__ == "__main__":
    main()
