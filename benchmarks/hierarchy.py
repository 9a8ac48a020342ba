"""Does the hierarchy of the labels help? News topics, as flat classes and as a tree.

    OMP_NUM_THREADS=1 python -m benchmarks.hierarchy --data FOLDER
        [--only "flat softmax" "tree softmax"] [--lams 1e-3 ... 3e-7] [--seeds 3] [--tol 1e-2] [--seconds 120]
        [--json FILE]

The documents of rcv1_topics whose topics are the nodes of one path, such as CCAT, C15 and C151; the last node
is the label, which may be an inner one. Flat models have weights per label, tree models per
node, with scores summed along the paths. "tree cost" is the hinge whose margins are the numbers of edges
between labels. No model has an intercept. lam is the one with the smallest tree distance on a quarter of
the training rows, drawn for each seed; then the model is refitted to all training rows and tested once.

The table has the share of wrong labels and the mean number of edges between the true and the predicted label
on the test rows, as means and standard deviations over seeds (which differ only in the chosen lam), and the
same for a lam chosen by the error. "gap" is the largest certified relative gap of the models tested.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import riskmin as rm
from benchmarks.harness.script import script_parser
from riskmin.arrays.matrix import as_matrix
from riskmin.data import load_svmlight
from riskmin.losses import MulticlassHinge, Softmax
from riskmin.metrics import tree_distance

MODELS = {
    "flat hinge": lambda tree: MulticlassHinge(),
    "flat hinge, tree cost": lambda tree: MulticlassHinge(tree.distance),
    "tree hinge": lambda tree: rm.HierarchicalHinge(tree, cost="zero one"),
    "tree hinge, tree cost": rm.HierarchicalHinge,
    "flat softmax": lambda tree: Softmax(),
    "tree softmax": rm.HierarchicalSoftmax,
}
LAMS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6, 3e-7)


# ---------------------------------------------------------------- data
def topics(folder):
    """The names of the labels, and the parent of every topic."""
    rows = (folder / "rcv1_topics.labels.txt").read_text().splitlines()
    rows = [row.split() for row in rows if not row.startswith("#")]
    parents = {topic: None if parent == "Root" else parent for _, topic, parent in rows}
    return [topic for _, topic, _ in rows], parents | {"MCAT": None}


def path(topic, parents):
    nodes = {topic}
    while (topic := parents[topic]) is not None:
        nodes.add(topic)
    return nodes


def documents(folder, part):
    """The documents of one path, and its last topic."""
    names, parents = topics(folder)
    data = load_svmlight(folder / f"rcv1_topics.{part}.svm.xz", n_features=47236, multilabel=True)
    rows, y = [], []
    for i, labels in enumerate(data.y):
        document_topics = {names[int(index)] for index in labels}
        document_topics |= {"MCAT"} if any(topic[0] == "M" for topic in document_topics) else set()
        last = [topic for topic in document_topics if path(topic, parents) == document_topics]
        if last:
            rows.append(i)
            y += last
    return data.X[rows], np.array(y), parents


# ---------------------------------------------------------------- fits
def evaluate(scores, labels, truth, parents):
    """The share of wrong labels, and the mean tree distance."""
    predicted = np.array(labels)[np.argmax(scores, axis=1)]
    return float(np.mean(predicted != truth)), tree_distance(truth, predicted, parents)


def fits(X, y, tree, make_loss, lams, args):
    """For each lam, from large to small: the result of the fit, its seconds, and a function for scores."""
    number = {label: float(i) for i, label in enumerate(tree.labels)}
    risk = rm.linear_risk(X, [number[label] for label in y], make_loss(tree), n_outputs=len(tree.labels))
    results = rm.path(risk, rm.L2(), lams, tol=args.tol, max_seconds=args.seconds)
    for lam, result in zip(lams, results, strict=True):
        elapsed = result.trace[-1]["seconds"]

        def scores(T, w=result.w):
            return risk.linear_map.scores(as_matrix(T), w, 0, T.shape[0])

        yield lam, result, elapsed, scores


def trial(name, train, test, tree, args):
    """The lams chosen for each seed by both measures, and their test results."""
    X, y, parents = train
    chosen = []
    for seed in range(args.seeds):
        out = np.random.default_rng(seed).random(len(y)) < 0.25
        errors = []
        for lam, _, _, scores in fits(X[~out], y[~out], tree, MODELS[name], args.lams, args):
            errors.append((lam, *evaluate(scores(X[out]), tree.labels, y[out], parents)))
            print(
                f"  {name}, seed {seed}, lam {lam:.0e}: {errors[-1][1]:.4f} {errors[-1][2]:.4f}", flush=True
            )
        chosen.append({by: min(errors, key=lambda one: (one[k], -one[0]))[0] for by, k in BY.items()})
    lams = sorted({lam for one in chosen for lam in one.values()}, reverse=True)
    tested = {}
    for lam, result, elapsed, scores in fits(X, y, tree, MODELS[name], lams, args):
        tested[lam] = (
            *evaluate(scores(test[0]), tree.labels, test[1], parents),
            result.gap / result.value,
            elapsed,
        )
    return chosen, tested


BY = {"error": 1, "distance": 2}


def rows_of(name, chosen, tested):
    for by in BY:
        results = [tested[one[by]] for one in chosen]
        yield {
            "model": name,
            "by": by,
            "lams": [one[by] for one in chosen],
            "error": [one[0] for one in results],
            "distance": [one[1] for one in results],
            "gap": max(one[2] for one in results),
            "seconds": max(one[3] for one in results),
        }


def line(row):
    error, distance = 100 * np.array(row["error"]), np.array(row["distance"])
    lams = ", ".join(f"{lam:.0e}" for lam in sorted(set(row["lams"]), reverse=True))
    return (
        f"| {row['model']} | {row['by']} | {lams} | {error.mean():.2f} ({error.std():.2f}) "
        f"| {distance.mean():.4f} ({distance.std():.4f}) | {row['gap']:.0e} | {row['seconds']:.0f} |"
    )


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--lams", nargs="*", type=float, default=list(LAMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--seconds", type=float, default=120.0, help="time limit per lam")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    train, test = (documents(args.data, part) for part in ("train", "test"))
    used = np.unique(train[0].indices)  # leave out words that occur in no training row
    train, test = ((X[:, used], y, parents) for X, y, parents in (train, test))
    tree = rm.Tree.from_parents(train[2]).restricted_to(np.unique(train[1]).tolist())
    print(f"{train[0].shape[0]} + {test[0].shape[0]} documents, {len(used)} words, {tree}", flush=True)
    rows = []
    for name in args.only:
        rows += rows_of(name, *trial(name, train, test, tree, args))
        print("\n".join(map(line, rows[-2:])), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    print("\n| model | lam chosen by | lam | test error % | test tree distance | gap | seconds |")
    print("|" + " --- |" * 7)
    print("\n".join(map(line, rows)))


if __name__ == "__main__":
    main()
