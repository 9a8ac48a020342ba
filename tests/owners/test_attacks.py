"""Attacks on the rows of an owner under its default policy, measured by the error of a reconstruction."""

import numpy as np
import pytest
from tests.owners.attacker import Attacker, bisected, distance_to_a_row
from tests.owners.conftest import table

from riskmin import Hinge, Quantile
from riskmin.losses import get_loss
from riskmin.owners.owner import Owner
from riskmin.owners.protection.audit import AuditLog
from riskmin.owners.protection.policy import OPEN, Policy

LEAST_ERROR = 0.3
"""Relative to the nearest row. A leverage of 0.75 means 0.5 in the mean, for independent rows."""


class Answers:
    """Gradients in the units of sums over rows, each by a run of its own, which claims something else."""

    def __init__(self, X, y, settings, path, change):
        self.X, self.y, self.path, self.change, self.k = X, y, path, change, 0
        self.policy = Policy(**settings, runs_per_day=10**6, losses_per_day=10**6)
        self.start()

    def start(self):
        self.owner = Owner(self.X, self.y, policy=self.policy, log=AuditLog(self.path))

    def gradient(self, w):
        self.k += 1
        loss, total = Hinge(), float(len(self.X))
        if self.change == "total weight":
            total += self.k
        elif self.change == "margin":
            loss = Hinge(margin=1 + 1e-9 * self.k)
        elif self.change == "loss":
            loss = get_loss(["hinge", "quantile", "absolute"][self.k % 3]) if self.k > 2 else Hinge()
        elif self.change == "restart" and self.k % 5 == 0:
            self.owner.log.close()
            self.start()
        answer = Attacker(self.owner, loss, f"peer-{self.k % 7}", total=total).gradient(w)
        return None if answer is None else total * answer[1]

    def nearest(self, seed):
        """The least distance to a row, relative to it, of answers and differences of two of them."""
        a, b = np.random.default_rng(seed).standard_normal((2, 8))
        found, _, _ = bisected(self.gradient, a, b, 38, 1e-6)
        self.owner.log.close()
        vectors = [*found, *(f - g for i, f in enumerate(found) for g in found[:i])]
        large = (v for v in vectors if np.linalg.norm(v) > 1e-3)
        return min((distance_to_a_row(v, self.X) for v in large), default=1.0)


@pytest.mark.parametrize("change", ["total weight", "margin", "loss", "restart"])
def test_bisection_recovers_no_row_whatever_the_coordinator_claims(tmp_path, change):
    X, y, _ = table(500)
    if change != "loss":  # the attack works on an owner without protection
        assert Answers(X, y, OPEN, tmp_path / "open", change).nearest(0) < 1e-5
    answers = Answers(X, y, {}, tmp_path / "log", change)
    assert answers.nearest(0) > LEAST_ERROR
    assert answers.owner.span.leverages.max() <= Policy().max_leverage


@pytest.mark.parametrize("loss", ["hinge", "logistic", "squared", "poisson"])
def test_whoever_knows_all_multipliers_cannot_solve_for_a_row(loss):
    """The strongest attack on sums: least squares with the true multipliers of all answers, at any points."""
    X, y, _ = table(300)
    rng, owner = np.random.default_rng(0), Owner(X, y, policy=Policy(max_rises=0))
    attacker = Attacker(owner, loss)
    for k in range(120):
        attacker.gradient(rng.standard_normal(8) * rng.choice([0.01, 0.3, 1.0, 10.0]) / (1 + k % 5))
    basis = owner.span.basis
    known = basis @ (basis.T @ X)  # what the answers determine of X
    errors = np.linalg.norm(known - X, axis=1) / np.linalg.norm(X, axis=1)
    assert owner.span.rank > 5
    assert np.sqrt(np.mean(errors**2)) > 0.5
    assert errors.min() > 0.1


def test_largest_scores_and_sizes_do_not_depend_on_single_rows():
    """Numbers beside the sums: at two tables that differ in one row, all are the same."""
    X, y, _ = table(400)
    other = X.copy()
    other[7] *= 0.9
    replies = []
    for rows in (X, other):
        attacker = Attacker(Owner(rows, y))
        largest = attacker.place(np.ones(8)).arrays["scalars"]
        fields = {"loss": attacker.loss_json, "map": attacker.map, "b": 0.0, "t": 0.0}
        sizes = attacker.ask("term_sizes", {"w": np.ones(8)}, **fields)
        replies.append((largest.tolist(), sizes.arrays["0"].tolist(), sizes.arrays["scalars"].tolist()))
    assert replies[0] == replies[1]


def test_quantile_values_do_not_follow_a_fixed_row():
    """Near the kink of one row, values that are answered do not depend on the score of that row."""
    X, y, _ = table(300)
    attacker = Attacker(Owner(X, y, policy=Policy(max_rises=0)), Quantile(level=0.5))
    w = np.linalg.lstsq(X, y, rcond=None)[0]
    start, *others = (attacker.gradient(w + 1e-4 * e) for e in [np.zeros(8), *np.eye(8)])
    slopes = np.array([(value - start[0]) / 1e-4 for value, _ in others])
    assert distance_to_a_row(300 * slopes, X) > LEAST_ERROR
