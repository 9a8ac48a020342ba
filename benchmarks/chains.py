"""Chain models: CoNLL-2000 chunking against CRFsuite's L-BFGS, and letters of handwritten words in ten folds.

    python -m benchmarks.chains FOLDER [--only conll letters] [--pairs all seen] [--sentences N] [--c2 1.0]
        [--alpha 1e-3 1e-2]

`conll` fits the same conditional random field with both packages: attributes of CRFsuite's chunking template,
one weight per transition and per pair of attribute and label (`--pairs all`), or per pair that occurs in
training (`--pairs seen`, CRFsuite's default), regularizer c2 |w|^2 added to the sum of the losses. CRFsuite
has no start and end weights, so they are attributes of the first and last tokens; with `--pairs seen` it has
them for labels that are first or last in training, and riskmin for all labels. Both run in one thread. The
clock starts when the attributes are in memory (CRFsuite's dictionary, riskmin's matrix) and stops at the
first iteration whose objective is within a tolerance of the smallest value of both; with `--pairs seen`, of
its own, since the few more weights make riskmin's minimum about 0.2 % smaller. Also printed: the time until
riskmin has *proved* the tolerance, the number of weights, and the chunk F1 on the test part, by conlleval's
rules.

`letters` fits max-margin chains (Hamming cost) and conditional random fields to nine folds, and to one fold
as Taskar et al. did, tests on the remaining folds, and prints letter errors and the seconds to a certified
gap of 1e-3.

The folder holds conll2000.zip and ocr_letters.txt.xz (see benchmarks/RESULTS.md).
"""

from __future__ import annotations

import lzma
import os
import re
import tempfile
import time
import zipfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import riskmin as rm
from benchmarks.harness.script import script_parser
from riskmin.data import load_conll, window_features
from riskmin.estimators.tagger.features import FeatureEncoder
from riskmin.estimators.tagger.seen_pairs import with_seen_pairs
from riskmin.metrics import chunk_f1

GOALS = (1e-2, 1e-3, 1e-4)


# ---------------------------------------------------------------- CoNLL-2000
def conll(folder, part):
    """Sentences as feature dicts, and their labels."""
    text = zipfile.ZipFile(folder / "conll2000.zip").read(f"conll2000/{part}.txt")
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "part.conll")
        path.write_bytes(text)
        tokens, labels = load_conll(path, encoding="latin-1")
    return [window_features(sentence) for sentence in tokens], labels


class Problem:
    """The attribute matrix and the objective."""

    def __init__(self, X, y, c2):
        self.encoder, self.n = FeatureEncoder(), len(X)
        self.matrix = self.encoder.rows(X)
        self.labels = sorted({label for sentence in y for label in sentence})
        index = {label: j for j, label in enumerate(self.labels)}
        self.codes = np.array([index[label] for sentence in y for label in sentence], dtype=float)
        self.lengths = [len(sentence) for sentence in X]
        self.alpha = 2 * c2 / self.n

    def objective(self, every_pair):
        risk = rm.linear_risk(self.matrix, self.codes, rm.ChainCrf(), lengths=self.lengths)
        return rm.Objective(risk if every_pair else with_seen_pairs(risk), rm.L2(), self.alpha)


def ours(problem, tol, every_pair):
    """(seconds, J) of each iteration, the seconds until tol is proved, and the number of weights."""
    curve, start = [], time.process_time()
    result = rm.minimize(
        problem.objective(every_pair),
        tol=tol,
        callback=lambda it, row: curve.append((time.process_time() - start, it.value)),
    )
    return curve, time.process_time() - start, len(result.w)


def crfsuite(X, y, problem, c2, steps, every_pair):
    """(seconds, J) of each iteration, the predictions of sentences, and the number of weights."""
    import pycrfsuite

    class Trainer(pycrfsuite.Trainer):
        def message(self, message):
            if match := re.search(r"^Number of features: (\d+)", message):
                sizes.append(int(match[1]))
            if match := re.search(r"^Loss: ([\d.e+-]+)", message):
                curve.append((time.process_time() - start, float(match[1]) / problem.n))

    curve, sizes, trainer = [], [], Trainer(verbose=True)
    for sentence, labels in zip(X, y, strict=True):
        ends = [dict(token) for token in sentence]
        ends[0]["start"], ends[-1]["end"] = "yes", "yes"
        trainer.append(ends, labels)
    trainer.select("lbfgs")
    trainer.set_params(
        {
            "c2": c2,
            "max_iterations": steps,
            "epsilon": 1e-12,
            "delta": 1e-12,
            "feature.possible_states": every_pair,
            "feature.possible_transitions": True,
        }
    )
    with tempfile.TemporaryDirectory() as home:
        start = time.process_time()
        trainer.train(str(Path(home, "model")))
        tagger = pycrfsuite.Tagger()
        tagger.open(str(Path(home, "model")))

        def predict(sentences):
            marked = [[dict(token) for token in sentence] for sentence in sentences]
            for sentence in marked:
                sentence[0]["start"], sentence[-1]["end"] = "yes", "yes"
            return [tagger.tag(sentence) for sentence in marked]

    return curve, predict, sizes[-1]


def first(curve, level):
    return min((seconds for seconds, value in curve if value <= level), default=np.inf)


def run_conll(folder, args):
    X, y = conll(folder, "train")
    X, y = X[: args.sentences], y[: args.sentences]
    T, t = conll(folder, "test")
    problem = Problem(X, y, args.c2)
    print(f"\n{len(X)} sentences, {problem.matrix.shape[0]} tokens, {problem.matrix.shape[1]} attributes,")
    print(f"{len(problem.labels)} labels, c2 = {args.c2:g}: lam = {problem.alpha:.3g}")
    for pairs in args.pairs:
        compare(problem, (X, y), (T, t), pairs == "all", args)


def compare(problem, train, test, every_pair, args):
    """Print the table of both packages."""
    few = Problem(train[0][:20], train[1][:20], args.c2)
    rm.minimize(few.objective(every_pair), max_iter=2)  # compile the kernels
    curve, proved, n_weights = ours(problem, args.tol, every_pair)
    peer, predict, n_peer = crfsuite(*train, problem, args.c2, args.steps, every_pair)
    least = [min(v for _, v in c) for c in (curve, peer)]
    if every_pair:
        least = [min(least)] * 2
    print(f"\n| CPU seconds to, {'all' if every_pair else 'seen'} pairs | riskmin | CRFsuite lbfgs | ratio |")
    print("|---|---|---|---|")
    for goal in GOALS:
        mine, other = (first(c, m * (1 + goal)) for c, m in zip((curve, peer), least, strict=True))
        print(f"| {goal:g} of min J | {mine:.1f} | {other:.1f} | {other / mine:.2f} |")
    print(f"| proved within {args.tol:g} | {proved:.1f} | - | - |")
    mine, other = (c[-1][0] / len(c) for c in (curve, peer))
    print(f"| one iteration | {mine:.3f} | {other:.3f} | {other / mine:.2f} |")
    print(f"| smallest J | {min(v for _, v in curve):.6f} | {min(v for _, v in peer):.6f} | - |")
    print(f"| weights | {n_weights:,} | {n_peer:,} | - |")
    model = rm.ChainTagger(
        "crf", alpha=problem.alpha, tol=args.tol, constraints="bio", n_jobs=1, possible_states=every_pair
    ).fit(*train)
    mine, other = (100 * chunk_f1(test[1], labels) for labels in (model.predict(test[0]), predict(test[0])))
    print(f"| chunk F1 on the test part | {mine:.2f} | {other:.2f} | - |", flush=True)


# ---------------------------------------------------------------- handwritten words
def letters(folder):
    """For each word: its fold, its binary images, and its letters."""
    words = {}
    with lzma.open(folder / "ocr_letters.txt.xz", "rt") as lines:
        for line in lines:
            if line.startswith("#"):
                continue
            word, _, letter, fold, bits = line.split()
            _, X, y = words.setdefault(int(word), (int(fold), [], []))
            X.append(np.unpackbits(np.frombuffer(bytes.fromhex(bits), np.uint8)))
            y.append(letter)
    return [(fold, np.array(X, dtype=float), y) for fold, X, y in words.values()]


def run_letters(folder, args):
    words = letters(folder)
    print("\n| letters | train on | letter error, % | seconds to a certified 1e-3 | iterations |")
    print("|---|---|---|---|---|")
    for loss in ("max_margin", "crf"):
        for nine_folds, alpha in zip((True, False), args.alpha, strict=True):
            errors, times, steps = [], [], []
            for fold in range(10):
                train = [word for word in words if (word[0] == fold) != nine_folds]
                test = [word for word in words if (word[0] == fold) == nine_folds]
                model = rm.ChainTagger(loss, alpha=alpha, tol=1e-3, n_jobs=1)
                start = time.process_time()
                model.fit([X for _, X, _ in train], [y for *_, y in train])
                times.append(time.process_time() - start)
                assert model.gap_ <= 1e-3 * model.objective_
                steps.append(model.n_iter_)
                errors.append(100 * (1 - model.score([X for _, X, _ in test], [y for *_, y in test])))
            print(
                f"| {loss}, lam = {alpha:g} | {'nine folds' if nine_folds else 'one fold'} | "
                f"{np.mean(errors):.2f} ± {np.std(errors):.2f} | {np.mean(times):.2f} | "
                f"{np.mean(steps):.0f} |",
                flush=True,
            )


def main():
    parser = script_parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", default=["conll", "letters"], choices=["conll", "letters"])
    parser.add_argument("--pairs", nargs="*", default=["all", "seen"], choices=["all", "seen"])
    parser.add_argument("--sentences", type=int, default=None, help="number of CoNLL sentences to fit")
    parser.add_argument("--c2", type=float, default=1.0, help="CRFsuite's regularizer")
    parser.add_argument("--steps", type=int, default=300, help="iteration limit of CRFsuite")
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument(
        "--alpha",
        type=float,
        nargs=2,
        default=(1e-3, 1e-2),
        help="alpha for nine training folds, and for one",
    )
    args = parser.parse_args()
    if "conll" in args.only:
        run_conll(args.folder, args)
    if "letters" in args.only:
        run_letters(args.folder, args)


if __name__ == "__main__":
    main()
