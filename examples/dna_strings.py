"""String kernels by features that are computed on the fly: rows of DNA, never stored as features.

python examples/dna_strings.py [--rows 600] [--orders 5]

The weighted-degree kernel of two strings counts the substrings of length 1 to D that they have at the same
positions. It is linear: one feature for each substring and position, of which a string has one per position
and length. For D = 6 and 80 letters these are 411 312 features, of which a row has 465; stored, it would take
5.6 kB, where its letters take 80 bytes. `WeightedDegree` fulfils the protocol of a matrix: shape, block_rows,
and the products `scores` and `pullback` of a range of rows; `rows` divides it into shards. Any loss, and any
solver that works by products of X, can be used with it. The drawn strings of the positive class have a motif
with errors at a fixed position, as splice sites have.
"""

import argparse

import numpy as np
import scipy.sparse as sp

from riskmin import L2, Objective, RocArea, Smoothing, linear_risk, minimize


class WeightedDegree:
    """The features of the weighted-degree kernel of strings over four letters, as a matrix of products."""

    block_rows = 256  # a block of indices, 256 x 465 x 8 bytes, is about a megabyte

    def __init__(self, letters, orders):
        self.letters, self.orders = letters, orders
        n, length = letters.shape
        # the features of order d begin at starts[d - 1]: position * 4^d + the substring as a number
        sizes = [(length - d + 1) * 4**d for d in range(1, orders + 1)]
        self.starts = np.append(0, np.cumsum(sizes))
        self.shape = n, int(self.starts[-1])
        # the kernel's weights of the orders, as factors of the features
        d = np.arange(1, orders + 1)
        factor = np.sqrt(2 * (orders - d + 1) / (orders * (orders + 1)) / length)
        self.values = np.repeat(factor, length - d + 1)

    def rows(self, start, stop):
        """A range of rows, for shards."""
        return WeightedDegree(self.letters[start:stop], self.orders)

    def indices(self, letters):
        """The indices of the features that these strings have, one row each."""
        parts, number = [], np.zeros(letters.shape, np.int64)
        for d in range(1, self.orders + 1):
            # the substring of length d at a position: the one of length d - 1, and one letter more
            width = letters.shape[1] - d + 1
            number = 4 * number[:, :width] + letters[:, d - 1 :]
            parts.append(self.starts[d - 1] + 4**d * np.arange(width) + number)
        return np.hstack(parts)

    def scores(self, w, start, stop):
        """X[start:stop] @ w."""
        return w[self.indices(self.letters[start:stop])] @ self.values

    def pullback(self, dz, start, stop, out):
        """Add X[start:stop].T @ dz to out."""
        sloped = dz != 0  # features of the other rows are not needed
        indices = self.indices(self.letters[start:stop][sloped])
        entries = np.outer(dz[sloped], self.values)
        out += np.bincount(indices.ravel(), entries.ravel(), minlength=len(out))

    def stored(self):
        """The same matrix with its entries in memory."""
        indices = self.indices(self.letters)
        ends = len(self.values) * np.arange(len(indices) + 1)
        return sp.csr_array((np.tile(self.values, len(indices)), indices.ravel(), ends), shape=self.shape)


def drawn(n, length=80, rare=0.1, seed=0):
    """Random strings; those of the positive class have a motif of ten letters, each right with 70 %."""
    rng = np.random.default_rng(seed)
    letters = rng.integers(0, 4, (n, length), dtype=np.uint8)
    y, motif = np.where(rng.random(n) < rare, 1.0, -1.0), np.array([0, 2, 2, 3, 1, 0, 0, 3, 2, 1], np.uint8)
    right = (rng.random((n, len(motif))) < 0.7) & (y > 0)[:, None]
    middle = letters[:, length // 2 - 5 : length // 2 + 5]
    middle[right] = np.broadcast_to(motif, right.shape)[right]
    return letters, y


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=600, help="training rows")
    parser.add_argument("--orders", type=int, default=5, help="the longest substring")
    args = parser.parse_args()
    letters, y = drawn(args.rows + 2000)
    train, test = (WeightedDegree(part, args.orders) for part in np.split(letters, [args.rows]))
    J = Objective(linear_risk(train, y[: args.rows], RocArea()), L2(), lam=1e-4)
    result = minimize(J, Smoothing(), tol=1e-3)
    z, above = test.scores(result.w, 0, 2000), y[args.rows :] > 0
    area = np.mean(z[above][:, None] > z[~above])
    stored = Objective(linear_risk(train.stored(), y[: args.rows], RocArea()), L2(), lam=1e-4)
    megabytes = train.letters.nbytes / 1e6, 12e-6 * train.shape[0] * len(train.values)
    print(f"{train.shape[0]} x {train.shape[1]} features: {megabytes[0]:.2f} MB of letters,", end=" ")
    print(f"{megabytes[1]:.1f} MB if stored")
    print(f"{result.status}: J = {result.value:.5f}, certified gap {result.gap / result.value:.1e};", end=" ")
    print(f"J by stored features {stored.value(result.w):.5f}")
    print(f"test ROC area {area:.3f}")


if __name__ == "__main__":
    main()
