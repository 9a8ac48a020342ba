"""Small examples of the parts of `riskmin.solvers`."""

import numpy as np
import pytest

from riskmin import L2, FBeta, Hinge, Logistic, Objective, RocArea, Shard, as_matrix, linear_risk
from riskmin.solvers.dual.exact import zero_sum_duals
from riskmin.solvers.dual.proximal_intercepts import rms_row_norm
from riskmin.solvers.facts import Facts
from riskmin.solvers.newton.linear_system import cholesky, conjugate_gradients
from riskmin.solvers.newton.score_problem import bracketed_newton, has_score_hessian, secant_search
from riskmin.solvers.newton.subsampling import sampled_objective
from riskmin.solvers.quasi_newton.memory import LbfgsMemory
from riskmin.solvers.state_checks import check_state
from riskmin.solvers.weights import feature_weights, outputs_share_weights, scale_features


def test_facts():
    facts = Facts(Objective(linear_risk(np.eye(2), np.array([1.0, -1.0]), Hinge()), L2(), lam=0.1))
    assert not (facts.smooth)
    assert not (facts.sparse)
    assert facts.interval_conjugate
    assert facts.local


def test_check_state():
    state = {"w": np.zeros(3), "S": np.zeros((2, 3)), "Y": np.zeros((1, 3))}
    check_state(state, {"w": "d", "S": "m d", "z?": "n"}, d=3)
    with pytest.raises(ValueError, match=r"its array Y has shape \(1, 3\), not \(2, 3\)"):
        check_state(state, {"S": "m d", "Y": "m d"}, d=3)


def test_feature_weights():
    assert feature_weights(L2([1.0, 1.0, 4.0, 4.0]), 2).tolist() == [1.0, 4.0]
    assert feature_weights(L2(), 2) == 1.0


def test_outputs_share_weights():
    assert outputs_share_weights(L2([1.0, 1.0, 4.0, 4.0]), 2)
    assert not (outputs_share_weights(L2([1.0, 2.0, 4.0, 4.0]), 2))


def test_scale_features():
    assert scale_features(as_matrix(np.ones((1, 2))), np.array([1.0, 2.0])).tolist() == [[1.0, 0.5]]


def test_cholesky():
    G = np.ones((2, 2))
    assert cholesky(G, G.reshape(-1)[::3], 1e-14) is not None
    assert bool(G[1, 1] > 1 == G[1, 0])


def test_conjugate_gradients():
    A = np.array([[2.0, 1.0], [1.0, 3.0]])
    d, n_steps = conjugate_gradients(lambda d: A @ d, np.array([3.0, 4.0]), 1e-12, 10)
    assert d.round(9).tolist() == [1.0, 1.0]
    assert n_steps == 2


def test_has_score_hessian():
    assert [has_score_hessian(loss) for loss in (Hinge(), Logistic(), RocArea(), FBeta())] == [
        True,
        True,
        True,
        False,
    ]


def test_bracketed_newton():
    t, n_evaluations = bracketed_newton(lambda t: (t**3 - 0.5, 3 * t * t), -0.5)
    assert abs(t**3 - 0.5) <= 0.05 * 0.5
    assert n_evaluations == 3


def test_secant_search():
    t, _ = secant_search(lambda t: t**3 - 0.5, -0.5)
    assert abs(t**3 - 0.5) <= 0.05 * 0.5


def test_sampled_objective():
    X, y = np.ones((900, 1)), np.where(np.arange(900) % 3, 1.0, -1.0)
    sampled = sampled_objective(Objective(linear_risk(X, y, Hinge()), L2(), lam=0.1), 16)
    assert sampled.risk.rows.X.shape == (56, 1)


def test_lbfgs_memory():
    pairs = LbfgsMemory(5, np.zeros(2))
    pairs.add(np.array([1.0, 0.0]), np.array([2.0, 0.0]))
    pairs.add(np.array([0.0, 1.0]), np.array([0.0, 4.0]))
    assert pairs.direction(np.array([2.0, 4.0])).tolist() == [1.0, 1.0]


def test_zero_sum_duals():
    c, lower, upper = np.full(4, 0.25), np.array([-1.0, -1, 0, 0]), np.array([0.0, 0, 1, 1])
    for u, expected in (
        ([-1.0, -0.5, 1.0, 0.7], [-1, -0.625, 1, 0.625]),
        ([-1.0, 0, 1, 1], [-1, 0, 0.5, 0.5]),
    ):
        assert zero_sum_duals(np.array(u), c, lower, upper) == pytest.approx(np.array(expected), abs=1e-8)
    # where zero is a bound, rows inside the tube of an epsilon-insensitive loss stay there
    inside = zero_sum_duals(np.array([0.0, 0.0, 0.4, -0.2]), c, -np.ones(4), np.ones(4), zero_is_bound=True)
    assert inside == pytest.approx([0.0, 0.0, 4 / 15, -4 / 15], abs=1e-8)


def test_rms_row_norm():
    rows = Shard(as_matrix(np.array([[3.0], [4.0]])), np.zeros(2), np.full(2, 0.5), {})
    assert round(rms_row_norm(rows) ** 2, 6) == 12.5
