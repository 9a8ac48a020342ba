# /// script
# requires-python = ">=3.11"
# dependencies = ["riskmin", "pymaxflow>=1.3"]
# ///
"""A 2-D grid: ink and paper in noisy images, segmented by minimum cuts.

It needs PyMaxflow: pip install 'riskmin[examples]', or pip install '.[examples]' in a checkout.
"""

import maxflow
import numpy as np
from sklearn.datasets import load_digits

import riskmin


class Grid:
    """Outputs are images of 0 and 1. The score is a sum over pixels and over pairs of neighbors.

    A pixel that is 1 adds w @ its features; neighbors that agree add one of two weights, depending on whether
    the input is similar at both. A minimum cut finds the best output exactly if these two weights are not
    negative. So they are constrained to a box, and `project` maps a w to one at which riskmin may check.
    """

    n_unary = 2
    n_pairs = 2
    dim = n_unary + n_pairs
    lower = np.append(np.full(n_unary, -np.inf), np.zeros(n_pairs))

    def unary(self, x):
        return np.stack([x, np.ones_like(x)], axis=-1)

    def similar(self, x):
        """For each pair of horizontal and of vertical neighbors: whether the inputs are nearly the same."""
        return [abs(np.diff(x, axis=axis)) < 0.4 for axis in (1, 0)]

    def joint_feature(self, x, y):
        pairs = np.zeros(self.n_pairs)
        for axis, same in zip((1, 0), self.similar(x), strict=True):
            agree = np.diff(y.astype(int), axis=axis) == 0
            pairs += [np.sum(agree & same), np.sum(agree & ~same)]
        return np.append(np.tensordot(y, self.unary(x), 2), pairs)

    def cost(self, y, other):
        return float(np.mean(y != other))

    def cut(self, x, w, gain):
        """The best output if each pixel that is 1 adds `gain` to the score."""
        gain = gain + self.unary(x) @ w[: self.n_unary]
        graph = maxflow.Graph[float]()
        nodes = graph.add_grid_nodes(x.shape)
        # pixels on the side of the sink are 1; the cut then contains their edge from the source
        graph.add_grid_tedges(nodes, np.maximum(-gain, 0.0), np.maximum(gain, 0.0))
        pairs = np.maximum(w[self.n_unary :], 0.0)  # rounding may violate the box in the last bit
        ends = [(nodes[:, :-1], nodes[:, 1:]), (nodes[:-1], nodes[1:])]
        for (a, b), same in zip(ends, self.similar(x), strict=True):
            weights = np.where(same, *pairs).ravel()
            graph.add_edges(a.ravel(), b.ravel(), weights, weights)
        graph.maxflow()
        return graph.get_grid_segments(nodes)

    def loss_augmented_argmax(self, x, y, w):
        return self.cut(x, w, np.where(y, -1.0, 1.0) / y.size)

    def argmax(self, x, w):
        return self.cut(x, w, 0.0)

    def project(self, w):
        return np.maximum(w, self.lower)


def main() -> None:
    images = load_digits().images / 16
    rng = np.random.default_rng(0)
    ys = list(images[:240] > 0.5)
    xs = list(images[:240] + 0.35 * rng.standard_normal((240, 8, 8)))

    grid = Grid()
    loss = riskmin.Structured(grid)
    risk = loss.risk(xs[:120], ys[:120])
    fits = {"independent pixels": np.where(grid.lower == 0, 0.0, np.inf), "minimum cuts": np.inf}
    for name, upper in fits.items():
        J = riskmin.Objective(risk, riskmin.Box(riskmin.L2(), grid.lower, upper), lam=1e-4)
        result = riskmin.minimize(J)
        wrong = np.mean(np.array(loss.predict(xs[120:], result.w)) != np.array(ys[120:]))
        print(
            f"{name}: {result.lower:.5f} <= min J <= {result.value:.5f} ({result.status}), "
            f"{wrong:.1%} of the new pixels wrong"
        )
    print(f"weights of agreement: {result.w[-2]:.4f} for similar inputs, {result.w[-1]:.4f} for others")
    print(f"{risk.call_counts()['argmax']} minimum cuts")


if __name__ == "__main__":
    main()
