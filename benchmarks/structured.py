"""Calls of the argmax to a certified gap of 1e-3: working set of outputs against cuts of the risk.

    python -m benchmarks.structured

The data are those of scikit-learn: matchings of digits (as in examples/matching.py, with pixel features
only), and the digits as ten classes. It takes a few minutes, nearly all of them for the cuts.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits

from benchmarks.harness.script import print_head
from riskmin import L2, Bmrm, Bundle, Objective, Structured, WorkingSet, minimize


class Matching:
    """Outputs are permutations; x[i, j] are the features of the pair (i, j)."""

    dim = 64

    def joint_feature(self, x, y):
        return x[np.arange(len(y)), y].sum(axis=0)

    def cost(self, y, other):
        return float(np.mean(y != other))

    def loss_augmented_argmax(self, x, y, w):
        return linear_sum_assignment(x @ w + (1 - np.eye(len(y))[y]) / len(y), maximize=True)[1]


class Classes:
    """Ten classes; w is the concatenation of the weights of all classes."""

    dim = 650

    def joint_feature(self, x, y):
        return np.arange(65) + 65 * y, x

    def cost(self, y, other):
        return float(y != other)

    def loss_augmented_argmax(self, x, y, w):
        return int(np.argmax(w.reshape(10, 65) @ x + (np.arange(10) != y)))


def matchings(images, digits, n=200, size=8):
    rng = np.random.default_rng(0)
    xs, ys = [], []
    for _ in range(n):
        kinds, order = rng.choice(10, size, replace=False), rng.permutation(size)
        left = np.array([rng.choice(images[digits == k]) for k in kinds])
        right = np.array([rng.choice(images[digits == k]) for k in kinds[order]])
        xs.append(-abs(left[:, None] - right[None, :]))
        ys.append(np.argsort(order))
    return xs, ys


def main() -> None:
    images, digits = load_digits(return_X_y=True)
    images = images / 16
    problems = {
        "200 matchings of 8 digits": (Matching(), *matchings(images, digits)),
        "600 digits, 10 classes": (
            Classes(),
            np.c_[images, np.ones(len(images))][:600],
            digits[:600].tolist(),
        ),
    }
    print_head("problem | lam | `WorkingSet` | `Bundle` | `Bmrm`")
    for name, (model, xs, ys) in problems.items():
        for lam in (1e-2, 1e-3):
            calls = []
            for solver in (WorkingSet(), Bundle(), Bmrm()):
                risk = Structured(model).risk(xs, ys, check=False)
                result = minimize(Objective(risk, L2(), lam), solver, tol=1e-3)
                assert result.status == "converged", (name, lam, solver)
                calls.append(f"{risk.call_counts()['argmax'] / len(xs):.0f}")
            print(f"| {name} | {lam:g} | {' | '.join(calls)} |", flush=True)


if __name__ == "__main__":
    main()
