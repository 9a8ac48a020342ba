"""Structured prediction of matchings: match digits on the left with digits on the right by their pixels."""

from itertools import permutations

import numpy as np
from scipy.ndimage import uniform_filter
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits

import riskmin


class Matching:
    """Outputs are permutations: object i on the left is matched with object y[i] on the right.

    An input x holds the features of each pair, x[i, j] an array of `dim` numbers. The score of a matching is
    a sum over its pairs, and so is the cost, the fraction of wrong pairs: an assignment problem, solved
    exactly.
    """

    def __init__(self, dim):
        self.dim = dim

    def joint_feature(self, x, y):
        return x[np.arange(len(y)), y].sum(axis=0)

    def cost(self, y, other):
        return float(np.mean(y != other))

    def loss_augmented_argmax(self, x, y, w):
        wrong = np.ones((len(y), len(y)))
        wrong[np.arange(len(y)), y] = 0.0
        return linear_sum_assignment(x @ w + wrong / len(y), maximize=True)[1]

    def argmax(self, x, w):
        return linear_sum_assignment(x @ w, maximize=True)[1]

    def outputs(self, x):
        """All outputs; if there are few, riskmin checks the argmax against each of them."""
        return (np.array(y) for y in permutations(range(len(x))))


def draw(rng, images, digits, n):
    """Draw pairs of lists of images with the same digits in both, in different handwriting, and matchings."""
    xs, ys = [], []
    for _ in range(n):
        size = rng.integers(4, 9)
        kinds = rng.choice(10, size, replace=False)
        order = rng.permutation(size)
        left = np.array([rng.choice(images[digits == k]) for k in kinds])
        right = np.array([rng.choice(images[digits == k]) for k in kinds[order]])
        xs.append(-abs(left[:, None] - right[None, :]))
        ys.append(np.argsort(order))
    return xs, ys


def main() -> None:
    images, digits = load_digits(return_X_y=True)
    blurred = uniform_filter(images.reshape(-1, 8, 8), (0, 3, 3)).reshape(-1, 64)
    pixels = np.hstack([images, blurred]) / 16
    rng = np.random.default_rng(0)
    train, test = np.arange(len(digits)) < 1000, np.arange(len(digits)) >= 1000
    xs, ys = draw(rng, pixels[train], digits[train], 250)
    new_xs, new_ys = draw(rng, pixels[test], digits[test], 300)

    loss = riskmin.Structured(Matching(pixels.shape[1]))
    risk = loss.risk(xs, ys)
    result = riskmin.minimize(riskmin.Objective(risk, riskmin.L2(), lam=5e-3))
    counts = risk.call_counts()
    print(f"J = {result.value:.5f}, and min J >= {result.lower:.5f} ({result.status}, {result.solver})")
    print(
        f"{counts['argmax'] / len(xs):.0f} assignment problems per example, {counts['kept']} outputs cached"
    )
    for name, w in {"equal weights": np.ones(len(result.w)), "learned weights": result.w}.items():
        correct = np.mean(np.concatenate(loss.predict(new_xs, w)) == np.concatenate(new_ys))
        print(f"{name}: {correct:.1%} of the new digits are matched correctly")


if __name__ == "__main__":
    main()
