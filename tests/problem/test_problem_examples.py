"""Small examples of the parts of `riskmin.problem`."""

import numpy as np
import pytest

from riskmin import (
    L2,
    Absolute,
    Hinge,
    MultivariateSquared,
    Objective,
    Shard,
    Softmax,
    Squared,
    as_matrix,
    linear_risk,
    minimize,
)
from riskmin.problem.column_moments import column_moments
from riskmin.problem.compiled.tracing import trace_loss
from riskmin.problem.convexity.before import check
from riskmin.problem.convexity.owner import describe, is_builtin, is_foreign
from riskmin.problem.convexity.scores import absolute_tolerance, relative_tolerance
from riskmin.problem.convexity.watch import monitor_for
from riskmin.problem.design_operator import mean_squared_norm
from riskmin.problem.intercept.explicit import bfgs_intercepts
from riskmin.problem.intercept.solve import Tangent, bracket_intercept, solve_intercept
from riskmin.problem.intercept.strategies import with_intercept
from riskmin.problem.kernel.incomplete_cholesky import incomplete_cholesky
from riskmin.problem.kernel.mercer import DotProduct, KernelMatrix, Rbf
from riskmin.problem.kernel.rkhs import RkhsMap, RkhsNorm, as_pair, coefficients
from riskmin.problem.oracle import as_oracle, tangent
from riskmin.problem.preconditioning import Preconditioner, preconditioner
from riskmin.problem.risk import check_point
from riskmin.problem.rounding import rounding_allowance
from riskmin.problem.smoothed_risk import SmoothedRisk


def test_column_moments():
    risk = linear_risk(np.array([[1.0, 5.0], [3.0, 5.0]]), np.zeros(2), Squared(), n_shards=2)
    result = column_moments(risk.executor)
    assert result.mean.tolist() == [2.0, 5.0]
    assert result.deviation.tolist() == [1.0, 0.0]
    assert result.constant.tolist() == [False, True]


def test_mean_squared_norm():
    rows = Shard(as_matrix(np.array([[3.0, 0.0], [0.0, 4.0]])), np.zeros(2), np.full(2, 0.5), {})
    assert mean_squared_norm(rows) == 12.5
    assert mean_squared_norm(rows, np.array([1.0, 4.0])) == 6.5


def test_tangent():
    cut = tangent(np.array([2.0]), 1.0, np.array([3.0]), error=0.25).cut
    assert cut.a.tolist() == [3.0]
    assert round(cut.b, 9) == -5.25


def test_as_oracle():
    class Distance:
        dim = 2

        def __call__(self, w):
            return float(abs(w - 1).sum()), np.sign(w - 1)

    assert as_oracle(Distance()).evaluate(np.zeros(2)).cut.a.tolist() == [-1.0, -1.0]


def test_preconditioner():
    X, y = np.array([[1000.0], [1002.0]]), np.array([1.0, -1.0])
    J = Objective(linear_risk(X, y, Hinge(), fit_intercept=True), L2(), lam=0.1)
    change = Preconditioner(np.array([1001.0]), np.array([2.0]))
    same = change.objective(J)
    assert same.risk.rows.X.X.tolist() == [[-2.0], [2.0]]
    assert abs(same.value(np.array([0.1])) - J.value(np.array([0.2]))) < 1e-9


def test_preconditioner_of_preconditioning():
    X, y = np.array([[1.0, 5000.0], [2.0, 7000.0], [3.0, 8000.0]]), np.array([1.0, 3.0, 2.0])
    change = preconditioner(Objective(linear_risk(X, y, Absolute()), L2(), lam=0.1))
    assert change.shift.tolist() == [0.0, 0.0]
    assert change.scale.tolist() == [0.5, 0.0001220703125]


def test_check_point():
    with pytest.raises(
        ValueError,
        match=r"w has the shape \(2,\), but this risk takes an array of \(3,\): give one number per weight",
    ):
        check_point(3, np.zeros(2))


def test_rounding_allowance():
    X, y = np.array([[1.0, 1.0], [-1.0, 1.0]]), np.array([1.0, -1.0])
    J, near, far = Objective(linear_risk(X, y, "hinge"), L2(), 0.1), np.ones(2), np.array([1.0, 1e9])
    assert rounding_allowance(J, near, J.cut(near)) < 1e-13 < rounding_allowance(J, far, J.cut(far))


def test_smoothed_risk():
    smoothed = SmoothedRisk.from_risk(linear_risk(np.eye(2), [1.0, -1.0], Hinge()), mu=0.5)
    w = np.array([0.75, 0.0])
    value, grad, cut = smoothed.evaluate(w)
    assert round(value, 6) == 0.40625
    assert grad.tolist() == [-0.25, 0.5]
    assert round(float(cut.a @ w) + cut.b, 6) == 0.5625
    assert smoothed.unsmoothed_value(w) == 0.625


def test_incomplete_cholesky():
    K = np.array([[2.0, 1.0], [1.0, 2.0]])
    T = incomplete_cholesky(lambda i: K[i], np.diag(K), rank=2, tol=0.0).T
    assert bool(abs(T.T @ T - K).max() < 1e-12)


def test_kernel_matrix():
    K = KernelMatrix(Rbf(gamma=1.0), np.array([[0.0], [1.0], [9.0]]))
    assert K.product(np.array([1.0, 1.0, 0.0])).round(4).tolist() == [1.3679, 1.3679, 0.0]


def test_as_pair():
    assert as_pair(np.array([2.0]), np.array([4.0])).round(4).tolist() == [1.4142, 2.8284]


def test_coefficients():
    assert coefficients(as_pair(np.array([2.0]), np.array([4.0]))).round(12).tolist() == [4.0]


def test_rkhs_map():
    K = KernelMatrix(DotProduct(), np.array([[1.0], [2.0]]))
    assert RkhsMap().scores(K, as_pair(np.array([3.0, 6.0]), np.array([1.0, 1.0])), 0, 2).round(
        12
    ).tolist() == [3.0, 6.0]


def test_rkhs_norm():
    assert round(RkhsNorm().value(as_pair(np.array([3.0, 6.0]), np.array([1.0, 1.0]))), 12) == 4.5


def test_bfgs_intercepts():
    assert bfgs_intercepts(lambda b: (float((b - 1) @ (b - 1)) / 2, b - 1), np.ones(2))[0].tolist() == [
        1.0,
        1.0,
    ]


def test_solve_intercept():
    def f(b):
        return Tangent(b, (b - 3) ** 2, 2 * (b - 3))

    lo, hi = solve_intercept(f, 0.0)
    assert lo.slope <= 0 <= hi.slope
    lo, hi = solve_intercept(f, 0.0, lambda b: (2 * (b - 3), 2.0, 2 * abs(b - 3)))
    assert lo.x <= 3 <= hi.x
    assert hi.x - lo.x < 1e-12


def test_bracket_intercept():
    start = Tangent(0.0, 9.0, -6.0)
    lo, hi = bracket_intercept(lambda b: Tangent(b, (b - 3) ** 2, 2 * (b - 3)), start, 1.0)
    assert lo.x <= 3 <= hi.x


def test_explicit_intercepts():
    X, y = np.zeros((4, 1)), np.array([0.0, 1.0, 2.0, 2.0])
    J = Objective(linear_risk(X, y, Softmax(), fit_intercept=True), L2(), lam=0.1)
    result = minimize(J, tol=1e-9)
    b = result.w[-3:]
    assert np.round(np.exp(b) / np.exp(b).sum(), 4).tolist() == [0.25, 0.25, 0.5]


def test_centered_intercepts():
    X, Y = np.array([[1.0], [2.0]]), np.array([[3.0, 5.0], [4.0, 7.0]])
    risk = linear_risk(X, Y, MultivariateSquared(), fit_intercept=True)
    assert risk(np.array([1.0, 2.0]))[0] == 0.0
    assert risk.best_intercept(np.array([1.0, 2.0])).tolist() == [2.0, 3.0]


def test_with_intercept():
    assert (
        repr(with_intercept(linear_risk(np.eye(2), np.ones(2), Absolute())).intercept)
        == "ProfiledIntercept()"
    )
    assert with_intercept(linear_risk(np.eye(3), np.arange(3.0), Softmax())).dim == 12


def test_check():
    class Capped:
        __module__, separable = "a_module_of_yours", True

        def value_grad(self, z, y, c):
            r = z - y
            return c @ np.minimum(r * r, 4.0), 2 * c * r * (r * r < 4.0)

    with pytest.raises(ValueError, match=r"Capped is not convex: .*"):
        check(linear_risk(np.eye(2), [1.0, 2.0], Capped()), L2(), np.zeros(2))


def test_is_builtin():
    assert is_builtin(Hinge())
    assert not (is_builtin(object()))


def test_is_foreign():
    class Mine(Hinge):
        __module__ = "a_module_of_yours"

    assert [is_foreign(linear_risk(np.eye(2), [1.0, -1.0], loss)) for loss in (Hinge(), Mine())] == [
        False,
        True,
    ]


def test_describe():
    class Mine(Hinge):
        __module__ = "a_module_of_yours"

    assert describe(linear_risk(np.eye(2), [1.0, -1.0], Mine())) == "Mine"
    assert describe(as_oracle(lambda w: (0.0, w))) == "the risk"


def test_relative_tolerance():
    assert relative_tolerance(np.ones(1)) == 1e-07
    assert relative_tolerance(np.ones(1, dtype=np.float32)) == 0.001


def test_absolute_tolerance():
    assert absolute_tolerance(np.ones(1), 1.0) < 1e-11


def test_monitor_for():
    assert (
        monitor_for(Objective(linear_risk(np.eye(2), [1.0, -1.0], Hinge()), L2(), 0.1), np.zeros(2)) is None
    )


def test_trace_loss():
    assert trace_loss(Hinge(margin=0.25)).first.lines[:3] == (
        "t0 = (y * z)",
        "t1 = (k0 - t0)",
        "t2 = (t1 > 0.0)",
    )
    assert trace_loss(Hinge(margin=0.25)).first.parameters == (0.25,)
