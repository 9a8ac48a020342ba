"""Does the F1 loss give a better F1 on new rows than the hinge loss with the best threshold?

    OMP_NUM_THREADS=1 python -m benchmarks.f1 --data FOLDER
        [--only w8a "rcv1 C11"] [--seeds 3] [--lams 1e-1 ... 1e-7] [--seconds 6] [--json FILE]

`FBeta()`, the hinge and the logistic loss, each with an intercept and along a path of lams. The rows are
split into training, validation and test rows: of w8a, a fifth is held out for testing, rcv1 has a test file;
a quarter of the remaining rows are validation rows. Each seed draws new splits. Three thresholds:

- zero: the sign of the score, including the fitted intercept;
- training: the threshold with the best F1 on the training rows;
- validation: the threshold with the best F1 on the validation rows.

lam is the one with the best F1 on the validation rows at that threshold; F1 on the test rows is evaluated
once after that. Each fit runs until a gap of 1e-3 is proved, or for the given seconds: "gap" is the largest
gap of the chosen fits. The table has the mean and the standard deviation over seeds, in %, and the number of
seeds for which F1 is above that of the hinge at the same threshold.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from sklearn.metrics import f1_score

import riskmin as rm
from benchmarks.harness.script import script_parser
from benchmarks.sets import Split, hold_out, rcv1, signs
from riskmin.data import load

LOSSES = {"f1": rm.FBeta(), "hinge": rm.Hinge(), "logistic": rm.Logistic()}
THRESHOLDS = ("zero", "training", "validation")
LAMS = tuple(10.0**-k for k in range(1, 8))


def w8a(folder):
    X, y, *_ = load(folder / "w8a.train.svm.xz")
    return lambda seed: hold_out(X, signs(y), seed)


def c11(folder):
    data = rcv1("C11")(folder)
    return lambda seed: data


SETS = {"w8a": w8a, "rcv1 C11": c11}


def f1(z, y):
    return 100 * float(f1_score(y > 0, z > 0))


def cut(z, y):
    """The threshold with the best F1."""
    return rm.FBeta().cutoff(z, y, np.full(len(y), 1 / len(y)))


def trials(split: Split, loss, lams, seconds, seed):
    """For each lam and threshold: F1 on the validation and on the test rows, and the gap proved."""
    fit = hold_out(split.X, split.y, seed + 1000, share=0.25)
    risk = rm.linear_risk(fit.X, fit.y, loss, fit_intercept=True)
    results = []
    for lam, result in zip(lams, rm.path(risk, rm.L2(), lams, max_seconds=seconds), strict=True):
        z, v, t = (A @ result.w for A in (fit.X, fit.T, split.T))
        thetas = {"zero": -risk.best_intercept(result.w)}
        thetas |= {"training": cut(z, fit.y), "validation": cut(v, fit.t)}
        gap = result.gap / result.value
        for threshold, theta in thetas.items():
            results.append((threshold, lam, f1(v - theta, fit.t), f1(t - theta, split.t), gap))
    return results


def chosen(results, threshold):
    """The trial with the best validation F1; of ties, the one with the largest lam."""
    return max((one for one in results if one[0] == threshold), key=lambda one: (one[2], one[1]))


def table(name, split_of, args):
    """The table rows of a data set."""
    picks = {}
    for seed in range(args.seeds):
        split = split_of(seed)
        for loss, factory in LOSSES.items():
            results = trials(split, factory, args.lams, args.seconds, seed)
            for threshold in THRESHOLDS:
                picks.setdefault((loss, threshold), []).append(chosen(results, threshold))
            summary = {
                t: f"{picks[loss, t][-1][3]:.1f} (lam {picks[loss, t][-1][1]:.0e})" for t in THRESHOLDS
            }
            print(f"  {name}, seed {seed}, {loss}: {summary}", flush=True)
    rows = []
    for (loss, threshold), ones in picks.items():
        test = np.array([one[3] for one in ones])
        hinge = np.array([one[3] for one in picks["hinge", threshold]])
        rows.append(
            {
                "data": name,
                "loss": loss,
                "threshold": threshold,
                "test": test.tolist(),
                "validation": [one[2] for one in ones],
                "lams": [one[1] for one in ones],
                "gap": max(one[4] for one in ones),
                "above": int(np.sum(test > hinge)),
                "seeds": len(ones),
            }
        )
    return rows


def line(row):
    test, lams = np.array(row["test"]), sorted(set(row["lams"]), reverse=True)
    above = "" if row["loss"] == "hinge" else f"{row['above']} of {row['seeds']}"
    return (
        f"| {row['data']} | {row['loss']} | {row['threshold']} | {test.mean():.1f} ({test.std():.1f}) "
        f"| {above} | {', '.join(f'{lam:.0e}' for lam in lams)} | {row['gap']:.0e} |"
    )


def main():
    parser = script_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=list(SETS), choices=SETS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--lams", nargs="*", type=float, default=list(LAMS))
    parser.add_argument("--seconds", type=float, default=6.0, help="time limit per lam")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.only:
        try:
            split_of = SETS[name](args.data)
        except FileNotFoundError as error:
            print(f"{name} left out: {error}")
            continue
        rows += table(name, split_of, args)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))
    print("\n| data | loss | threshold | test F1 | above the hinge | lam chosen | gap |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        print(line(row))


if __name__ == "__main__":
    main()
