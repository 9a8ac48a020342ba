"""What Newton's method does not solve, and the sentences that name what does."""

import numpy as np
import pytest

import riskmin as rm
from riskmin import L1, L2, Newton, Objective, linear_risk, minimize
from riskmin.core import UnsupportedProblem

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((20, 3)), np.where(np.arange(20) % 2, 1.0, -1.0)

CLASSES, TREE = np.arange(20.0) % 3, rm.Tree.from_paths(["A/a", "A/b", "B"])


def run(loss, reg=None, y=Y, rows=X, solver=None, **settings):
    return minimize(Objective(linear_risk(rows, y, loss, **settings), reg or L2(), 0.1), solver or Newton())


def tensor():
    return pytest.importorskip("torch").asarray(X)


REFUSED = [
    (lambda: run(rm.FBeta()), UnsupportedProblem, "FBeta has none: use Bundle"),
    (lambda: run(rm.Hinge(), L1()), UnsupportedProblem, r"needs L2\(\) or Quadratic"),
    (
        lambda: next(Newton().iterates(Objective(lambda w: (0.0, w), L2(), 0.1), np.zeros(3))),
        UnsupportedProblem,
        "needs a linear_risk, .*: use Auto, Smoothing or Bundle",
    ),
    (
        lambda: run(rm.HierarchicalHinge(TREE), y=CLASSES),
        UnsupportedProblem,
        "no second derivatives .* use Lbfgs",
    ),
    (lambda: run(rm.Softmax(), L1(), CLASSES), UnsupportedProblem, r"L2.*use"),
    (lambda: run(rm.MulticlassHinge(), rm.Quadratic(np.eye(9)), CLASSES), UnsupportedProblem, r"L2.*use"),
    (lambda: run(rm.RocArea(), rows=tensor()), UnsupportedProblem, "loss of single rows, not RocArea"),
    *(
        (
            lambda solver=solver: run(rm.Hinge(), rows=tensor(), solver=solver),
            UnsupportedProblem,
            "X is one of torch or CuPy: use Auto, Newton",
        )
        for solver in (rm.DualCoordinateAscent(), rm.CoordinateDescent())
    ),
    (lambda: Newton(direct=0), ValueError, "direct"),
    (lambda: Newton(mu_decrease=1.0), ValueError, "mu_decrease between 0 and 1, not 1.0"),
    # the intercept has no minimum: it tends to minus infinity
    (
        lambda: run(rm.Poisson(), y=np.zeros(20), rows=np.ones((20, 2)), fit_intercept=True),
        ValueError,
        "falls for ever",
    ),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED, ids=[words for *_, words in REFUSED])
def test_the_sentence_says_what_to_use(call, error, words):
    with pytest.raises(error, match=words):
        call()
